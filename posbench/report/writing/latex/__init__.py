"""A report as LaTeX tables: document.py the document, floats.py one table, escape.py its text.

May import comparing and wording.
"""
