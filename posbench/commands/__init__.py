"""One file a command, each under Hydra; posbench/cli.py chooses among them."""
