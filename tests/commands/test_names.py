"""Names and paths that a user chooses: what was typed is used, or one line says why not."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from posbench import cli
from posbench.config import ReportCommand, load
from posbench.corpus.cache import cache_root
from posbench.corpus.sources import Files
from posbench.errors import UserError
from posbench.hydra_app.overrides import readable
from posbench.machine import paths
from posbench.report.reading import collect
from posbench.runs.run_folder import RunFolder
from tests.helpers.folders import write_run
from tests.helpers.marks import a_few
from tests.helpers.toy import arguments, flat, write_text
from tests.test_cli import one_line

Output = pytest.CaptureFixture[str]

ODD = [
    *["out [1]", "*", "q?", "k=4", "a,b", "it's", 'a"b', "x\\y\\", "${x}", "$HOME", "{a}", "(x)"],
    *["a b", " a ", "-d", "~x", "a:b%c", "#1", "a&b;c|d", "l'été 国", "+x=1", "a=b=c", "\\", "!"],
]


def trained(root: Path, *words: str) -> int:
    """`posbench train` of a toy, words as they are, spaces and all."""
    return cli.run(["train", *flat(arguments(root)), "encoding=alibi", "train.steps=1", *words])


def value(word: str) -> object:
    """What posbench makes of a word of `posbench report`."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("posbench.conf", version_base="1.3"):
        return load(compose("report", readable("report", [word])), ReportCommand)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and another one to work in."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.mark.parametrize("name", ODD)
def test_a_folder_of_any_name_is_found_by_the_word_that_is_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Through the shell, Hydra's grammar, OmegaConf and the search for run folders."""
    monkeypatch.chdir(tmp_path)
    made = write_run(Path(name), "alibi", 1, lambda length: 3.5)
    assert made.parts[0] == name
    for other in ("out 1", "kk", "q1", "x"):
        write_run(Path(other), "alibi", 1, lambda length: 3.5)
    (word,) = shlex.split(paths.shell_word(made))
    asked = value(word)
    assert isinstance(asked, ReportCommand)
    assert collect.folders(asked.runs) == [made]


@pytest.mark.parametrize("name", [name for name in ODD if name not in ("a,b", "${x}", "~x")])
def test_a_key_that_takes_a_text_gets_what_was_typed(name: str) -> None:
    """But for a comma, ${ and ~, which ask for more; and for blanks at the ends."""
    asked = value(f"folder={name}")
    assert isinstance(asked, ReportCommand)
    assert asked.folder == name.strip()


@pytest.mark.parametrize("text", ["007", "1e3", "true", "0x10", "1_000", "[1]", "{a: 1}", "nan"])
def test_no_text_becomes_a_number_or_a_list(text: str) -> None:
    asked = value(f"folder={text}")
    assert isinstance(asked, ReportCommand)
    assert asked.folder == text


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["run.name='q'"], ["run.name='q'"]),
        (["run.name=shaw-k${encoding.k}"], ["run.name=shaw-k${encoding.k}"]),
        (["run.name=k=${encoding.k}"], ["run.name='k=${encoding.k}'"]),
        (["run.name=choice(a,b)"], ["run.name=choice(a,b)"]),
        (["run.name=k=1,k=2"], ["run.name='k=1,k=2'"]),
        (["run.name=k=1,k=2", "-m"], ["--multirun", "run.name='k=1','k=2'"]),
        (["run.name=1e3,b", "-m"], ["--multirun", "run.name='1e3',b"]),
        (["run.name='a,b',c", "-m"], ["--multirun", "run.name='a,b',c"]),
        (["train.steps=7"], ["train.steps=7"]),
        (["eval.lengths=[32,64]"], ["eval.lengths=[32,64]"]),
        (["corpus.path=~/x"], ["corpus.path='~/x'"]),
    ],
)
def test_what_asks_for_more_than_text_gets_it(words: list[str], read: list[str]) -> None:
    assert readable("train", words) == read


@pytest.mark.parametrize(
    ("word", "place", "way"),
    [
        ("train.steps=a=b", "'=b'", "'train.steps=\"a=b\"'"),
        ("train.steps=~3", "'~3'", "'train.steps=\"~3\"'"),
        ("optim.lr=1e-3)", "')'", "'optim.lr=\"1e-3)\"'"),
        ("eval.lengths=[32,64", "missing", "'eval.lengths=\"[32,64\"'"),
        ("optim.lr=f(1)", "function 'f'", "optim.lr"),
        ("eval.protocols=[~/a,b]", "'~/a,b]'", "'eval.protocols=[\"~/a\",b]'"),
        ("run.name=${x", "${ begins", "'run.name=\"\\${x\"'"),
        ("train.steps =2", "'train.steps '", "key=value"),
        ("é=3", "'é'", "key=value"),
        ("=3", "no key before", ""),
        ("steps", "neither a flag nor key=value", ""),
        ("--nosuch", "unrecognized", "./-x"),
        ("--cfg", "--cfg", "expected one argument"),
    ],
)
def test_a_word_that_cannot_be_read_gets_its_place_and_the_way_to_write_it(
    capfd: Output, word: str, place: str, way: str
) -> None:
    assert cli.run(["train", word]) == 1
    said = one_line(capfd)
    assert word.strip() in said
    assert place in said
    assert way in said
    assert "Exception" not in said
    if way.startswith("'"):
        readable("train", shlex.split(way))


