"""posbench published: the tables of the papers, listed; with name=... one of them in full."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from posbench import config as schemas
from posbench import published
from posbench.hydra_app.command import command
from posbench.published import Curve, Publication
from posbench.terminal.tables import Fitted

LEGEND = "rows: a number each, except where a table has other columns than perplexity by length"
HEADERS = ("name", "corpus", "trained at", "encodings", "lengths", "rows")


@command("published")
def main(node: DictConfig) -> None:
    asked = schemas.load(node, schemas.PublishedCommand)
    console = Console()
    if asked.name is None:
        console.print(_list([published.load(name) for name in published.names()]))
        return
    publication = published.load(asked.name)
    console.print(publication.source, style="bold", highlight=False)
    for table in _tables(publication):
        console.print(table)


def _list(publications: Sequence[Publication]) -> Fitted:
    rows: list[list[str | Text]] = [
        [
            Text.assemble(found.name, "\n", (_origin(found), "dim")),
            "\n".join(found.values("corpus")),
            "\n".join(sorted(found.values("train_length"), key=int)),
            "\n".join(found.values("encoding") or found.values("extension")),
            f"{lengths[0]:,}–{lengths[-1]:,}" if (lengths := found.lengths()) else "no curve",
            str(len(found.rows)),
        ]
        for found in publications
    ]
    texts, spare = HEADERS[:-1], ("rows", "lengths", "trained")
    return Fitted(
        HEADERS, [rows], "Published tables", LEGEND, spare=spare, prose=("name",), left=texts
    )


def _origin(publication: Publication) -> str:
    """The paper, and the protocols of its evaluation where they are told."""
    return "; ".join([publication.source, *publication.values("protocol")])


def _tables(publication: Publication) -> list[Fitted]:
    """A table for each corpus, training length, protocol and model size."""
    if not publication.curves:
        return [_as_it_stands(publication)]
    groups: dict[tuple[object, ...], list[Curve]] = defaultdict(list)
    for one in publication.curves:
        key = (one.corpus, one.part, one.train_length, one.protocol, one.parameters)
        groups[key].append(one)
    return [_by_length(curves) for curves in groups.values()]


def _by_length(curves: Sequence[Curve]) -> Fitted:
    """Rows of lengths, columns of encodings: perplexity and its ratio to the training length."""
    first = curves[0]
    title = (
        f"{first.corpus} {first.split}, {first.part}{', ' if first.part else ''}"
        f"{first.parameters / 1e6:,.0f}M parameters, "
        f"trained at {first.train_length:,}, {first.protocol}"
    )
    rows = list[list[str]]()
    encodings = list(dict.fromkeys(curve.encoding for curve in curves))
    for length in sorted({length for curve in curves for length in curve.perplexities}):
        having = [curve for curve in curves if length in curve.perplexities]
        cells = [
            " or ".join(dict.fromkeys(_cell(c, length) for c in having if c.encoding == encoding))
            for encoding in encodings
        ]
        origin = ", ".join(dict.fromkeys(curve.table for curve in having))
        rows.append([f"{length:,}", *cells, origin])
    headers, told = ["length", *encodings, "from"], any(curve.table for curve in curves)
    return Fitted(
        headers if told else headers[:-1],
        [rows],
        title,
        "×: ratio to the training length",
        prose=("from",),
        left=("from",),
    )


def _cell(curve: Curve, length: int) -> str:
    """The perplexity with the digits that were published, or what stands there instead."""
    perplexity, ratio = curve.perplexities[length], curve.ratios[length]
    if perplexity is None:
        return curve.printed.get(length, "out of memory")
    text = curve.printed.get(length, f"{perplexity:,.10g}")
    if ratio is None or (length == curve.train_length and ratio == 1):
        return text
    return f"{text} ×{ratio:.3f}" if ratio < 10 else f"{text} ×{ratio:.1f}"


def _as_it_stands(publication: Publication) -> Fitted:
    """The file's own columns, if it has no perplexity by length; constant ones as a line above."""
    kinds = {name: publication.values(name) for name in publication.rows[0] if name != "source"}
    same = [f"{_words(name)} {found[0]}" for name, found in kinds.items() if len(found) == 1]
    columns = [name for name, found in kinds.items() if len(found) > 1]
    headers = [_words(name) for name in columns]
    rows = [[row[name] for name in columns] for row in publication.rows]
    return Fitted(headers, [rows], ", ".join(same), prose=headers[1:], left=headers)


def _words(column: str) -> str:
    return column.replace("_", " ")
