"""A run's folder, <root>/<experiment>/<name>/seed<seed>, and its files.

config.yaml, provenance.json   written first; the latter has the commit, machine and corpus, and
                               the parts of the training, see training_parts.py
status.json                    running (who, since when), done, failed or interrupted (why)
metrics.jsonl, checkpoints/    training
results.jsonl, losses/         evaluation: typed rows, and the loss of every scored token
summary.json                   what the run cost, written last
error.txt                      the traceback of a failure
tracking_id.txt, wandb/, tensorboard/   a tracker's own, see posbench/tracking
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from posbench import tracking
from posbench.config import Config
from posbench.errors import UserError
from posbench.machine import paths
from posbench.machine.files import clear_temporaries, remove_folder, write_json, write_text
from posbench.runs import saved_config, training_parts

# What may differ between runs that are compared, and when a run is resumed.
FREE = (
    *("run", "dry_run", "tracking", "eval.batch_tokens", "train.checkpoint_every"),
    *("runtime.threads", "runtime.memory_fraction", "runtime.cuda_graphs"),
)


class RunFolder:
    """One run's files, for reading and writing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, config: Config) -> RunFolder:
        run = config.run
        return cls(Path(run.root) / run.experiment / run.name / f"seed{config.seed}")

    @property
    def status(self) -> dict[str, Any]:
        """{"state": ..., "reason": ...}; empty before the first start."""
        return self._json("status.json")

    @property
    def finished(self) -> bool:
        return self.status.get("state") == "done"

    @property
    def summary(self) -> dict[str, Any]:
        return self._json("summary.json")

    @property
    def provenance(self) -> dict[str, Any]:
        return self._json("provenance.json")

    @property
    def parts(self) -> list[training_parts.Part]:
        """The parts of its training. Raises UserError if they are damaged."""
        try:
            return training_parts.from_provenance(self.provenance)
        except ValueError as error:
            raise UserError(f"{self.path / 'provenance.json'}: {error}") from error

    def config(self) -> dict[str, Any]:
        """The saved configuration as plain data. Raises UserError where there is none."""
        loaded = saved_config.read(self._config_file())
        saved_config.require_types(self._config_file(), loaded)
        return loaded

    def typed(self) -> Config:
        """The saved configuration, to build from; see saved_config.py. Raises UserError."""
        return saved_config.typed(self._config_file())

    def _config_file(self) -> Path:
        path = self.path / "config.yaml"
        if not path.is_file():
            raise UserError(f"{self.path}: not a run folder (it has no config.yaml)")
        return path

    def holds(self, config: Config) -> bool:
        """Whether the folder's run has this configuration, except for the keys of FREE."""
        return (self.path / "config.yaml").is_file() and not self._differences(config)

    def why_unfinished(self, config: Config) -> str | None:
        """Why the run of this configuration is not finished; None if it is."""
        differences = self._differences(config) if self.status else {}
        if not self.status or (differences and not self._has_progress):  # it will be replaced
            return "not begun"
        if differences:
            return f"{self.path} holds a run of another configuration ({', '.join(differences)})"
        state, reason = self.status.get("state"), self.status.get("reason")
        if state == "done":
            return None
        if state == "running":
            return f"{self._holder()} is at work on it" if self._held else "was killed"
        return f"{state}: {reason}"

    def record_failure(self, config: Config, error: Exception) -> None:
        """Write a failure that came before `opened` into the folder, unless it has results."""
        if self._has_progress:
            return
        with contextlib.suppress(UserError), self._alone(), self._writing():
            if not self._has_progress:
                self._begin(config, {})
                self._fail(error)

    @contextmanager
    def opened(self, config: Config, provenance: Mapping[str, object]) -> Iterator[None]:
        """Hold the folder's lock; the folder is created, or kept for a run that resumes.

        Raises UserError if another process is at work there, if it holds a run of another
        configuration, corpus or dtype, or if it cannot be written. A run without
        checkpoints and results is replaced.
        """
        with self._alone():
            with self._writing():
                clear_temporaries(self.path)
                if self._has_progress and not config.run.overwrite:
                    self._require_same(config, provenance)
                else:
                    self._begin(config, provenance)
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock. Raises UserError with the holder's name if it is taken."""
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._lock()
            try:
                lock.acquire()
            except Timeout as error:
                raise UserError(f"{self.path}: {self._holder()} is at work on this run") from error
        try:
            yield
        finally:
            lock.release()

    def _lock(self) -> FileLock:
        """Its file is beside the folder, which may be replaced; a process that dies frees it."""
        return FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=0)

    @property
    def _held(self) -> bool:
        try:
            with self._lock():
                return False
        except Timeout:
            return True

    def _holder(self) -> str:
        """The process that status.json names as running, for a message."""
        status = self.status
        if status.get("state") != "running" or "process" not in status:
            return "another process"
        return f"process {status['process']} on {status['host']}, since {status['since']},"

    def _begin(self, config: Config, provenance: Mapping[str, object]) -> None:
        same = self.holds(config) and not config.run.overwrite
        kept = tracking.saved_id(self.path) if same else None
        if self.path.exists():
            remove_folder(self.path)
        self.path.mkdir()
        if kept is not None:  # a run that was killed before its first checkpoint
            (self.path / tracking.ID_FILE).write_text(kept, encoding="utf-8")
        write_json(self.path / "provenance.json", dict(provenance))
        write_text(self.path / "config.yaml", OmegaConf.to_yaml(dataclasses.asdict(config)))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); choose another run.root"
            ) from error

    @property
    def _has_progress(self) -> bool:
        return any((self.path / name).exists() for name in ("checkpoints", "results.jsonl"))

    def _differences(self, config: Config) -> dict[str, tuple[Any, Any]]:
        """Key -> (value there, value asked)."""
        asked, there = flatten(dataclasses.asdict(config)), flatten(self.config())
        if there.get("runtime.dtype") == "auto" != asked["runtime.dtype"]:  # what it came to
            there["runtime.dtype"] = self.provenance.get("dtype", "auto")
        keys = [key for key in asked | there if not is_free(key)]
        return {k: (there.get(k), asked.get(k)) for k in keys if there.get(k) != asked.get(k)}

    def _require_same(self, config: Config, provenance: Mapping[str, object]) -> None:
        ways_out = "give this one another run.name, or replace that one with run.overwrite=true"
        if differences := self._differences(config):
            listed = ", ".join(
                f"{key} ({there} there, {asked} asked)"
                for key, (there, asked) in differences.items()
            )
            if self.finished and all(key.startswith("eval.") for key in differences):
                ways_out = f"score it again with posbench eval {paths.shell_word(self.path)}"
            raise UserError(
                f"{self.path} holds a run of another configuration: {listed}; {ways_out}"
            )
        if self.provenance.get("corpus_hash") != provenance["corpus_hash"]:
            raise UserError(f"{self.path} was begun on another version of the corpus; {ways_out}")
        if self.provenance.get("dtype") != provenance["dtype"]:
            raise UserError(
                f"{self.path} was begun in {self.provenance.get('dtype')}, this machine's "
                f"runtime.dtype is {provenance['dtype']}; set it, or {ways_out}"
            )

    def begin_part(self, step: int, now: Mapping[str, object]) -> list[str]:
        """Record that training resumes after a step in a process of this provenance.

        Returns what changed since the last part, in words.
        """
        told, before = self.provenance, self.parts
        after = training_parts.resumed(before, step, now)
        write_json(self.path / "provenance.json", {**told, "parts": after})
        earlier = [part for part in before if part["from"] < step]
        return training_parts.changes(earlier[-1], after[-1]) if earlier else []

    def end_part(self, step: int) -> None:
        """Record the last step of the training's last part."""
        *earlier, last = self.parts
        ended = [*earlier, {**last, "to": step}]
        write_json(self.path / "provenance.json", {**self.provenance, "parts": ended})

    def write_status(self, state: str, reason: str | None = None, **more: object) -> None:
        write_json(self.path / "status.json", {"state": state, "reason": reason, **more})

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Write the status: running, then done, interrupted or failed, with error.txt."""
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        self.write_status("running", process=os.getpid(), host=platform.node(), since=since)
        (self.path / "error.txt").unlink(missing_ok=True)
        try:
            yield
        except KeyboardInterrupt as stop:
            self.write_status("interrupted", str(stop) or "interrupted")
            raise
        except Exception as error:
            with contextlib.suppress(OSError):  # on a full disk: the error itself is what to say
                self._fail(error)
            raise
        self.write_status("done")

    def _fail(self, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        write_text(self.path / "error.txt", trace)
        self.write_status(
            "failed", str(error).splitlines()[0] if str(error) else type(error).__name__
        )

    def _json(self, name: str) -> dict[str, Any]:
        if not (self.path / name).is_file():
            return {}
        try:
            loaded = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path / name}: not valid JSON ({error})") from error
        if not isinstance(loaded, dict):
            raise UserError(f"{self.path / name}: not an object with keys")
        return loaded


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one dictionary with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def is_free(key: str) -> bool:
    """Whether a dotted key may differ between runs whose numbers are compared."""
    return any(key == free or key.startswith(f"{free}.") for free in FREE)
