"""A run's own configuration, typed, also where an older posbench wrote it."""

from __future__ import annotations

from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from posbench import config as schemas
from posbench.config import Config
from posbench.run_folder import RunFolder


def saved_config(folder: RunFolder) -> Config:
    """Keys that the run's posbench did not know are as they are now.

    Raises UserError where there is none, and omegaconf's errors for one that is none of a run.
    """
    saved: dict[str, Any] = {"tuned": "false", **folder.config()}
    defaults = resources.files("posbench.conf") / "eval" / "default.yaml"
    known = OmegaConf.create(defaults.read_text(encoding="utf-8"))
    saved["eval"] = OmegaConf.merge(known, saved.get("eval") or {})
    return schemas.load(OmegaConf.create(saved), Config)
