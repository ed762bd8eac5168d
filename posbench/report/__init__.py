"""`posbench report`: run folders are read (reading), compared (comparing) and written (writing).

May import runs, evaluation, published and tracking; needs no model. For a new column see
comparing, for a new format writing.
"""

FIGURES = ("pdf", "png", "svg")
THEMES = ("light", "dark")  # of figures
