"""The decoder that all encodings share (transformer.py), made from a configuration
(from_config.py), and the RAM it takes (footprint.py).

May import attention, encodings, config and machine.
"""
