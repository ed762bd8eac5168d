"""Files that are whole or absent, what is left of killed writers, and who is named in an error."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from posbench.machine.files import (
    append_row,
    clear_temporaries,
    naming,
    remove_folder,
    replacing,
    replacing_folder,
)


def test_what_killed_writers_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "seed1"
    kept = [run / "status.json", run / "losses" / "a.npz", tmp_path / ".seed1.lock"]
    kept += [tmp_path / ".seed10.7.tmp", run / ".hidden", run / "losses" / "x.tmp"]
    left = [tmp_path / ".seed1.7.old.tmp", run / ".status.json.7.tmp", run / "losses" / ".a.7.tmp"]
    for path in (*kept, *left):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    folder = run / "checkpoints" / ".step-000001.7.tmp"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    clear_temporaries(run)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in (*left, folder))


def test_a_folder_that_exists_is_replaced(tmp_path: Path) -> None:
    for text in ("a", "b"):
        with replacing_folder(tmp_path / "f") as temporary:
            (temporary / text).write_text(text)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [
        Path("f"),
        Path("f/b"),
    ]


def test_a_folder_is_gone_before_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f"
    folder.mkdir()

    def killed(path: Path) -> None:
        assert not folder.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_folder(folder)
    clear_temporaries(tmp_path / "other")
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    clear_temporaries(folder)
    assert not list(tmp_path.iterdir())


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(OSError, match="No space") as full, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as missing, replacing(path):
        pass  # nothing was written under the temporary name
    assert missing.value.filename == str(path)
    with pytest.raises(IsADirectoryError) as folder:
        append_row(tmp_path, {})
    assert folder.value.filename == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_error_that_is_no_systems_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^17 requested$"), naming(tmp_path):
        raise OSError("17 requested")
