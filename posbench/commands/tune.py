"""posbench tune: the same number of trials for each encoding, and what each one chose."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench.config import TuneCommand
from posbench.hydra_app import launcher, sweep
from posbench.hydra_app.command import command
from posbench.hydra_app.sweep import Job, SweepHooks
from posbench.model import from_config
from posbench.runs import trials, tuning
from posbench.runs.run import validated
from posbench.runs.tuning import Record
from posbench.terminal.tables import Fitted

_done: list[TuneCommand] = []  # in this process


def _before(jobs: Sequence[Job]) -> bool:
    sweep.check(jobs, lambda node: validated(_config(node)))
    sweep.check_places(jobs, lambda node: tuning.path(_config(node)))
    return True


@command("tune", SweepHooks(_before, lambda node: trials.why_unfinished(_config(node))))
def tune(node: DictConfig) -> None:
    launcher.enter_folder()
    config = _config(node)
    trials.tune(config, Console())
    _done.append(config)


def main() -> None:
    _done.clear()
    try:
        tune()
    finally:
        asked = [_config(job.node) for job in sweep.current.jobs] or _done
        done = [config for config in asked if trials.why_unfinished(config) is None]
        records = [(config, tuning.read(tuning.path(config))) for config in done]
        if found := [(config, record) for config, record in records if record is not None]:
            show(found, Console())


def _config(node: DictConfig) -> TuneCommand:
    return schemas.load(node, TuneCommand)


def show(tuned: list[tuple[TuneCommand, Record]], console: Console) -> None:
    """Print what each encoding chose, with the validation losses untuned and tuned."""
    rows = list[list[str]]()
    for config, record in tuned:
        chosen = record.chosen
        losses = [record.trials[0].loss, chosen.loss]
        shown = ["diverged" if loss is None else f"{loss:.4f}" for loss in losses]
        told = tuning.label(chosen.values, from_config.learns(config))
        rows.append([config.run.name, told, *shown, str(record.budget["trials"])])
    headers = ["encoding", "chosen", "untuned loss", "tuned loss", "trials"]
    title = "chosen by validation loss at the training length"
    caption = "posbench train tuned=true uses these"
    console.print(Fitted(headers, [rows], title, caption, prose=headers[1:2], left=headers[1:2]))
