# ruff: noqa: E501 (the table has a line for each threat)
"""Broken pairs, a row each: what is wrong, and what becomes of it. docs/threats.md shows the same rows, no others.

`python tests/pairs/test_threats.py` prints the rows for that page.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from vicinal import cli

PAGE = Path(__file__).parent.parent.parent / "docs" / "threats.md"
GOOD = b'{"query": "q", "document": "d"}\n'

Make = Callable[[Path], Path]  # makes pairs in an empty folder


@dataclass(frozen=True)
class Threat:
    """One row; `said` stands word for word in what the user sees."""

    id: str
    format: str
    fault: str
    make: Make
    verdict: str
    said: str
    flags: tuple[str, ...] = ()

    @property
    def row(self) -> str:
        option = f", with `{' '.join(self.flags)}`" if self.flags else ""
        said = self.said.replace("|", "\\|")
        return f"| {self.format} | {self.fault}{option} | {self.verdict} | {said} | `test_pairs_threat[{self.id}]` |"


SKIP = "--skip-bad-rows"


def refused(id: str, format: str, fault: str, make: Make, said: str, *flags: str) -> Threat:
    return Threat(id, format, fault, make, "refused", said, flags)


def handled(id: str, format: str, fault: str, make: Make, said: str, *flags: str) -> Threat:
    return Threat(id, format, fault, make, "handled", said, flags)


# --- Ways to make pairs.


def file(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def lines(*rows: bytes) -> Make:
    return file("train.jsonl", b"\n".join([GOOD.strip(), *rows]))


def row(**changed: Any) -> bytes:
    return json.dumps({"query": "q", "document": "d"} | changed).encode()


def table(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()


def folder(*members: Make) -> Make:
    def make(folder: Path) -> Path:
        (folder / "pairs").mkdir()
        for member in members:
            member(folder / "pairs")
        return folder / "pairs"

    return make


def link(name: str, target: str) -> Make:
    def make(folder: Path) -> Path:
        try:
            (folder / name).symlink_to(target)
        except OSError as error:
            pytest.skip(f"no links on this system: {error}")
        return folder / name

    return make


def pipe(name: str) -> Make:
    def make(folder: Path) -> Path:
        if not hasattr(os, "mkfifo"):
            pytest.skip("no named pipes on this system")
        os.mkfifo(folder / name)
        return folder / name

    return make


MANY = b"".join(b'{"query": "q%d", "document": "d"}\n' % n for n in range(3000))
PARQUET = table(query=["q"] * 50, document=["d"] * 50)

PAIRS = [
    refused("missing", "any", "path that is not there", lambda folder: folder / "gone.jsonl", "there is no"),
    refused("unknown-kind", "any", "unknown kind of file", file("train.txt", GOOD), "expected .jsonl, .ndjson, .json, .parquet, a text one also with .gz or .zst, or a folder of such files"),
    refused("csv", "any", "a table that cannot hold lists", file("train.csv", b"query,document\nq,d\n"), "is of no kind that is known"),
    refused("pipe", "any", "named pipe", pipe("train.jsonl"), "is neither a file nor a folder"),
    refused("no-rows", "JSONL", "empty file", file("train.jsonl", b""), "holds no pairs (0 pairs in 0 domains from 0 rows): give at least one"),
    refused("all-skipped", "JSONL", "every row bad", file("train.jsonl", b"{}"), "1 row skipped, the first bad one: line 1 has no 'query' (but nothing)", SKIP),
    refused("all-empty", "JSONL", "every document empty", file("train.jsonl", row(document=" ")), "1 row with an empty query or document left out"),
    refused("all-left-out", "JSONL", "every domain left out", file("train.jsonl", GOOD), "1 row of train left out", "--leave-out", "train"),
    refused("left-out-misspelt", "JSONL", "a domain to leave out that is not there", file("train.jsonl", GOOD), "has no domain 'trian' to leave out: did you mean 'train'?", "--leave-out", "trian"),
    refused("broken", "JSONL", "broken JSON", lines(b'{"query": '), "line 2 is not one JSON object"),
    handled("broken-skip", "JSONL", "broken JSON", lines(b'{"query": '), "1 pair in 1 domain from 2 rows: 1 row skipped", SKIP),
    refused("not-utf8", "JSONL", "invalid UTF-8", lines(b'{"query": "caf\xe9", "document": "d"}'), "line 2 is not UTF-8 (at byte 15)"),
    refused("utf16", "JSONL", "UTF-16", file("train.jsonl", GOOD.decode().encode("utf-16")), "begins like UTF-16 text", SKIP),
    refused("no-document", "JSONL", "no document", lines(b'{"query": "q", "text": "d"}'), "line 2 has no 'document' (but 'query', 'text')"),
    refused("number", "JSONL", "number as query", lines(row(query=5)), "line 2 holds a value of type int under 'query'"),
    handled("empty", "JSONL", "empty document", lines(row(document="")), "1 pair in 1 domain from 2 rows: 1 row with an empty query or document left out"),
    handled("null", "JSONL", "null as query", lines(row(query=None)), "1 row with an empty query or document left out"),
    refused("negatives-text", "JSONL", "one text as negatives", lines(row(negatives="n")), "line 2 holds a value of type str under 'negatives' where a list was expected"),
    refused("negatives-empty", "JSONL", "empty text among negatives", lines(row(negatives=["n", ""])), "line 2 holds an empty text among its 'negatives'"),
    refused("negatives-both", "JSONL", "negatives under both names", lines(row(negatives=["n"], negative="m")), "line 2 has both 'negative' and 'negatives'"),
    refused("scores-few", "JSONL", "fewer scores than texts", lines(row(negatives=["n"], scores=[1])), "line 2 holds 1 score where 2 were expected"),
    refused("scores-nan", "JSONL", "NaN as score", lines(b'{"query": "q", "document": "d", "scores": [NaN]}'), "line 2 holds NaN, which JSON does not have"),
    refused("scores-text", "JSONL", "text as score", lines(row(scores=["1"])), "line 2 holds a value of type str among its 'scores'"),
    refused("domain-number", "JSONL", "number as domain", lines(row(domain=7)), "line 2 holds a value of type int under 'domain'"),
    handled("escape", "JSONL", "domain that would steer a terminal", lines(row(domain="\x1b[2J")), "\ufffd[2J"),
    handled("duplicates", "JSONL", "row twice", lines(GOOD), "1 pair (50.00 %) repeat another, word for word"),
    handled("own-negative", "JSONL", "document among its negatives", lines(row(negatives=["d"])), "1 pair with the pair's own document among them"),
    refused("gz-cut", "gzip", "cut short", file("train.jsonl.gz", gzip.compress(MANY)[:-20]), "is damaged or cut short", SKIP),
    refused("zst-cut", "Zstandard", "cut short", file("train.jsonl.zst", bytes(pyarrow.compress(MANY, codec="zstd", asbytes=True))[:-20]), "is damaged or cut short", SKIP),
    refused("parquet-cut", "Parquet", "cut short", file("train.parquet", PARQUET[:-20]), "is damaged or cut short", SKIP),
    refused("parquet-column", "Parquet", "no column of documents", file("train.parquet", table(query=["q"], text=["d"])), "has no column 'document' (but 'query', 'text'): rename the one that fits", SKIP),
    refused("parquet-nan", "Parquet", "NaN as score", file("train.parquet", table(query=["q"], document=["d"], scores=[[float("nan")]])), "row 0 (counted from 0) holds nan among its 'scores'"),
    refused("parquet-not-utf8", "Parquet", "invalid UTF-8", file("train.parquet", table(query=pyarrow.array([b"\xff"]).view(pyarrow.string()), document=["d"])), "row 0 (counted from 0) holds a value that cannot be read"),
    refused("folder-empty", "folder", "nothing in it", folder(), "holds no pairs (it is empty)"),
    refused("folder-other", "folder", "no pairs in it", folder(file("a.csv", b"")), "holds no pairs (it has 'a.csv'): expected files of .jsonl"),
    refused("folder-bad", "folder", "broken JSON in one file", folder(file("a.jsonl", GOOD), file("b.jsonl", b"{")), "b.jsonl, line 1 is not one JSON object"),
    refused("folder-damaged", "folder", "one file cut short", folder(file("a.jsonl", GOOD), file("b.parquet", PARQUET[:-20])), "b.parquet is damaged or cut short", SKIP),
    refused("folder-link", "folder", "link to nothing", folder(file("a.jsonl", GOOD), link("b.jsonl", "gone")), "there is no"),
    handled("folder-mixed", "folder", "files of other kinds", folder(file("a.jsonl", GOOD), file("README.md", b"")), "1 pair in 1 domain from 1 row: 1 file of another kind ignored"),
    refused("against-missing", "collection", "path that is not there", file("train.jsonl", GOOD), "there is no nowhere", "--against", "nowhere"),
]  # fmt: skip


@pytest.mark.parametrize("threat", PAIRS, ids=lambda threat: threat.id)
def test_pairs_threat(threat: Threat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("in", "spooled"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spooled"))
    path = threat.make(tmp_path / "in")

    result = CliRunner().invoke(cli.app, ["check-data", str(path), *threat.flags])

    if threat.verdict == "handled":
        assert (result.exit_code, result.stderr) == (0, "") and threat.said in result.stdout
        return
    assert (result.exit_code, result.stdout) == (2, "")
    assert threat.said in result.stderr and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert str(path) in result.stderr or threat.format == "collection"


def test_the_page_shows_exactly_these_rows() -> None:
    section = re.search(r"^## Pairs\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None
    shown = [line for line in section[1].splitlines() if line.startswith("| ") and "`test_pairs_threat[" in line]
    assert shown == [threat.row for threat in PAIRS]


def test_no_two_rows_share_a_name() -> None:
    assert len({threat.id for threat in PAIRS}) == len(PAIRS)


if __name__ == "__main__":
    sys.stdout.write("\n".join(threat.row for threat in PAIRS) + "\n")
