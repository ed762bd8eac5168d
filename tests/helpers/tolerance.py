"""How far apart two right computations of one number may be. The only place that says it.

Equality to the bit is asserted of what is done twice in the same way: the same shapes, threads and
kernels, on one machine. Everything else (other batches, a sum shared out, another kernel, another
instruction set) adds up in another order, with or without fused products: a number that lies
`terms` roundings from what was given is off by at most terms * eps / 2 of the size of what is
added up (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2), and two such
numbers are apart by at most twice that. Never from what one processor happened to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from posbench.model.transformer import Transformer

PAIRS = 2**19  # the most that a gradient of these tests adds up: queries x keys x heads x batch
ROW = 2**8  # the most that an output does: the products of a head, the keys of a row


def relative(dtype: torch.dtype, terms: float) -> float:
    """Of the size of what is added up."""
    return terms * torch.finfo(dtype).eps


EXACT = relative(torch.float64, PAIRS)
SINGLE = relative(torch.float32, ROW)
HALF = relative(torch.bfloat16, 2)  # of products added up in float32: a weight and a result stored
FORMULA = relative(torch.float64, 2**12)  # of an angle: its rounding grows with its thousands
ULPS = relative(torch.float64, 64)  # of a few operations on numbers of size one


def close(actual: Any, expected: Any, dtype: torch.dtype, terms: float) -> None:
    """Assert that they are the same but for roundings of dtype, beside the largest entry."""
    one, other = (np.asarray(x, dtype=np.float64) for x in (actual, expected))
    limit = relative(dtype, terms)
    np.testing.assert_allclose(one, other, rtol=0, atol=limit * float(np.abs(other).max()))


def of_model(model: Transformer, length: int) -> int:
    """Roundings between a token and its loss: every sum on the way, one after another.

    A layer's norm, its queries, a logit, the softmax, the values, the output; then the same of
    its feed-forward part; and the logits of the vocabulary with their softmax. What a layer gets
    is of size one (its norm sees to it), so that a rounding is not enlarged on the way.
    """
    width, layers = model.shape.width, [*model.layers]
    wide = layers[0].get_parameter("feed_forward_in.weight").shape[0]
    layer = 6 * width + 2 * length + wide
    return len(layers) * layer + 2 * width + model.tokens.num_embeddings


def training(model: Transformer, length: int, steps: int, dtype: torch.dtype) -> float:
    """Of the loss after so many steps: each adds its roundings to those before.

    In bfloat16 products are added up in float32, and eight results of a layer are rounded to
    eight bits: as often up as down, so that their sum grows with the root of their number.
    """
    exact = relative(torch.float32, steps * of_model(model, length))
    if dtype == torch.float32:
        return exact
    return exact + relative(dtype, (8 * len(model.layers)) ** 0.5)
