"""Command lines at random, of right and wrong values; sizes that are taken stay small."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from omegaconf import OmegaConf

from posbench import config as schemas
from tests.helpers.places import ROOT

CONF = ROOT / "conf"
Words = st.SearchStrategy[list[str]]

# A value that is right for these would take long, start processes or reach for a network.
FIXED = (
    *("run", "run.root", "runs", "folder", "corpus", "tokenizer", "encoding", "extension"),
    *("train.compile", "tracking.wandb", "speed.seconds", "figures"),
)
COUNTS = ("train.steps", "train.accumulate", "speed.rounds", "report.draws")
SMALL = st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(-2, 70))
HUGE = st.sampled_from([10**4, 2**31, 10**9, 2**62, 2**63, -(2**63) - 1, 10**30])
NUMBERS = st.one_of(
    st.sampled_from(["nan", "inf", "-inf", "-0.0", "1e-30", "1e300", "0.5", "-1e-3", "1e999"]),
    st.floats(-2, 2).map(str),
)
TEXT = st.one_of(
    st.sampled_from(
        ["", " ", "null", "true", "off", "???", "[]", "{}", "[[1]]", "{a:1}", "[null]"]
    ),
    st.sampled_from(
        ["''", "'a b'", "'\\''", "é", "国", "'\u202e'", "'\x1b[31m'", "'\0'", "-x", "..", "/"]
    ),
    st.sampled_from(
        ["${seed}", "${nowhere}", "${oc.env:HOME}", "'${'", "'\\${x}'", "$x", "a,b", "a:b"]
    ),
    st.sampled_from(
        ["choice(1,2)", "range(3)", "glob(*)", "'[red]'", "'%s'", "'~nobody/x'", "(", "'"]
    ),
    st.text(max_size=6).map(lambda text: "'" + text.replace("\\", "").replace("'", "") + "'"),
)
NAMES = {
    "encoding": sorted(path.stem for path in CONF.glob("encoding/*.yaml")),
    "extension": ["null", *sorted(path.stem for path in CONF.glob("extension/*.yaml"))],
    "protocol": ["fixed_targets", "nonoverlapping", "sliding", "stream", "fixed"],
    "probe": ["passkey", "copy", "recall"],
}


def _listed(items: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.lists(items, max_size=4).map(lambda chosen: f"[{','.join(map(str, chosen))}]")


LISTS = st.one_of(
    _listed(SMALL),
    _listed(st.sampled_from([8, 16, 24, 32])),
    _listed(st.sampled_from(NAMES["protocol"])),
    _listed(st.sampled_from(NAMES["probe"])),
    _listed(st.one_of(SMALL, HUGE, NUMBERS)),
)
RIGHT: dict[object, st.SearchStrategy[object]] = {
    int: SMALL,
    float: NUMBERS,
    bool: st.sampled_from(["true", "false", "1"]),
    str: st.sampled_from(["auto", "cpu", "cuda", "reference", "fused", "blocked", "float32", "a"]),
}


def keys(schema: type, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every dotted key of a schema that takes a value, with its type."""
    for name, kind in typing.get_type_hints(schema).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from keys(kind, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in FIXED:
            yield f"{prefix}{name}", kind


def value(key: str, kind: object) -> st.SearchStrategy[str]:
    """Of the right type more often than not."""
    right = RIGHT.get(kind, LISTS if typing.get_origin(kind) is list else SMALL)
    wrong = [SMALL, NUMBERS, TEXT, LISTS]
    wrong += [] if key in COUNTS else [HUGE]
    return st.one_of(right, right, right, st.one_of(*wrong)).map(str)


def overrides(schema: type, most: int = 2) -> Words:
    """Some keys of a schema, each with a value."""
    known = [(key, kind) for key, kind in keys(schema)]
    one = st.sampled_from(known).flatmap(
        lambda found: value(*found).map(lambda word: f"{found[0]}={word}")
    )
    return st.lists(one, max_size=most)


def of_group(group: str) -> Words:
    """A choice of a group, and some of its arguments."""
    return st.sampled_from(NAMES[group]).flatmap(lambda name: _arguments(group, name))


def _arguments(group: str, name: str) -> Words:
    path = CONF / group / f"{name}.yaml"
    loaded = OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}
    assert isinstance(loaded, dict)
    known = [str(key) for key in loaded if key != "defaults"] + ["nothing"]
    kinds = {key: type(loaded.get(key)) for key in known}
    one = st.sampled_from(known).flatmap(
        lambda key: value(key, kinds[key]).map(lambda word: f"{group}.{key}={word}")
    )
    return st.lists(one, max_size=2).map(lambda words: [f"{group}={name}", *words])


def sources(text: Path) -> Words:
    """Corpora and tokenizers, all small: files that are there, and that are not."""
    paths = [text, text / "0.txt", text / "*.txt", "/nowhere", "''", "'~nobody'", ".", "'a\0'", 5]
    path = st.sampled_from([f"corpus.path={path}" for path in paths])
    other = st.sampled_from(["corpus.field=5", "corpus.words=maybe", "corpus.name=''", "corpus=x"])
    kind = st.sampled_from(["tokenizer=bytes", "tokenizer=bpe", "tokenizer=x"])
    size = st.sampled_from([257, 300, 256, -1, 2**31, 2**62, 10**30, "1.5", "null", "''", "[1]"])
    return st.one_of(
        st.just([]),
        st.tuples(path).map(list),
        st.tuples(other).map(list),
        st.tuples(kind).map(list),
        size.map(lambda n: ["tokenizer=bpe", f"tokenizer.vocabulary={n}"]),
    )


TARGETS = st.sampled_from(
    ["os.system", "builtins.dict", "5", "null", "", "a.b", "'.'", "[a]", "''"]
)
CLASSES = st.tuples(st.sampled_from(["encoding", "corpus", "tokenizer"]), TARGETS).map(
    lambda found: [f"{found[0]}._target_={found[1]}"]
)
GROUPS = ["encoding", "corpus", "tokenizer", "model", "optim", "train", "+new", "eval"]
WHOLE = st.tuples(st.sampled_from(GROUPS), TEXT).map(lambda found: [f"{found[0]}={found[1]}"])


def _together(*parts: Words) -> Words:
    return st.tuples(*parts).map(lambda found: [word for part in found for word in part])


def train(text: Path) -> Words:
    """For `posbench train`."""
    rare = st.one_of(st.just([]), st.just([]), st.just([]), st.just([]), CLASSES, WHOLE)
    return _together(of_group("encoding"), overrides(schemas.Config), sources(text), rare)


def score() -> Words:
    """For `posbench eval` of a RoPE run."""
    return _together(of_group("extension"), overrides(schemas.EvalCommand))


def report() -> Words:
    return overrides(schemas.ReportCommand)


def describe() -> Words:
    return _together(of_group("encoding"), overrides(schemas.DescribeCommand))


def speed() -> Words:
    return _together(of_group("encoding"), overrides(schemas.SpeedCommand))


ODD = st.one_of(
    st.sampled_from([None, True, -1, 0, 1, 2**31, 10**30, 0.5, "", "a", "\x1b[31m", "</script>"]),
    st.sampled_from([[], {}, [1], {"a": 1}, ["a", None], float("nan"), float("inf"), "\ud800"]),
    st.text(max_size=5),
)


def spoiled(known: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A tree of values in which one, at any depth, is another."""

    def change(path: tuple[str, ...], value: object) -> dict[str, Any]:
        made = copy.deepcopy(known)
        place = made
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return made

    return st.builds(change, st.sampled_from(list(_paths(known))), ODD)


def _paths(tree: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in _paths(value))
