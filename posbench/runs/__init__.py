"""A run, from a configuration to rows in its folder: train, dry_run, repro, tune.

May import training, evaluation, speed, tracking and what is below them. What is read from a
folder may come from anybody: saved_config.py and trusted_classes.py.
"""
