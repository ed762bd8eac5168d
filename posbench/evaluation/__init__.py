"""Scoring a model beyond its training length: protocols, probes, results on disk, intervals.

May import model, config, terminal and machine. A new protocol is a class in protocols.py, a new
probe an entry of PROBES in probes.py.
"""
