"""What test_distributed.py starts in two processes: train, kill in thought, go on.

python -m tests.helpers.ranks FOLDER WORD ...: train with dropout and without in FOLDER/outputs;
train the former again in FOLDER/again/outputs, from its checkpoint after step 4.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from posbench import cli
from posbench.machine import torchrun


def cut(run: Path, step: int) -> None:
    """As if killed right after the checkpoint of a step; the last step: before the evaluation."""
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name[5:]) > step:
            shutil.rmtree(checkpoint)
    (run / "results.jsonl").unlink()
    (run / "status.json").write_text('{"state": "running", "reason": null}')


def copied(run: Path, root: Path, step: int) -> Path:
    """The same run below another root, cut."""
    there = root / run.relative_to(run.parents[3])
    shutil.copytree(run, there)
    cut(there, step)
    return there


def main(folder: Path, words: list[str]) -> int:
    sweep = ["-m", *words, "model.dropout=0.0,0.2", "run.name=${model.dropout}"]
    if code := cli.run(["train", *sweep]):
        return code
    again = folder / "again"
    if torchrun.rank() == 0:
        copied(folder / "outputs" / "default" / "0.2" / "seed1", again, 4)
    one = ["model.dropout=0.2", "run.name=0.2", f"run.root={again}/outputs"]
    return cli.run(["train", *words, *one])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
