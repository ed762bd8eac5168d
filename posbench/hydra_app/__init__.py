"""All that knows Hydra: commands under it, sweeps and launchers, overrides, its errors.

May import errors, config, machine and terminal; commands/ alone may import it.
"""
