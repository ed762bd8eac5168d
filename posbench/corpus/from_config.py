"""From a configuration to the corpus that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posbench.config import Config, targets
from posbench.corpus.cache import Corpus, prepare
from posbench.corpus.tokenizer import Tokenizer
from posbench.errors import UserError
from posbench.objectives import objective


def build_corpus(config: Config, say: Callable[[str], None] = lambda what: None) -> Corpus:
    """The tokenized corpus, from the cache or made now, which `say` is told. Raises UserError."""
    source, tokenizer = _make(config.corpus, "corpus"), _make(config.tokenizer, "tokenizer")
    return prepare(source, tokenizer, say=say, mask=objective(config).masks)


def _make(settings: dict[str, Any], group: str) -> Any:
    arguments = dict(settings)
    made = targets.find_class(arguments, group)
    if not _is_source(made) if group == "corpus" else not issubclass(made, Tokenizer):
        raise UserError(
            f"{group}._target_={targets.class_name(made)} is not a {group} that posbench can use"
        )
    targets.check_arguments(made, arguments, group)
    with targets.making(made, group):
        return made(**arguments)


def _is_source(made: type) -> bool:
    return all(callable(getattr(made, method, None)) for method in ("identity", "load"))
