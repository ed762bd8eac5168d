"""A report as LaTeX tables.

May import comparing and wording.
"""
