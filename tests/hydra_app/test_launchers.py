"""Twelve jobs at a time, one of which diverges: the same results as one after another."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from torch import Tensor

from posbench.encodings.alibi import ALiBi
from posbench.errors import UserError
from posbench.evaluation import results
from posbench.hydra_app import launcher
from posbench.machine import job, runtime
from posbench.machine.files import read_rows
from posbench.runs.run_folder import RunFolder
from tests.helpers.places import ROOT
from tests.helpers.toy import train

Output = pytest.CaptureFixture[str]
GOOD = "nope sinusoidal learned shaw transformer_xl t5 deberta rope alibi fire kerple_log".split()
NAMES = [*GOOD, "diverges"]
# The first step makes the slopes infinite: only the second can find out.
DIVERGES = """_target_: posbench.encodings.alibi.ALiBi
slopes: learned
optim:
  lr_multiplier: 1.0e+50
"""


def needs(plugin: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec("hydra_plugins") is None or (
        importlib.util.find_spec(f"hydra_plugins.{plugin}") is None
    )
    return pytest.mark.skipif(missing, reason=f"{plugin} is not installed")


def sweep(root: Path, *words: str) -> int:
    """The exit code of a sweep over NAMES, each with a tokenizer to be trained and kept."""
    (root / "conf" / "encoding").mkdir(parents=True)
    (root / "conf" / "encoding" / "diverges.yaml").write_text(DIVERGES)
    asked = f"encoding={','.join(NAMES)} tokenizer=bpe tokenizer.vocabulary=300"
    return train(root, asked, *words, f"-m --config-dir {root}/conf")


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same jobs one after another in this process."""
    root = tmp_path_factory.mktemp("serial")
    assert sweep(root) == 1
    return root


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def workers() -> Iterator[None]:
    """joblib's are kept for the next call, with the environment of the first: none may stay."""
    loky = pytest.importorskip("joblib.externals.loky")
    loky.get_reusable_executor().shutdown(wait=True)
    yield
    loky.get_reusable_executor().shutdown(wait=True)


def folder(root: Path, name: str) -> Path:
    return root / "outputs" / "default" / name / "seed1"


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_rows(run / "metrics.jsonl")]


def require_same(root: Path, serial: Path) -> None:
    """To the bit: training losses, likelihoods, what failed, and how."""
    for name in GOOD:
        mine, theirs = folder(root, name), folder(serial, name)
        assert RunFolder(mine).finished, RunFolder(mine).status
        assert losses(mine) == losses(theirs) != []
        scored = [[(r.length, r.nll) for r in results.read(run)] for run in (mine, theirs)]
        assert scored[0] == scored[1] != []
    for run in (folder(root, "diverges"), folder(serial, "diverges")):
        assert RunFolder(run).status["state"] == "failed"
        assert "Diverged" in (run / "error.txt").read_text()


def require_one_entry(cache: Path) -> None:
    """The token cache was made once and is whole: nothing half-written lies about."""
    (entry,) = [path for path in (cache / "corpora").iterdir() if path.is_dir()]
    meta = json.loads((entry / "meta.json").read_text())
    assert {path.name for path in entry.iterdir()} == {*meta["files"], "meta.json"}


@pytest.mark.slow
@needs("hydra_joblib_launcher")
def test_joblib(
    tmp_path: Path, serial: Path, empty_cache: Path, workers: None, capfd: Output
) -> None:
    assert sweep(tmp_path, "hydra/launcher=joblib hydra.launcher.n_jobs=2") == 1
    require_same(tmp_path, serial)
    require_one_entry(empty_cache)
    said = capfd.readouterr()
    assert "diverges" in said.err
    assert "\x1b[" not in said.out  # no bars
    assert "step 4/4" in said.out


class Deadly(ALiBi):
    """As the kernel does where memory is short."""

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().distance_bias(distance, layer)


