"""From groups of runs to a Comparison: all that a report shows, as data.

May import reading, evaluation and published. A new column is a field of a Cell or a Row in
comparison.py, filled in cells.py or from_runs.py and shown by the writers.
"""
