"""`posbench speed`: tokens/s and RAM of an encoding beside a baseline, and the machine's limits.

work.py is what is timed, rounds.py how, memory.py peak RAM, cost.py the least work of a pass.
May import training, evaluation and model. A new mode is an entry of MODES in work.py.
"""
