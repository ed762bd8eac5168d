"""Data sets of the Hugging Face hub, by name; or a local folder of the same layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posbench.corpus.sources.base import SPLITS, Document, fingerprint, split
from posbench.errors import UserError
from posbench.machine import paths

OWN = {name: name for name in SPLITS}


class Hub:
    """One document a row, of a data set that `datasets.load_dataset` knows.

    path, subset, revision: as `load_dataset` takes them. Pin a revision for a text that cannot
        change: what is in the cache is not compared with the hub again.
    text_field: the column of the text.
    splits: ours -> the data set's. train alone: that one is dealt out by the rule of
        `base.split`. None given: its own if it has all three, else train alone.
    limit: at most so many rows of each split; none: all.
    words: whether spaces part words in it.
    """

    def __init__(
        self,
        path: str,
        subset: str | None,
        revision: str | None,
        text_field: str,
        splits: Mapping[str, str] | None,
        limit: int | None,
        name: str,
        words: bool = False,
    ) -> None:
        self.path = paths.expanded("corpus.path", path)
        self.subset = subset
        self.revision = revision
        self.text_field = text_field
        self.splits = dict(splits or {})
        if self.splits and set(self.splits) not in (set(SPLITS), {"train"}):
            raise UserError(
                f"corpus.splits={self.splits}: name train, validation and test, or train alone"
            )
        self.limit = limit
        self.words = words
        self.name = name
        self.left_out: Counter[str] = Counter()

    def identity(self) -> dict[str, Any]:
        other = ("name", "words", "left_out")
        chosen = {key: value for key, value in vars(self).items() if key not in other}
        folder = Path(self.path)
        files = {
            p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()
        }
        return {"kind": type(self).__name__, **chosen, "files": fingerprint(files)}

    def load(self) -> dict[str, list[Document]]:
        self.left_out.clear()
        loaded = self._load()
        chosen = self.splits or (OWN if set(SPLITS) <= set(loaded) else {"train": "train"})
        if set(chosen) == {"train"}:
            return split(self._documents(loaded, chosen["train"]))
        return {ours: self._documents(loaded, chosen[ours]) for ours in SPLITS}

    def documents(self, split_name: str, rows: Sequence[str]) -> Iterable[Document]:
        """The documents in the rows of a split."""
        for number, text in enumerate(rows):
            yield Document(f"{split_name}:{number}", text)

    def _documents(self, loaded: Mapping[str, Any], split_name: str) -> list[Document]:
        if split_name not in loaded:
            raise self._error(f"no split {split_name!r}, it has {', '.join(loaded)}")
        rows = loaded[split_name]
        if self.text_field not in rows.column_names:
            raise self._error(
                f"no column corpus.text_field={self.text_field}, "
                f"it has {', '.join(rows.column_names)}"
            )
        texts = rows.select_columns([self.text_field])[: self.limit][self.text_field]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise self._error(f"column corpus.text_field={self.text_field} is not all text")
        found = list(self.documents(split_name, [text or "" for text in texts]))
        kept = [document for document in found if document.text.strip()]
        self.left_out["documents without text left out"] += len(found) - len(kept)
        return kept

    def _load(self) -> Mapping[str, Any]:
        import datasets  # type: ignore[import-untyped]  # two seconds: only if not in the cache

        try:
            loaded: Mapping[str, Any] = datasets.load_dataset(
                self.path, self.subset, revision=self.revision
            )
        except Exception as error:  # the hub's client raises a dozen unrelated classes
            raise self._error(f"{type(error).__name__}: {_first_line(error)}") from error
        return loaded

    def _error(self, what: str) -> UserError:
        subset = f" (subset {self.subset})" if self.subset else ""
        return UserError(f"corpus.path={self.path}{subset}: cannot load it: {what}")


class WikiText(Hub):
    """WikiText's rows are lines; its documents begin at the headings of level one."""

    def documents(self, split_name: str, rows: Sequence[str]) -> Iterable[Document]:
        starts = [n for n in range(len(rows)) if _is_title(rows, n)]
        for start, end in zip([0, *starts], [*starts, len(rows)], strict=True):
            title = rows[start].strip(" =\n") if start < len(rows) else ""
            yield Document(f"{split_name}:{start} {title}", "".join(rows[start:end]))


def _is_title(rows: Sequence[str], n: int) -> bool:
    """` = Title = ` between blank rows; ` = = Section = = ` is none."""
    words = rows[n].split()
    single = len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=" != words[-2]
    return single and not any(rows[m].strip() for m in (n - 1, n + 1) if 0 <= m < len(rows))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]
