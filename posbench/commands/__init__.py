"""One file per command, each run by Hydra; posbench/cli.py chooses among them.

May import every room. A new command is a file here, a row in cli.py and a yaml in conf/.
"""