def test_the_words_for_a_run_folder(tmp_path: Path, capfd: Output) -> None:
    assert cli.run(["eval", "a", "b"]) == 1
    assert "takes one run folder: a, b" in one_line(capfd)
    for words in (["nosuch"], ["~nosuch"], ["runs=[nosuch]"], ["runs=nosuch"], [str(tmp_path)]):
        assert cli.run(["report", *words]) == 1
        assert (
            "no run folder there" in (said := one_line(capfd))
        ) or "no such home folder" in said


def test_part_by_part_what_exists_is_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my [v1]/a.txt", "my [v1]/b [x].txt", "my v/c.txt", "deep/er [2]/d.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("text")
    found = {
        "my [v1]/*.txt": {"my [v1]/a.txt", "my [v1]/b [x].txt"},
        "my [v1]/b [x].txt": {"my [v1]/b [x].txt"},
        "my [v]/*.txt": {"my v/c.txt"},
        "*/er [2]/*": {"deep/er [2]/d.txt"},
        "**/er [2]/?.txt": {"deep/er [2]/d.txt"},
        "my*/[ac].txt": {"my [v1]/a.txt", "my v/c.txt"},
        "nosuch/*": set(),
        "..": {".."},
    }
    for pattern, names in found.items():
        assert {str(path) for path in paths.matching("x", pattern)} == names, pattern
        below = {str(path) for path in paths.matching("x", f"{tmp_path}/{pattern}")}
        assert below == {str(tmp_path / name) for name in names}, pattern
    assert set(Files("my [v1]/*.txt", "text", "mine")._files()) == {"a.txt", "b [x].txt"}
    assert len(Files("**/*.txt", "text", "mine")._files()) == 4


def test_home_is_the_users_everywhere(home: Path, capfd: Output) -> None:
    write_text(home / "texts")
    assert trained(home, "run.root=~/out", "corpus.path=~/texts") == 0
    again = trained(home, 'run.root="~/out"', "corpus.path='~/texts'")
    assert again == 0
    assert "is finished" in capfd.readouterr().out
    (run,) = collect.folders(["~/out"])
    assert run == home / "out/default/alibi/seed1"
    few = ["report.draws=100", "report.formats=[csv]"]
    for words in (["~/out", "folder=~/rep"], ['runs=["~/out"]'], ["runs=[~/out]"], ["runs=~/out"]):
        assert cli.run(["report", *words, *few]) == 0
    assert (home / "rep/report.csv").is_file()
    assert cli.run(["eval", "~/out/default/alibi/seed1", "runtime.threads=1"]) == 0
    assert not [path for path in Path().rglob("*") if path.name == "~"]


@pytest.mark.slow
def test_a_sweep_in_the_home_folder(home: Path, capfd: Output) -> None:
    """Hydra's own file of the sweep and the closing table included."""
    assert trained(home, "-m", "run.root=~/out", "run.name=a,k=4") == 0
    assert (home / "out/multirun.yaml").is_file()
    shown = capfd.readouterr().out
    rows = [line for line in shown.splitlines() if "k=4" in line and "seed" not in line]
    assert rows, shown
    assert len(collect.folders([str(home)])) == 2
    assert not list(Path().rglob("~"))


def test_a_home_that_is_none_is_refused(
    home: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSBENCH_CACHE", "~/cache")
    assert cache_root() == home / "cache"
    monkeypatch.setenv("POSBENCH_CACHE", "~nosuch/cache")
    with pytest.raises(UserError, match="POSBENCH_CACHE=~nosuch/cache: there is no such home"):
        cache_root()
    assert trained(home, "run.root=~nosuch/out") == 1
    assert "./~nosuch/out" in one_line(capfd)
    Path("~nosuch").mkdir()
    assert paths.expanded("x", "~nosuch/..") == "~nosuch/.."  # a path that exists is that path
    assert paths.matching("x", "./~nosuch") == [Path("~nosuch")]


@pytest.mark.parametrize(
    ("words", "expected"),
    a_few(
        [
            ("run.name=" + "x" * 300, "run.name: a name of 300 bytes"),
            ("run.experiment=" + "é" * 101, "run.experiment: a name of 202 bytes"),
            ("run.name=a/" + "x" * 201, "at most 200 "),
            ("run.root=" + "x" * 256, "run.root: a name of 256 bytes"),
            ("run.root=" + "/".join(["x" * 200] * 20), "run.root, run.experiment and run.name"),
            ("folder=" + "x" * 256, "folder: a name of 256 bytes"),
            ("run.name='  '", "run.name=' ' must be a path below run.root"),
            ("run.name=a/ /b", "below run.root"),
            ("run.name=.", "run.name='.' must be"),
            ("run.name=", "run.name='' must be"),
            ("run.name=~/x", "run.name='~/x' must be"),
            ("run.name=a\nb", "run.name='a\\nb' has characters that are no text"),
            ("run.name=a,b", "run.name=a,b: commas sweep, with -m"),
            ("run.name=null", "run.name: must not be null"),
            ("run.root=", "run.root='' names no folder"),
        ],
        1,
    ),
)
@pytest.mark.parametrize("command", ["train", "speed"])
def test_a_name_that_cannot_be_used_is_refused_before_anything_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Output,
    command: str,
    words: str,
    expected: str,
) -> None:
    if command == "train" and words.startswith("folder"):
        return
    monkeypatch.chdir(tmp_path)
    assert cli.run([command, words]) == 1
    assert expected in one_line(capfd)
    assert not list(tmp_path.iterdir())


