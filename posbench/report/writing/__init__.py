"""A report in a format: terminal, Markdown, CSV, LaTeX, HTML, figures, W&B.

May import comparing and terminal; draws what is there and computes nothing. A new format is a
module here and an entry of WRITERS in commands/report.py.
"""
