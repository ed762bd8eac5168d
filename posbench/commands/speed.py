"""posbench speed: tokens/s, peak memory and share of the machine's limits; -m sweeps."""

from __future__ import annotations

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench.config import SpeedCommand, SpeedConfig
from posbench.errors import UserError, nearest
from posbench.hydra_app import compose, sweep
from posbench.hydra_app.command import command
from posbench.machine import runtime
from posbench.machine.files import write_json
from posbench.runs.checks import check
from posbench.speed import record, settings, table
from posbench.speed.measure import Cell, measure
from posbench.speed.work import MODES

_measured: list[tuple[SpeedConfig, str, list[Cell]]] = []


@command("speed")
def speed(node: DictConfig) -> None:
    config, console = schemas.load(node, SpeedCommand), Console()
    check(config)
    check_speed(config)
    device = runtime.device(config.runtime.device)
    dtype = runtime.training_dtype(config.runtime.dtype, device)
    if config.train.compile and "train" in config.speed.modes:
        runtime.require_compiler(device)
    runtime.keep_freed_memory()
    threads = table.counted(runtime.set_threads(config.runtime.threads), "thread")
    trained = str(dtype).removeprefix("torch.")
    title = f"Speed and memory: {device.type}, {threads}, training in {trained}"
    subject = settings.subject(config.run.name, node)
    baseline = _baseline(config.speed.baseline)
    path, cells = record.place(config), list[Cell]()
    with console.status("measuring") as status:
        for mode in config.speed.modes:
            for length in config.speed.lengths:
                status.update(f"{config.run.name}: {mode} {length:,}")
                cells.append(measure(subject, baseline, mode, length, device))
                write_json(path, record.record(config, cells, device, dtype))  # so far
    _measured.append((config.speed, title, cells))
    table.show(cells, config.speed, title, console)
    console.print(f"written: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if defects := sum(side.defect for cell in cells for side in cell.sides):
        raise UserError(f"{config.run.name}: {defects} of the measurements failed")


def main() -> None:
    _measured.clear()
    try:
        speed()
    finally:
        if sweep.current.multirun and len(_measured) > 1:
            asked, title, _ = _measured[0]
            cells = [cell for *_, measured in _measured for cell in measured]
            table.show(cells, asked, title, Console(), beside=False)


def _baseline(name: str) -> settings.Subject:
    """The command's configuration with the baseline's encoding. Raises UserError."""
    if name not in (known := compose.names()):
        hint = nearest(name, known)
        raise UserError(f"speed.baseline={name}: there is no such encoding{hint}")
    return settings.subject(name, compose.with_default("speed", name))


def check_speed(config: SpeedCommand) -> None:
    """Raise UserError for what cannot be measured."""
    asked = config.speed
    for key in ("tokens", "vocabulary", "rounds"):
        if getattr(asked, key) < 1:
            raise UserError(f"speed.{key}={getattr(asked, key)} must be at least 1")
    if not 0 <= asked.seconds < float("inf"):
        raise UserError(f"speed.seconds={asked.seconds} must be 0 or more")
    if not asked.lengths or min(asked.lengths) < 1:
        raise UserError(f"speed.lengths={asked.lengths} must name lengths of at least 1")
    for mode in asked.modes or [""]:
        if mode not in MODES:
            raise UserError(f"speed.modes={asked.modes}: choose some of {', '.join(MODES)}")
    for key in ("lengths", "modes"):
        if len(set(getattr(asked, key))) < len(getattr(asked, key)):
            raise UserError(f"speed.{key}={getattr(asked, key)} names one twice")
    if config.eval.targets < 1:
        raise UserError(f"eval.targets={config.eval.targets} must be at least 1")
