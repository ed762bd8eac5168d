"""An equal tuning budget: trials over one space, and what they chose.

Every encoding gets the same number of trials at the same points of the space: learning rate,
learning-rate multiplier of the positional parameters, and the knobs its yaml declares under
`tune` (a list of choices, or {low, high} on a logarithmic scale). The first trial is the untuned
configuration, the others are the first points of the Sobol sequence (Sobol' 1967), so a smaller
budget is a beginning of a larger one. The choice is by validation loss at the training length
alone. It is kept as <root>/<experiment>/tuned/<name>.yaml; posbench brings its own for the demo.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from posbench.config import Config, TuneCommand
from posbench.errors import UserError
from posbench.machine.files import write_text
from posbench.runs import saved_config
from posbench.runs.run_folder import flatten, is_free

LR, MULTIPLIER = "optim.lr", "encoding.optim.lr_multiplier"
SETTINGS = ("corpus", "tokenizer", "model", "encoding", "objective", "train", "optim")

MOST_TRIALS = 10_000

Values = dict[str, Any]  # dotted keys of a configuration


@dataclasses.dataclass
class Trial:
    """One training run: what was changed, and the validation loss in nats; None: it diverged."""

    values: Values
    loss: float | None


@dataclasses.dataclass
class Record:
    """The trials of one encoding and their budget: the content of a tuned record."""

    settings: Values  # the configuration that was tuned
    budget: Values  # what a trial cost and was judged by; equal for encodings that are compared
    trials: list[Trial]
    provenance: dict[str, Any]

    @property
    def chosen(self) -> Trial:
        """The trial of the lowest loss within the budget. Raises UserError where all diverged."""
        within = self.trials[: self.budget["trials"]]
        finite = [trial for trial in within if trial.loss is not None]
        if not finite:
            raise UserError(f"all {len(within)} trials diverged; lower tune.lr")
        return min(finite, key=lambda trial: trial.loss or 0.0)


def points(config: TuneCommand) -> list[Values]:
    """The values of each trial. Raises UserError for a space that is none."""
    tune, base = config.tune, settings(config)
    if not 1 <= tune.trials <= MOST_TRIALS:
        raise UserError(f"tune.trials={tune.trials} must lie in 1 .. {MOST_TRIALS}")
    untuned = {LR: config.optim.lr, MULTIPLIER: base.get(MULTIPLIER, 1.0)}
    low, high = _range("tune.lr", tune.lr)
    axes = {
        LR: (low * config.optim.lr, high * config.optim.lr),
        MULTIPLIER: _range("tune.lr_multiplier", tune.lr_multiplier),
    }
    knobs = config.encoding.get("tune") or {}
    for name in knobs:
        key = f"encoding.{name}"
        if key not in base:
            raise UserError(f"encoding.tune.{name}: the encoding has no such key")
        untuned[key] = base[key]
    from scipy.stats import qmc  # a second to import

    sobol = qmc.Sobol(len(axes) + len(knobs), scramble=False)
    sobol.fast_forward(1)  # its first point is the corner of all lowest values
    trials = [untuned]
    for point in sobol.random(tune.trials - 1) if tune.trials > 1 else []:
        at = dict(zip([*axes, *knobs], map(float, point), strict=True))
        values: Values = {key: _logarithmic(*axes[key], at[key]) for key in axes}
        for name, knob in knobs.items():
            values[f"encoding.{name}"] = _knob(f"encoding.tune.{name}", knob, at[name])
        trials.append(values)
    return trials


def _range(key: str, ends: list[float]) -> tuple[float, float]:
    if len(ends) != 2 or not 0 < ends[0] <= ends[1] < math.inf:
        raise UserError(f"{key}={ends} must be two positive numbers, the lower one first")
    return ends[0], ends[1]


def _logarithmic(low: float, high: float, at: float) -> float:
    """A point between low and high on a logarithmic scale, in four digits."""
    return float(f"{low * (high / low) ** at:.4g}")


def _knob(key: str, knob: Any, at: float) -> Any:
    if isinstance(knob, list) and knob:
        return knob[int(at * len(knob))]
    if isinstance(knob, dict) and set(knob) == {"low", "high"}:
        return _logarithmic(*_range(key, [knob["low"], knob["high"]]), at)
    raise UserError(f"{key}={knob} must be a list of choices or {{low: .., high: ..}}")


def settings(config: Config) -> Values:
    """The settings that a tuned choice is valid for: all that training depends on, dotted keys."""
    tree = dataclasses.asdict(config)
    parts = {part: tree[part] for part in SETTINGS}
    parts["encoding"] = {k: v for k, v in parts["encoding"].items() if k != "tune"}
    return {key: value for key, value in flatten(parts).items() if not is_free(key)}


def changed(config: Config, values: Values) -> Config:
    """The configuration with some dotted keys replaced."""
    made = copy.deepcopy(config)
    made.optim.lr = values.get(LR, made.optim.lr)
    for key, value in values.items():
        if key == LR:
            continue
        _, *groups, last = key.split(".")
        place = made.encoding
        for group in groups:
            place[group] = place.get(group) or {}
            place = place[group]
        place[last] = value
        if key == MULTIPLIER:
            _multiply_parts(made.encoding, value)
    return made


def _multiply_parts(encoding: Values, multiplier: float) -> None:
    """The parts of a mix that have an optimizer group of their own."""
    for value in encoding.values():
        for part in value.values() if isinstance(value, dict) else []:
            if isinstance(part, dict) and "_target_" in part and part.get("optim"):
                part["optim"]["lr_multiplier"] = multiplier


def path(config: Config) -> Path:
    """Where the record of this configuration's encoding lies."""
    run = config.run
    return Path(run.root) / run.experiment / "tuned" / f"{run.name}.yaml"


