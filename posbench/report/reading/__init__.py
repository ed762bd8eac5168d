"""Run folders read into records, and grouped with what they can be compared with.

May import runs and evaluation.
"""
