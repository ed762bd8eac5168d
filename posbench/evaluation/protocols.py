"""Protocols of evaluation: which tokens are scored, and what context each one has.

Every one scores a token at most once, never crosses the end of a document, and scores the same
tokens at every length, so that a model without context has the same perplexity at each.
"""

from __future__ import annotations

from posbench.config import EvalConfig
from posbench.errors import UserError
from posbench.evaluation.causal import FixedTargets, Nonoverlapping, Sliding, Stream
from posbench.evaluation.masked import MaskedFixedTargets, MaskedNonoverlapping
from posbench.evaluation.windows import Documents, EvaluationProtocol

PROTOCOLS: dict[str, type[EvaluationProtocol]] = {
    "fixed_targets": FixedTargets,
    "nonoverlapping": Nonoverlapping,
    "sliding": Sliding,
    "stream": Stream,
}
MASKED: dict[str, type[EvaluationProtocol]] = {  # of two-sided models
    "fixed_targets": MaskedFixedTargets,
    "nonoverlapping": MaskedNonoverlapping,
}


def protocol(name: str, config: EvalConfig, two_sided: bool = False) -> EvaluationProtocol:
    """A protocol by its name, for a causal or a two-sided model. Raises UserError."""
    if name not in PROTOCOLS:
        raise UserError(f"eval.protocols: {name} is unknown; choose {', '.join(PROTOCOLS)}")
    if not two_sided:
        return PROTOCOLS[name](config)
    if name not in MASKED:
        raise UserError(
            f"eval.protocols: {name} is for causal models; a masked one has {', '.join(MASKED)}"
        )
    return MASKED[name](config)


def check(config: EvalConfig, documents: Documents, two_sided: bool = False) -> None:
    """Raise UserError now for what would fail after training."""
    if not config.lengths or min(config.lengths) < 1:
        raise UserError(f"eval.lengths={config.lengths} must name lengths of at least 1")
    if len(set(config.lengths)) < len(config.lengths):
        raise UserError(f"eval.lengths={config.lengths} names a length twice")
    if config.batch_tokens < 1:
        raise UserError(f"eval.batch_tokens={config.batch_tokens} must be at least 1")
    if not config.protocols:
        raise UserError(f"eval.protocols=[]: name at least one of {', '.join(PROTOCOLS)}")
    if len(set(config.protocols)) < len(config.protocols):
        raise UserError(f"eval.protocols={config.protocols} names a protocol twice")
    for name in config.protocols:
        protocol(name, config, two_sided).windows(documents, max(config.lengths))


def left_out(config: EvalConfig, documents: Documents) -> dict[str, int]:
    """How many documents every protocol passes over, by kind."""
    needed = max(config.lengths) + 1
    short = sum(len(document) < needed for document in documents)
    return {f"test documents under {needed:,} tokens not scored": short}