@pytest.mark.slow
@needs("hydra_joblib_launcher")
def test_a_worker_that_dies(
    tmp_path: Path, workers: None, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    (tmp_path / "conf" / "encoding").mkdir(parents=True)
    (tmp_path / "conf" / "encoding" / "deadly.yaml").write_text(
        "_target_: tests.hydra_app.test_launchers.Deadly\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    joblib = "hydra/launcher=joblib hydra.launcher.n_jobs=2"
    assert train(tmp_path, "encoding=deadly,nope", joblib, f"-m --config-dir {tmp_path}/conf") == 1
    told = capfd.readouterr().err
    (line,) = (each for each in told.splitlines() if each.startswith("error:"))
    assert "the sweep broke off" in line
    assert "Traceback" not in told
    assert "deadly seed 1: was killed" in told
    assert told.strip().splitlines()[-1].split()[:2] == ["posbench", "train"]
    assert train(tmp_path, "encoding=nope") == 0  # nothing is in its way


@pytest.mark.long
@needs("hydra_submitit_launcher")
def test_submitit_local(tmp_path: Path, serial: Path, empty_cache: Path, capfd: Output) -> None:
    words = "hydra/launcher=submitit_local hydra.launcher.cpus_per_task=1"
    assert sweep(tmp_path, words, "hydra.sweeper.max_batch_size=4") == 1
    require_same(tmp_path, serial)
    require_one_entry(empty_cache)
    assert "diverges" in capfd.readouterr().err


@pytest.mark.long
@needs("hydra_ray_launcher")
def test_ray(tmp_path: Path, serial: Path, empty_cache: Path, capfd: Output) -> None:
    ray = pytest.importorskip("ray")
    words = "hydra/launcher=ray hydra.launcher.ray.init.address=local"
    own = "+hydra.launcher.ray.init.num_cpus=2 +hydra.launcher.ray.init.include_dashboard=false"
    try:
        assert sweep(tmp_path, words, own) == 1
    finally:
        ray.shutdown()
    require_same(tmp_path, serial)
    require_one_entry(empty_cache)
    assert "diverges" in capfd.readouterr().err


def in_a_job(
    monkeypatch: pytest.MonkeyPatch, cores: int, asked: dict[str, Any], mode: str = "MULTIRUN"
) -> None:
    """Hydra's configuration as a job finds it, on a machine of so many cores."""
    basic = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
    target = {"_target_": "a.plugins.Launcher"} if asked else basic
    node = OmegaConf.create(
        {
            "mode": RunMode[mode],
            "launcher": target | asked,
            "sweeper": {"max_batch_size": None},
            "job": {"num": 0},
            "runtime": {"cwd": "."},
        }
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(HydraConfig, "initialized", staticmethod(lambda: True))
    monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: node))
    monkeypatch.setattr(job, "current", launcher.job())


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        ({}, 8),
        ({"n_jobs": 2}, 4),
        ({"n_jobs": 3}, 2),
        ({"n_jobs": -1}, 1),
        ({"n_jobs": -5}, 2),  # all but four: four jobs
        ({"n_jobs": 100}, 1),
        ({"cpus_per_task": 6}, 6),
        ({"cpus_per_task": None}, 8),
        ({"cpus_per_task": 64}, 8),
        ({"ray": {"remote": {}}}, 1),
        ({"ray": {"remote": {"num_cpus": 4}}}, 4),
        ({"ray": {"remote": {"num_cpus": 0.5}}}, 1),
    ],
)
def test_a_jobs_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], share: int
) -> None:
    in_a_job(monkeypatch, 8, asked)
    assert job.cores() == share
    assert job.current.beside_others == bool(asked)


def test_a_launcher_that_is_not_at_work_takes_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_job(monkeypatch, 8, {"n_jobs": 4}, mode="RUN")
    assert job.cores() == 8
    assert not job.current.beside_others


@pytest.mark.parametrize(("batch", "share"), [(None, 1), (4, 2)])
def test_local_submitit_starts_a_whole_batch(
    monkeypatch: pytest.MonkeyPatch, batch: int | None, share: int
) -> None:
    in_a_job(monkeypatch, 8, {"cpus_per_task": None})
    HydraConfig.get().sweeper.max_batch_size = batch
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setattr(job, "current", launcher.job())
    assert job.cores() == share


def test_threads_are_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    in_a_job(monkeypatch, 8, {"n_jobs": 4})
    try:
        assert runtime.set_threads(0) == 2
        assert runtime.set_threads(3) == 3  # as asked
    finally:
        torch.set_num_threads(before)


def test_the_share_of_a_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[float, int | None]] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *asked: called.append(asked)
    )
    runtime.limit_memory(0.25, torch.device("cpu"))
    assert called == []
    runtime.limit_memory(0.25, torch.device("cuda"))
    runtime.limit_memory(0.25, torch.device("cuda", 1))
    assert called == [(0.25, None), (0.25, 1)]


@pytest.mark.parametrize("fraction", ["0", "-0.5", "1.5", "nan"])
def test_a_fraction_that_is_none(tmp_path: Path, fraction: str, capfd: Output) -> None:
    assert train(tmp_path, f"runtime.memory_fraction={fraction}") == 1
    said = capfd.readouterr().err
    assert "runtime.memory_fraction" in said
    assert "(0, 1]" in said
    assert not (tmp_path / "outputs").exists()


PLUGINS = {"shared_gpu": "joblib", "slurm": "submitit_slurm", "ray": "ray"}
CONF = ROOT / "conf"


def test_every_preset_has_a_launcher() -> None:
    assert {path.stem for path in CONF.glob("scale/*.yaml")} == set(PLUGINS)
    assert set(PLUGINS.values()) <= set(launcher.EXTRAS)


@pytest.mark.parametrize("preset", PLUGINS)
def test_a_preset_has_keys_of_its_launcher(preset: str) -> None:
    extra = launcher.EXTRAS[PLUGINS[preset]]
    pytest.importorskip(f"hydra_plugins.hydra_{extra}_launcher")
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("train", [f"scale={preset}", "run.name=x"], return_hydra_config=True)
    assert node.hydra.runtime.choices["hydra/launcher"] == PLUGINS[preset]
    jobs = node.hydra.launcher.get("n_jobs", 1) / (
        node.hydra.launcher.get("ray", {}).get("remote", {}).get("num_gpus", 1)
    )
    assert 0 < jobs * node.runtime.memory_fraction <= 1


@pytest.mark.parametrize("preset", PLUGINS)
def test_a_missing_plugin_says_what_to_install(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    known = ConfigStore.instance().repo["hydra"]["launcher"]
    monkeypatch.delitem(known, f"{PLUGINS[preset]}.yaml", raising=False)
    assert train(tmp_path, f"scale={preset}") == 1
    said = capfd.readouterr().err
    assert f"posbench[{launcher.EXTRAS[PLUGINS[preset]]}]" in said
    assert said.count("\n") == 1


def test_a_worker_elsewhere_goes_to_where_the_sweep_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    in_a_job(monkeypatch, 8, {"n_jobs": 2})
    HydraConfig.get().runtime.cwd = str(tmp_path / "there")
    launcher.enter_folder()
    assert Path.cwd() == tmp_path / "there"
    HydraConfig.get().runtime.cwd = str(tmp_path / "missing")
    with pytest.raises(UserError, match=r"missing.*that all machines share"):
        launcher.enter_folder()
