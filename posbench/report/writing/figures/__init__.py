"""A report as figures for a paper (write.py). Importing its modules imports matplotlib.

A new kind of figure is a function in write.py and an entry of its KINDS.
May import comparing.
"""
