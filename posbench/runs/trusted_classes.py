"""Which classes a config.yaml from a stranger may name.

To import a module is to run it, so a class is looked up in the text of its module first: only
what derives from posbench's Encoding or Tokenizer, or has the methods of a Source, is let through.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

from posbench.errors import UserError

ROOTS = (
    "posbench.encodings.base.Encoding",
    "posbench.corpus.tokenizer.Tokenizer",
    "posbench.objectives.base.Objective",
)
METHODS = {"identity", "load"}  # of a Source


def require(key: str, target: object) -> None:
    """Raise UserError unless target names a class, on the Python path, that posbench can use."""
    parts = target.split(".") if isinstance(target, str) else [""]
    if not all(map(str.isidentifier, parts)) or not _Search().is_usable(".".join(parts)):
        raise UserError(
            f"{key}._target_={target}: no encoding, tokenizer or source that is to be found here, "
            "and a run's configuration may name nothing else; a module of your own must be on "
            "PYTHONPATH"
        )


@dataclass
class _Search:
    """A search from class to base class in the source text of their modules, without imports."""

    seen: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)

    def is_usable(self, target: str) -> bool:
        """Whether the class at a dotted path derives from what posbench uses."""
        if target in ROOTS:
            return True
        module, _, name = target.rpartition(".")
        if not module or target in self.seen:
            return False
        self.seen.add(target)
        return any(map(self.is_usable, self._origins(module, name))) or self.methods >= METHODS

    def _origins(self, module: str, name: str) -> Iterator[str]:
        """The bases of a class, or where a name was imported from."""
        spec = _find(module)
        imported: dict[str, str] = {}
        for node in _statements(spec):
            if isinstance(node, ast.ImportFrom):
                source = _absolute(node, spec)
                imported |= {a.asname or a.name: f"{source}.{a.name}" for a in node.names}
            elif isinstance(node, ast.Import):
                imported |= {a.asname: a.name for a in node.names if a.asname}
            elif isinstance(node, ast.ClassDef) and node.name == name:
                self.methods |= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                for base in map(ast.unparse, node.bases):
                    head, dot, rest = base.partition(".")
                    yield imported.get(head, head if dot else f"{module}.{head}") + dot + rest
                return
        if name in imported:
            yield imported[name]


def _find(module: str) -> ModuleSpec | None:
    """Where a module lies. Unlike importlib's function it does not run the packages around it."""
    path, found, known = None, None, ""
    for part in module.split("."):
        known = f"{known}.{part}".lstrip(".")
        specs = (finder.find_spec(known, path) for finder in sys.meta_path)
        found = next((spec for spec in specs if spec is not None), None)
        if found is None:
            return None
        path = found.submodule_search_locations
    return found


def _statements(spec: ModuleSpec | None) -> list[ast.stmt]:
    """The statements of a module; none if it has no source text."""
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        return []
    try:
        return ast.parse(importlib.util.decode_source(Path(str(spec.origin)).read_bytes())).body
    except (OSError, SyntaxError, ValueError, RecursionError):  # importing would fail, too
        return []


def _absolute(node: ast.ImportFrom, spec: ModuleSpec | None) -> str:
    """The module that an import statement imports from."""
    name = "." * node.level + (node.module or "")
    try:
        return importlib.util.resolve_name(name, spec.parent if spec else None)
    except ImportError:  # from beyond the outermost package
        return ""
