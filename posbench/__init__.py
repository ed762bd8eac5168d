"""posbench: one corpus, one model, one schedule; only the positional encoding differs."""

__version__ = "0.1.0"
