"""Run folders read into records (collect.py), and grouped by what is comparable (groups.py).

May import runs and evaluation.
"""
