"""NoPE: no positional encoding (Haviv et al. 2022, arXiv 2203.16634).

Order enters through the causal mask alone: a two-sided model has none, its text is a bag of words.
"""

from posbench.encodings.base import Encoding


class NoPE(Encoding):
    """Every cell of the contract left neutral."""

    paper = "2203.16634"
    formula = "logit_ij = q_i . k_j / sqrt(d)"
    directions = "both"
