"""The decoder that all encodings share, its making from a configuration, and the RAM it takes.

May import attention, encodings, config and machine.
"""
