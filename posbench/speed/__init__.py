"""How fast and how large an encoding is beside another, and how far from the machine's limits.

work.py is what is timed, rounds.py how, memory.py the peak, cost.py what cannot be done with less.
"""
