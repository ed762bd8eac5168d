"""A report as figures for a paper. Importing its modules imports matplotlib.

May import comparing.
"""