def shipped(config: Config) -> Path:
    """Where posbench's own record lies, if it has one."""
    data = Path(str(resources.files("posbench"))) / "data" / "tuned"
    return data / config.run.experiment / f"{config.run.name}.yaml"


def read(place: Path) -> Record | None:
    """The record in a file, None if there is none. Raises UserError for one that is damaged."""
    if not place.is_file():
        return None
    try:
        loaded = saved_config.read(place)
        loaded.pop("chosen", None)
        trials = [Trial(**trial) for trial in loaded.pop("trials")]
        return Record(trials=trials, **loaded)
    except (TypeError, AttributeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{place}: not a record of posbench tune ({reason})") from error


def write(place: Path, record: Record) -> None:
    row = dataclasses.asdict(record)
    if any(trial.loss is not None for trial in record.trials[: record.budget["trials"]]):
        row["chosen"] = record.chosen.values  # for the reader; it follows from the trials
    write_text(place, OmegaConf.to_yaml(OmegaConf.create(row)))


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The tuned values that a run used, for its provenance."""

    trials: int
    budget: Values
    chosen: Values
    untuned: Values  # the same keys before


def applied(config: Config) -> tuple[Config, Tuning | None]:
    """The configuration with its tuned values, under tuned=true or auto, and these values.

    Raises UserError under tuned=true where there is no finished record for this very set-up.
    """
    asked = config.tuned.lower()
    if asked not in ("true", "false", "auto"):
        raise UserError(f"tuned={config.tuned}: choose true, false or auto")
    if asked == "false":
        return dataclasses.replace(config, tuned=asked), None
    reasons = []
    for place in (path(config), shipped(config)):
        record = read(place)
        if record is None:
            continue
        if differing := differences(record.settings, settings(config)):
            reasons.append(f"{place} is of another set-up: {', '.join(differing)}")
        elif len(record.trials) < record.budget["trials"]:
            reasons.append(f"{place}: {len(record.trials)} of {record.budget['trials']} trials")
        else:
            return _apply(config, record)
    if asked == "auto":
        return dataclasses.replace(config, tuned="false"), None
    why = "; ".join(reasons) or f"{path(config)}: there is no such record"
    raise UserError(f"tuned=true: {why}; run posbench tune, or leave tuned=true out")


def _apply(config: Config, record: Record) -> tuple[Config, Tuning]:
    chosen, before = record.chosen.values, record.trials[0].values
    tuning = Tuning(record.budget["trials"], record.budget, chosen, before)
    return changed(dataclasses.replace(config, tuned="true"), chosen), tuning


def differences(there: Values, asked: Values) -> list[str]:
    absent = {MULTIPLIER: 1.0}
    return [
        f"{key} ({there.get(key)} there, {asked.get(key)} asked)"
        for key in there | asked
        if there.get(key, absent.get(key)) != asked.get(key, absent.get(key))
    ]


def label(values: Values, learns: bool = True) -> str:
    """ "lr 0.0062, positional ×3.1, k 16"; no multiplier where the encoding learns nothing."""
    names = {LR: "lr ", MULTIPLIER: "positional ×"}
    shown = []
    for key, value in values.items():
        if key == MULTIPLIER and not learns:
            continue
        name = names.get(key, f"{key.removeprefix('encoding.')} ")
        shown.append(f"{name}{value:.3g}" if isinstance(value, float) else f"{name}{value}")
    return ", ".join(shown)
