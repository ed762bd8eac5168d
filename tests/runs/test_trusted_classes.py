"""What a file from anybody may name: only what is an encoding, tokenizer or source by its text."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from posbench.errors import UserError
from posbench.runs import trusted_classes
from tests.helpers.places import ROOT

LOUD = "raise SystemExit('this module was run')\n"
CLASSES = {
    "direct.py": "from posbench.encodings import Encoding\nclass A(Encoding): ...\n",
    "dotted.py": "import posbench.encodings.base as b\nclass A(b.Encoding): ...\n",
    "whole.py": "import posbench.encodings.rope\nclass A(posbench.encodings.rope.RoPE): ...\n",
    "second.py": "from direct import A as Mine\nclass B(Mine): ...\n",
    "inside/__init__.py": "from .deep.er import A, B\n",
    "inside/deep/__init__.py": "",
    "inside/deep/er.py": "from ...direct import A\nfrom ..base import B as C\nclass B(C): ...\n",
    "inside/base.py": "from posbench.corpus.tokenizer import Tokenizer\nclass B(Tokenizer): ...\n",
    "sources.py": "class A:\n    def identity(self): ...\n    def load(self): ...\n",
    "plain.py": "class A: ...\nclass Encoding(A): ...\n",
    "circle.py": "from circle import B as A\nclass B(A): ...\n",
    "broken.py": "class A(\n",
    "binary.py": "\0",
    "deep.py": f"x = {'(' * 5000}{')' * 5000}\n",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the Python path in which nothing can be imported and live."""
    for name, text in CLASSES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + LOUD)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "target", ["direct.A", "dotted.A", "whole.A", "second.B", "inside.B", "sources.A"]
)
def test_a_class_of_the_users_own_is_known_without_running_it(modules: Path, target: str) -> None:
    trusted_classes.require("encoding", target)
    assert target.partition(".")[0] not in sys.modules


def test_every_class_in_conf_is_let_through() -> None:
    conf = ROOT / "conf"
    found = re.findall(
        r"^_target_: (\S+)", "".join(p.read_text() for p in conf.glob("*/*.yaml")), re.M
    )
    assert len(found) > 40
    for target in found:
        trusted_classes.require("conf", target)


@pytest.mark.parametrize(
    "target",
    [
        *["plain.A", "plain.Encoding", "circle.A", "broken.A", "binary.A", "deep.A", "inside.A"],
        *["direct.B", "direct", "direct.A.A", "nowhere.A", "sources.A.load", "inside.deep.er.A"],
        *["os.system", "subprocess.Popen", "builtins.eval", "antigravity.A", "this.s", "sys.exit"],
        *[
            "posbench.__main__.main",
            "posbench.cli.main",
            "posbench.machine.files.json",
            "posbench",
        ],
        *[
            "posbench.config.Config",
            "posbench.speed.child.main",
            "numpy.ndarray",
            "torch.nn.Linear",
        ],
        *["", ".", "..", "a..b", "../direct.A", "/etc/passwd", "direct .A", "A", "__main__.A"],
        *[None, 5, ["direct.A"], {"direct": "A"}],
    ],
)
def test_anything_else_is_refused_and_not_run(modules: Path, target: object) -> None:
    before = set(sys.modules)
    with pytest.raises(UserError, match=r"encoding\._target_="):
        trusted_classes.require("encoding", target)
    assert not [name for name in set(sys.modules) - before if f"{name}.py" in CLASSES]
