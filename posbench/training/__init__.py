"""Training: one optimizer step (trainer), the loop around it, loss, optimizer, checkpoints.

May import model, corpus, and what is below them.
"""
