"""From run folders to tables and figures: collect, compare, write. No model, no network."""

FIGURES = ("pdf", "png", "svg")
THEMES = ("light", "dark")  # of figures
