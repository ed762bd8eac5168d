"""Settings that other Hydra applications have and posbench does not: refused, with what to use.

Checked before a job begins, so that no setting is silently without effect.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from posbench.config import SCHEMAS, known_keys
from posbench.errors import UserError, nearest

INSTEAD = "a run's files go to run.root, and relative paths begin where posbench was started"
WHOLE = ("experiment", "scale")  # groups of yaml files that say `# @package _global_`


def require_ours(hydra: Any) -> None:
    """Raise UserError for a setting of Hydra's that would move files, or would do nothing.

    Its folders may be set where Hydra writes files of its own: hydra.output_subdir, a log.
    """
    plain: Any = OmegaConf.to_container(hydra, resolve=False)
    handlers = (plain["job_logging"] or {}).get("handlers") or {}
    moved = {
        "hydra.run.dir": plain["run"]["dir"] != ".",
        "hydra.sweep.dir": plain["sweep"]["dir"] not in (".", "${home:${run.root}}"),
        "hydra.sweep.subdir": plain["sweep"]["subdir"] != ".",
    }
    if plain["output_subdir"] is not None or any("filename" in h for h in handlers.values()):
        moved = {}
    moved["hydra.job.chdir"] = plain["job"]["chdir"]
    if found := [key for key, is_moved in moved.items() if is_moved]:
        raise UserError(f"{', '.join(found)}: leave it out and set run.root; {INSTEAD}")
    if plain["verbose"] and not handlers:
        raise UserError(
            "hydra.verbose: there is no log to see it in; add hydra/job_logging=stdout"
        )
    params = set(plain["sweeper"].get("params") or {})
    given = {word.partition("=")[0].lstrip("+") for word in plain["overrides"]["task"]}
    if plain["mode"] != RunMode.MULTIRUN and (unused := sorted(params - given)):
        said = f"hydra.sweeper.params: {', '.join(unused)} as set there only with -m"
        print(f"note: {said}", file=sys.stderr)


def require_placed(node: DictConfig) -> None:
    """Inside a job: raise UserError for a yaml whose keys lie where posbench does not read."""
    known = {key.partition(".")[0] for schema in SCHEMAS for key in known_keys(schema)}
    for key in map(str, node):
        if key not in known | {"hydra"}:
            for file, package, header, config in _composed():
                if package.partition(".")[0] == key:
                    raise UserError(f"{file}: {_line(header)}; now its keys are below {key}")
                if not package and key in config:
                    raise UserError(
                        f"{file}: {key}: there is no such key{nearest(key, known)} at the top, "
                        "where its line `# @package _global_` puts it"
                    )


def _line(header: str | None) -> str:
    wanted = "`# @package _global_`"
    if header is None:
        return f"its first line must be {wanted}, before any other comment"
    return f"its line `# @package {header}` must be {wanted}"


def _composed() -> Iterator[tuple[str, str, str | None, Any]]:
    """For each yaml of this job: file, package, the package in its header, and its content."""
    loader, job = GlobalHydra.instance().config_loader(), HydraConfig.get()
    words = [*job.overrides.hydra, *job.overrides.task]
    words = [word for word in words if not word.startswith("hydra.mode=")]
    listed = loader.compute_defaults_list(job.job.config_name, words, RunMode.RUN)
    for each in listed.defaults:
        if each.config_path is None or each.config_path.startswith("hydra/"):
            continue
        found = loader.repository.load_config(each.config_path)  # type: ignore[attr-defined]
        if found is not None:
            file = f"{found.path.removeprefix('file://')}/{each.config_path}.yaml"
            yield file, each.package or "", found.header["package"], found.config


def misplaced_yaml(group: str, name: str) -> str:
    """ "; FILE is not where Hydra looks" for a yaml of this name in the user's own folder."""
    given = [word.partition("=")[2] for word in sys.argv if word.startswith("--config-dir=")]
    for folder in map(Path, given):
        for path in sorted(folder.rglob(f"{glob.escape(name)}.y*ml")):
            return f"; there is {path}: Hydra looks for {folder / group / name}.yaml"
    return ""