def test_a_long_name_is_refused_before_the_first_job(tmp_path: Path, capfd: Output) -> None:
    assert trained(tmp_path, "-m", f"run.name=a,{'x' * 300}") == 1
    assert "1 of 2 jobs cannot run, none was started: run.name: a name of 300" in one_line(capfd)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_the_longest_name_that_is_allowed(tmp_path: Path) -> None:
    words = [f"run.name={'x' * paths.LONGEST_NAME}", f"run.experiment={'y' * paths.LONGEST_NAME}"]
    assert trained(tmp_path, *words) == 0
    tune = ["tune", *flat(arguments(tmp_path)), "encoding=nope", *words, "tune.trials=2"]
    assert cli.run([*tune, "train.steps=1", "tune.blocks=2"]) == 0


@pytest.mark.parametrize("many", a_few([False, True], 1))
def test_the_overrides_as_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output, many: bool
) -> None:
    """Where short enough; that of a run alone is that of the same job of a sweep."""
    short = (
        "# @package _global_\ndefaults: [override /corpus: files, override /tokenizer: bytes]\n"
    )
    (tmp_path / "conf/experiment").mkdir(parents=True)
    lines = [word for word in flat(arguments(tmp_path)) if "=" in word and "." in word]
    text = "".join(f"{key}: {value}\n" for key, value in (line.split("=", 1) for line in lines))
    nested: dict[str, list[str]] = {}
    for line in text.splitlines():
        group, _, rest = line.partition(".")
        nested.setdefault(group, []).append(f"  {rest}\n")
    short += "".join(f"{group}:\n{''.join(rows)}" for group, rows in nested.items())
    (tmp_path / "conf/experiment/toy.yaml").write_text(short)
    words = ["run.name=${hydra:job.override_dirname}", "experiment=toy", "encoding=nope"]
    words += [f"--config-dir={tmp_path}/conf", *(["-m", "seed=1,2"] if many else [])]
    assert cli.run(["train", *words, "train.steps=1"]) == 0
    found = collect.folders([str(tmp_path / "outputs")])
    assert len(found) == (2 if many else 1)
    assert {run.parent.name for run in found} == {"encoding=nope,experiment=toy,train.steps=1"}
    capfd.readouterr()
    long = [f"corpus.name={'n' * 200}", *words]
    assert cli.run(["train", *long]) == 1
    assert "run.name: a name of " in one_line(capfd)


def test_the_repeat_command_works_when_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    """With a name, a root and a folder of configuration that a shell and Hydra take apart."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "a [1] k=4"
    (root / "conf/encoding").mkdir(parents=True)
    (root / "conf/encoding/short.yaml").write_text(
        "_target_: posbench.encodings.learned.Learned\nmax_length: 8\nstd: 1\nbeyond: refuse\n"
    )
    toy = [word for word in flat(arguments(tmp_path)) if not word.startswith("run.root")]
    words = ["encoding=short", f"run.root={root}", "run.name=k=1 #2,$x", "train.steps=1"]
    words += ["--config-dir", str(root / "conf"), "-m", "hydra.job.name=x"]
    assert cli.run(["train", *toy, *words]) == 1
    told = capfd.readouterr().err
    repeats = [line.strip() for line in told.splitlines() if line.startswith("    posbench ")]
    assert len(repeats) == 2
    assert "hydra.job.name=x" in repeats[0]
    for line, name in zip(repeats, ("k=1 #2", "$x"), strict=True):
        folder = root / "default" / name / "seed1"
        assert RunFolder(folder).status["state"] == "failed"
        assert cli.run(shlex.split(line)[1:]) == 1
        assert "has 8 positions" in one_line(capfd)


@pytest.mark.slow
def test_a_run_of_another_set_up_names_the_command_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trained(tmp_path, "run.root=-a b", "run.name=k=4") == 0
    capfd.readouterr()
    assert trained(tmp_path, "run.root=-a b", "run.name=k=4", "eval.blocks=3") == 1
    said = one_line(capfd)
    line = said[said.index("posbench eval ") :]
    assert cli.run([*shlex.split(line)[1:], "eval.blocks=3", "runtime.threads=1"]) == 0


def test_a_missing_folder_is_no_empty_path() -> None:
    for text in ("", "  "):
        with pytest.raises(UserError, match=r"\. is the working folder"):
            paths.expanded("corpus.path", text)
