"""T5's bucketed relative bias (Raffel et al. 2020, arXiv 1910.10683, section 2.1).

Causal buckets: of B buckets the first B/2 hold one distance each, the others grow
logarithmically up to max_distance, and the last holds all larger distances. In a two-sided model
half of the buckets are for the past and half for the future, each as B/2 causal ones. One table b
of B x H scalars, shared by all layers, starts as N(0, D^-0.5). T5 itself has no factor 1/sqrt(d)
on the logits but in W_q's initialisation: that is T5Unscaled. T5Bias keeps it and adds b after.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


class T5Bias(Encoding):
    """A learned scalar for each head and each bucket of distances."""

    paper = "1910.10683"
    formula = "logit_ij = q_i . k_j / sqrt(d) + b[h, bucket(i - j)]"
    directions = "both"

    def __init__(self, shape: Shape, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(shape)
        if buckets < 2 or buckets % 2:
            raise ValueError(f"encoding.buckets={buckets} must be an even number of at least 2")
        if shape.two_sided and buckets % 4:
            raise ValueError(f"encoding.buckets={buckets} must divide by 4 in a two-sided model")
        if max_distance <= buckets // 2:
            raise ValueError(
                f"encoding.max_distance={max_distance} must exceed encoding.buckets / 2, "
                f"{buckets // 2}: the exact buckets"
            )
        self.buckets = buckets
        self.max_distance = self.clip = max_distance
        self.bias = nn.Parameter(torch.empty(shape.heads, buckets))
        nn.init.normal_(self.bias, std=shape.width**-0.5)

    def bucket(self, distance: Tensor) -> Tensor:
        """Distances [M] -> buckets [M]; an edge that is an integer starts the next bucket."""
        if self.shape.two_sided:
            half = self.buckets // 2
            return self._one_sided(distance.abs(), half) + half * (distance < 0)
        return self._one_sided(distance, self.buckets)

    def _one_sided(self, distance: Tensor, buckets: int) -> Tensor:
        exact = buckets // 2
        ratio = distance.clamp(min=exact).double() / exact
        steps = ratio.log() / math.log(self.max_distance / exact) * (buckets - exact)
        far = (exact + (steps + 1e-9).long()).clamp(max=buckets - 1)
        return torch.where(distance < exact, distance, far)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return self.bias[:, self.bucket(distance)]


class T5Unscaled(T5Bias):
    """T5's own parametrisation: logits without 1/sqrt(d), query projections that much smaller."""

    formula = "logit_ij = q_i . k_j + b[h, bucket(i - j)]"

    def __init__(self, shape: Shape, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(shape, buckets, max_distance)
        self.query_gain = shape.head_width**-0.5

    @property
    def scale(self) -> float:
        return 1.0
