"""All that knows Hydra: commands under it, sweeps and launchers, overrides, its errors.

May import config, terminal, machine and errors; only cli.py and commands/ may import it.
"""
