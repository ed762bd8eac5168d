"""The terminal: streams and their characters, progress bars, tables that fit.

May import machine and errors.
"""
