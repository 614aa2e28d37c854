# ruff: noqa: E501 (the table has a line for each threat)
"""Broken corpora, a row each: what is wrong, and what becomes of it. docs/threats.md shows the same rows, no others.

`python tests/test_threats.py` prints the rows for that page.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from typer.testing import CliRunner

from vicinal import cli

PAGE = Path(__file__).parent.parent / "docs" / "threats.md"

Make = Callable[[Path, pytest.MonkeyPatch], Path]  # makes the corpus in an empty folder


@dataclass(frozen=True)
class Outcome:
    """What a user sees of `vicinal index`."""

    exit_code: int
    said: str  # the sentence on standard error, or the summary


def run_index(path: Path, index: Path, *, skip: bool) -> Outcome:
    """Index the corpus at `path` by the command line."""
    flags = ["--model", "tiny", "--precision", "fp32", "--context", "null", *(["--skip-bad-rows"] if skip else [])]
    result = CliRunner().invoke(cli.app, ["index", str(path), "-o", str(index), *flags])
    if result.exit_code == 0:
        return Outcome(0, result.stdout)
    assert result.stdout == "" and result.stderr.startswith("error: "), result.output
    return Outcome(result.exit_code, result.stderr.removeprefix("error: ").removesuffix("\n"))


@dataclass(frozen=True)
class Threat:
    """One row; `said` stands word for word in what the user sees."""

    id: str
    format: str
    fault: str
    make: Make
    verdict: str
    said: str
    skip: bool = False

    @property
    def row(self) -> str:
        option = ", with `--skip-bad-rows`" if self.skip else ""
        said = self.said.replace("|", "\\|")
        return f"| {self.format} | {self.fault}{option} | {self.verdict} | {said} | `test_threat[{self.id}]` |"


# --- Ways to make a corpus.


def file(name: str, content: bytes | Callable[[], bytes]) -> Make:
    """A file of these bytes; large ones are made when they are needed."""

    def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
        path = folder / name
        path.write_bytes(content() if callable(content) else content)
        return path

    return make


def folder(*members: Make) -> Make:
    def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
        root = folder / "notes"
        root.mkdir()
        for member in members:
            member(root, patch)
        return root

    return make


def link(name: str, target: str) -> Make:
    def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
        try:
            (folder / name).symlink_to(target)
        except OSError as error:
            pytest.skip(f"no links on this system: {error}")
        return folder / name

    return make


def pipe(name: str) -> Make:
    def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
        if not hasattr(os, "mkfifo"):
            pytest.skip("no named pipes on this system")
        os.mkfifo(folder / name)
        return folder / name

    return make


def locked(made: Make) -> Make:
    """A corpus that may not be opened, whoever runs this test."""

    def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
        path, opened = made(folder, patch), Path.open

        def refuse(self: Path, *how: Any, **named: Any) -> Any:
            if self == path:
                raise PermissionError(13, "Permission denied", str(self))
            return opened(self, *how, **named)

        patch.setattr(Path, "open", refuse)
        return path

    return make


def nothing(name: str) -> Make:
    return lambda folder, patch: folder / name


GOOD = b'{"id": "good", "text": "a text"}'


def jsonl(*lines: bytes) -> Make:
    """A good line, then these."""
    return file("docs.jsonl", b"\n".join([GOOD, *lines]) + b"\n")


def table(*lines: bytes) -> Make:
    """A header, a good line, then these."""
    return file("docs.csv", b"\n".join([b"id,text,kind", b"good,a text,k", *lines]) + b"\n")


def parquet(name: str = "docs.parquet", **columns: object) -> Make:
    """A table of these columns, each a list or an Arrow array."""

    def content() -> bytes:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), sink, compression="none")
        return sink.getvalue()

    return file(name, content)


def damaged(made: Make, damage: Callable[[bytes], bytes]) -> Make:
    def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
        path = made(folder, patch)
        path.write_bytes(damage(path.read_bytes()))
        return path

    return make


def cut(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 64]) + content[middle + 64 :]


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)  # as the program zstd does


noise = random.Random(0)
MANY = b"".join(b'{"id": "%d", "text": "%032x"}\n' % (n, noise.getrandbits(128)) for n in range(5_000))
GZ, ZST = file("docs.jsonl.gz", lambda: gzip.compress(MANY)), file("docs.jsonl.zst", lambda: zst(MANY))
PARQUET = parquet(text=[f"{noise.getrandbits(128):032x}" for _ in range(1000)])
NOT_UTF8 = b'{"text": "caf\xe9"}'
BROKEN = b'{"text": "a"'
NOT_UTF8_COLUMN = pyarrow.StringArray.from_buffers(
    2, pyarrow.py_buffer(b"\0\0\0\0\4\0\0\0\6\0\0\0"), pyarrow.py_buffer(b"caf\xe9ok")
)
YEAR_20000 = pyarrow.array([6_585_000], pyarrow.date32())


def refused(id: str, format: str, fault: str, make: Make, said: str, skip: bool = False) -> Threat:
    return Threat(id, format, fault, make, "refused", said, skip)


def handled(id: str, format: str, fault: str, make: Make, said: str, skip: bool = False) -> Threat:
    return Threat(id, format, fault, make, "handled", said, skip)


CORPORA = [
    # What is given.
    refused("missing", "any", "path that is not there", nothing("docs.jsonl"), "there is no"),
    refused("unknown-kind", "any", "unknown kind of file", file("docs.docx", b"PK"), "is of no kind that is known"),
    refused("no-suffix", "any", "name without a suffix", file("docs", GOOD), "is of no kind that is known"),
    refused("unknown-skip", "any", "unknown kind of file", file("docs.docx", b"PK"), "expected .jsonl", skip=True),
    refused("pipe", "any", "named pipe", pipe("docs.jsonl"), "is neither a file nor a folder"),
    refused("no-permission", "any", "no permission", locked(jsonl()), "no permission"),
    refused("link-to-nothing", "any", "link to nothing", link("docs.jsonl", "gone"), "there is no"),
    refused("link-to-itself", "any", "link to itself", link("docs.jsonl", "docs.jsonl"), "there is no"),
    # JSONL: the file.
    refused("jsonl-empty", "JSONL", "empty file", file("docs.jsonl", b""), "holds no documents, for it has no rows"),
    refused("jsonl-blank", "JSONL", "blank lines only", file("docs.jsonl", b"\n \n\t\r\n"), "holds no documents"),
    refused("jsonl-all-skipped", "JSONL", "every row bad", file("docs.jsonl", BROKEN * 2), "holds no documents, for none of its rows can be read (line 1 is not one JSON object", skip=True),
    handled("jsonl-bom", "JSONL", "UTF-8 byte order mark", file("docs.jsonl", b"\xef\xbb\xbf" + GOOD), "1 document from 1 row"),
    refused("jsonl-utf16", "JSONL", "UTF-16", file("docs.jsonl", GOOD.decode().encode("utf-16")), "begins like UTF-16 text where text in UTF-8 was expected: convert"),
    refused("jsonl-utf16-skip", "JSONL", "UTF-16", file("docs.jsonl", GOOD.decode().encode("utf-16")), "begins like UTF-16", skip=True),
    refused("jsonl-utf16-bare", "JSONL", "UTF-16 without its mark", file("docs.jsonl", GOOD.decode().encode("utf-16-le")), "begins like UTF-16"),
    refused("jsonl-gzip", "JSONL", "gzip data under a plain name", file("docs.jsonl", gzip.compress(GOOD)), "begins like gzip data", skip=True),
    refused("jsonl-array", "JSONL", "one JSON array", file("docs.json", b"[\n" + GOOD + b"\n]\n"), "line 1 is not one JSON object"),
    handled("jsonl-crlf", "JSONL", "CRLF line ends", file("docs.jsonl", GOOD + b"\r\n" + b'{"text": "b"}\r\n'), "2 documents from 2 rows"),
    handled("jsonl-gaps", "JSONL", "blank lines between rows", jsonl(b"", b" ", b'{"text": "b"}'), "2 documents from 2 rows"),
    handled("jsonl-open-end", "JSONL", "no line end at the end", file("docs.jsonl", GOOD + b"\n" + GOOD), "1 row replaced"),
    # JSONL: one row.
    refused("jsonl-broken", "JSONL", "broken JSON", jsonl(BROKEN), "line 2 is not one JSON object"),
    handled("jsonl-broken-skip", "JSONL", "broken JSON", jsonl(BROKEN), "1 document from 2 rows: 1 row skipped", skip=True),
    refused("jsonl-cut", "JSONL", "cut inside the last row", file("docs.jsonl", MANY[:-20]), "line 5000 is not one JSON object"),
    refused("jsonl-two-in-a-line", "JSONL", "two objects in one line", jsonl(GOOD + GOOD), "line 2 is not one JSON object (Extra data"),
    refused("jsonl-far", "JSONL", "broken JSON in line 3,000,017", file("docs.jsonl", lambda: GOOD + b"\n" * 3_000_016 + BROKEN), "line 3000017 is not one JSON object"),
    refused("jsonl-not-utf8", "JSONL", "invalid UTF-8", jsonl(NOT_UTF8), "line 2 is not UTF-8 (at byte 14)"),
    handled("jsonl-not-utf8-skip", "JSONL", "invalid UTF-8", jsonl(NOT_UTF8), "1 row skipped", skip=True),
    refused("jsonl-list", "JSONL", "row that is no object", jsonl(b'["a"]'), "line 2 is of type list where an object"),
    refused("jsonl-null", "JSONL", "row that is null", jsonl(b"null"), "line 2 is of type NoneType where an object"),
    refused("jsonl-no-text", "JSONL", "neither text nor title", jsonl(b'{"id": 1, "body": "b"}'), "has neither 'text' nor 'title' (but 'id', 'body')"),
    refused("jsonl-text-number", "JSONL", "number as text", jsonl(b'{"text": 5}'), "holds a value of type int under 'text'"),
    refused("jsonl-title-list", "JSONL", "list as title", jsonl(b'{"title": ["t"]}'), "holds a value of type list under 'title'"),
    handled("jsonl-text-null", "JSONL", "null as text", jsonl(b'{"id": 1, "text": null}'), "2 documents (1 empty)"),
    handled("jsonl-text-white", "JSONL", "nothing but whitespace", jsonl(b'{"text": " \\n\\u3000"}'), "2 documents (1 empty)"),
    handled("jsonl-id-integer", "JSONL", "integer as id", jsonl(b'{"id": 7, "text": "old"}', b'{"id": "7", "text": "new"}'), "2 documents from 3 rows: 1 row replaced"),
    refused("jsonl-id-float", "JSONL", "fraction as id", jsonl(b'{"id": 7.0, "text": "t"}'), "holds a value of type float under 'id' where text or an integer was expected"),
    refused("jsonl-id-object", "JSONL", "object as id", jsonl(b'{"_id": {"$oid": "5"}, "text": "t"}'), "holds a value of type dict under 'id'"),
    refused("jsonl-id-true", "JSONL", "true as id", jsonl(b'{"id": true, "text": "t"}'), "holds a value of type bool under 'id'"),
    handled("jsonl-no-id", "JSONL", "no id", jsonl(b'{"text": "t"}'), "1 row without an id, known by number"),
    handled("jsonl-same-id", "JSONL", "id twice", jsonl(GOOD), "1 document from 2 rows: 1 row replaced by a later one"),
    handled("jsonl-number-is-id", "JSONL", "a row's number is another's id", jsonl(b'{"text": "t"}', b'{"id": "1", "text": "u"}'), "2 documents from 3 rows: 1 row replaced"),
    refused("jsonl-nan", "JSONL", "NaN", jsonl(b'{"text": "t", "n": NaN}'), "line 2 holds NaN, which JSON does not have"),
    refused("jsonl-infinity", "JSONL", "Infinity", jsonl(b'{"text": "t", "n": -Infinity}'), "line 2 holds -Infinity"),
    handled("jsonl-nan-skip", "JSONL", "NaN", jsonl(b'{"text": "t", "n": NaN}'), "1 row skipped", skip=True),
    refused("jsonl-overflow", "JSONL", "number beyond all floats", jsonl(b'{"text": "t", "n": 1e999}'), "line 2 holds inf under 'n'"),
    refused("jsonl-digits", "JSONL", "integer of 5,000 digits", jsonl(b'{"text": "t", "n": %s}' % (b"9" * 5000)), "line 2 holds a number that cannot be read"),
    refused("jsonl-surrogate", "JSONL", "half a surrogate pair", jsonl(b'{"text": "\\ud83e"}'), "line 2 holds bytes or escapes under 'text' that are no text in UTF-8"),
    refused("jsonl-surrogate-metadata", "JSONL", "half a surrogate pair in metadata", jsonl(b'{"text": "t", "n": {"\\ud83e": 1}}'), "that are no text in UTF-8"),
    refused("jsonl-nested", "JSONL", "100,000 nested lists", jsonl(b'{"text": "t", "n": %s}' % (b"[" * 100_000 + b"]" * 100_000)), "line 2 is nested deeper than 100 levels"),
    refused("jsonl-nested-little", "JSONL", "101 nested lists", jsonl(b'{"text": "t", "n": %s}' % (b"[" * 101 + b"]" * 101)), "line 2 is nested deeper than 100 levels"),
    refused("jsonl-nested-objects", "JSONL", "101 nested objects", jsonl(b'{"text": "t", "n": %s1%s}' % (b'{"a": ' * 101, b"}" * 101)), "line 2 is nested deeper than 100 levels"),
    handled("jsonl-nested-enough", "JSONL", "100 nested objects", jsonl(b'{"text": "t", "n": %s1%s}' % (b'{"a": ' * 100, b"}" * 100)), "2 documents from 2 rows"),
    refused("jsonl-key-twice", "JSONL", "key twice in one object", jsonl(b'{"text": "a", "text": "b"}'), "line 2 has the key 'text' twice"),
    handled("jsonl-nul", "JSONL", "NUL in a text", jsonl(b'{"id": "n\\u0000", "text": "a\\u0000b"}'), "2 documents from 2 rows"),
    handled("jsonl-10-mb", "JSONL", "line of 10 MB", jsonl(b'{"text": "' + b"word " * 2_000_000 + b'"}'), "2 documents from 2 rows"),
    refused("jsonl-endless", "JSONL", "line of more than 128 MiB", file("docs.jsonl", lambda: b"[" + b" " * (1 << 27) + b"]\n" + GOOD), "line 1 is longer than 134,217,728 bytes"),
    # Compressed.
    refused("gz-cut", "gzip", "cut short", damaged(GZ, cut), "is damaged or cut short"),
    refused("gz-cut-skip", "gzip", "cut short", damaged(GZ, cut), "is damaged or cut short", skip=True),
    refused("gz-cut-end", "gzip", "last byte missing", damaged(GZ, lambda content: content[:-1]), "is damaged or cut short", skip=True),
    refused("gz-flipped", "gzip", "damaged in the middle", damaged(GZ, flipped), "is damaged or cut short", skip=True),
    refused("gz-checksum", "gzip", "wrong checksum", damaged(GZ, lambda content: content[:-8] + b"\0\0\0\0" + content[-4:]), "is damaged or cut short (CRC check failed", skip=True),
    refused("gz-trailing", "gzip", "other bytes after the end", damaged(GZ, lambda content: content + b"garbage"), "is damaged or cut short", skip=True),
    refused("gz-plain", "gzip", "plain text under a compressed name", file("docs.jsonl.gz", GOOD), "is damaged or cut short (Not a gzipped file"),
    refused("gz-empty", "gzip", "empty file", file("docs.jsonl.gz", b""), "holds no documents"),
    handled("gz-members", "gzip", "several members", file("docs.jsonl.gz", gzip.compress(GOOD[:9]) + gzip.compress(GOOD[9:])), "1 document from 1 row"),
    refused("gz-bad-row", "gzip", "broken JSON", file("docs.jsonl.gz", lambda: gzip.compress(MANY + BROKEN)), "line 5001 is not one JSON object"),
    refused("zst-cut", "Zstandard", "cut short", damaged(ZST, cut), "is damaged or cut short"),
    refused("zst-cut-skip", "Zstandard", "cut short", damaged(ZST, cut), "is damaged or cut short", skip=True),
    refused("zst-cut-end", "Zstandard", "last byte missing", damaged(ZST, lambda content: content[:-1]), "is damaged or cut short", skip=True),
    refused("zst-cut-frame", "Zstandard", "second frame cut short", damaged(ZST, lambda content: content + content[:100]), "is damaged or cut short", skip=True),
    refused("zst-flipped", "Zstandard", "damaged in the middle", damaged(ZST, flipped), "is damaged or cut short", skip=True),
    refused("zst-trailing", "Zstandard", "other bytes after the end", damaged(ZST, lambda content: content + b"garbage"), "is damaged or cut short", skip=True),
    refused("zst-plain", "Zstandard", "plain text under a compressed name", file("docs.jsonl.zst", GOOD), "is damaged or cut short"),
    refused("zst-empty", "Zstandard", "empty file", file("docs.jsonl.zst", b""), "holds no documents"),
    handled("zst-frames", "Zstandard", "several frames", file("docs.jsonl.zst", zst(GOOD[:9]) + zst(GOOD[9:])), "1 document from 1 row"),
    # Tables.
    refused("csv-empty", "CSV", "empty file", file("docs.csv", b""), "holds no documents"),
    refused("csv-header-only", "CSV", "header without rows", file("docs.csv", b"id,text\n"), "holds no documents, for it has no rows"),
    refused("csv-no-text", "CSV", "no column of texts", file("docs.csv", b"id,body\n1,a\n"), "has no column 'text' or 'title' (but 'id', 'body')"),
    refused("csv-no-text-skip", "CSV", "no column of texts", file("docs.csv", b"id,body\n1,a\n"), "has no column 'text' or 'title'", skip=True),
    handled("csv-title-only", "CSV", "titles only", file("docs.csv", b"id,title\n1,a\n"), "1 document from 1 row"),
    refused("csv-semicolon", "CSV", "separated by semicolons", file("docs.csv", b"id;text\n1;a\n"), "has no column 'text' or 'title' (but 'id;text')"),
    refused("csv-column-twice", "CSV", "column twice", file("docs.csv", b"text,text\na,b\n"), "has the column 'text' twice"),
    refused("csv-columns", "CSV", "row with a column too few", table(b"1,a"), "line 3 does not have 3 columns but 2"),
    refused("csv-columns-more", "CSV", "row with a column too many", table(b"1,a,b,c"), "line 3 does not have 3 columns but 4"),
    handled("csv-columns-skip", "CSV", "row with a column too many", table(b"1,a,b,c", b"2,b,k"), "2 documents from 3 rows: 1 row skipped", skip=True),
    refused("csv-line-ends", "CSV", "bad row after quoted line ends", table(b'1,"a\n\nb",k', b"", b"2"), "line 7 does not have 3 columns but 1"),
    refused("csv-quote", "CSV", "text after a closing quote", table(b'1,"a"b,k'), "line 3 is not ','-separated text"),
    handled("csv-quote-skip", "CSV", "text after a closing quote", table(b'1,"a"b,k', b"2,b,k"), "1 row skipped", skip=True),
    refused("csv-open", "CSV", "quote that is never closed", table(b'1,"a,k', b"2,b,k", b"3,c,k"), "ends inside the row that begins at line 3"),
    refused("csv-open-skip", "CSV", "quote that is never closed", table(b'1,"a,k', b"2,b,k", b"3,c,k"), "ends inside the row that begins at line 3", skip=True),
    refused("csv-not-utf8", "CSV", "invalid UTF-8", table(b"1,caf\xe9,k"), "line 3 holds bytes or escapes under 'text' that are no text in UTF-8"),
    handled("csv-not-utf8-skip", "CSV", "invalid UTF-8", table(b"1,caf\xe9,k", b"2,b,\xff"), "2 rows skipped", skip=True),
    handled("csv-bom", "CSV", "UTF-8 byte order mark", file("docs.csv", b"\xef\xbb\xbftext\na\n"), "1 document from 1 row"),
    refused("csv-utf16", "CSV", "UTF-16", file("docs.csv", "text\na\n".encode("utf-16")), "begins like UTF-16"),
    refused("csv-zip", "CSV", "spreadsheet under the name of a table", file("docs.csv", b"PK\x03\x04\x14\0"), "begins like a zip archive or a spreadsheet"),
    handled("csv-field", "CSV", "field of 1 MB", table(b"1,%s,k" % (b"word " * 200_000)), "2 documents from 2 rows"),
    handled("csv-nul", "CSV", "NUL in a text", table(b"1,a\0b,k"), "2 documents from 2 rows"),
    handled("csv-no-id", "CSV", "empty id", table(b",a,k"), "1 row without an id, known by number"),
    refused("csv-carriage", "CSV", "lines that end in CR alone", file("docs.csv", b"id,text\r1,a\r"), "line 1 is not ','-separated text"),
    refused("csv-header", "CSV", "broken header", file("docs.csv", b'"id"x,text\nid,text\n1,a\n'), "line 1 is not ','-separated text", skip=True),
    refused("tsv-quote", "TSV", "text that begins with a quote", file("docs.tsv", b'id\ttext\n1\t"Hi" she said\n'), "line 2 is not '\\t'-separated text"),
    # Parquet.
    refused("parquet-cut", "Parquet", "cut short", damaged(PARQUET, cut), "is damaged or cut short", skip=True),
    refused("parquet-flipped", "Parquet", "damaged in its end", damaged(PARQUET, lambda content: content[:-40] + b"\xff" * 32 + content[-8:]), "is damaged or cut short", skip=True),
    refused("parquet-name", "Parquet", "column name that is not UTF-8", damaged(parquet(text=["a"], raw=["b"]), lambda content: content.replace(b"raw", b"r\xffw")), "is damaged or cut short ('utf-8' codec can't decode"),
    refused("parquet-not", "Parquet", "text under the name of Parquet", file("docs.parquet", GOOD), "is damaged or cut short"),
    refused("parquet-empty", "Parquet", "empty file", file("docs.parquet", b""), "is damaged or cut short"),
    refused("parquet-gz", "Parquet", "compressed as a whole", file("docs.parquet.gz", gzip.compress(b"PAR1")), "is of no kind that is known"),
    refused("parquet-no-rows", "Parquet", "no rows", parquet(text=pyarrow.array([], pyarrow.string())), "holds no documents, for it has no rows"),
    refused("parquet-no-text", "Parquet", "no column of texts", parquet(id=["a"], body=["b"]), "has no column 'text' or 'title' (but 'id', 'body')"),
    refused("parquet-text-number", "Parquet", "numbers as texts", parquet(text=[1, 2]), "row 0 (counted from 0) holds a value of type int under 'text'"),
    refused("parquet-text-number-skip", "Parquet", "numbers as texts", parquet(text=[1, 2]), "holds no documents, for none of its rows can be read (row 0", skip=True),
    refused("parquet-id-float", "Parquet", "fractions as ids", parquet(text=["a"], id=[1.0]), "holds a value of type float under 'id'"),
    refused("parquet-bytes", "Parquet", "bytes in metadata", parquet(text=["a", "b"], raw=[None, b"\xff"]), "row 1 (counted from 0) holds a value of type bytes under 'raw'"),
    refused("parquet-far", "Parquet", "NaN in row 1,000", parquet(text=["a"] * 1001, n=[0.5] * 1000 + [float("nan")]), "row 1000 (counted from 0) holds nan under 'n'"),
    handled("parquet-bytes-skip", "Parquet", "bytes in metadata", parquet(text=["a", "b"], raw=[None, b"\xff"]), "1 document from 2 rows: 1 row without an id, known by number, 1 row skipped", skip=True),
    refused("parquet-nan", "Parquet", "NaN in metadata", parquet(text=["a", "b"], n=[0.5, float("nan")]), "row 1 (counted from 0) holds nan under 'n'"),
    refused("parquet-not-utf8", "Parquet", "invalid UTF-8", parquet(text=NOT_UTF8_COLUMN), "row 0 (counted from 0) holds a value that cannot be read"),
    handled("parquet-not-utf8-skip", "Parquet", "invalid UTF-8", parquet(text=NOT_UTF8_COLUMN), "1 document from 2 rows", skip=True),
    refused("parquet-year", "Parquet", "date after the year 9999", parquet(text=["a"], day=YEAR_20000), "row 0 (counted from 0) holds a value that cannot be read"),
    handled("parquet-date", "Parquet", "date in metadata", parquet(text=["a"], day=[datetime.date(1987, 1, 2)]), "1 document from 1 row"),
    handled("parquet-null", "Parquet", "null as text", parquet(id=[1, 2], text=["a", None]), "2 documents (1 empty) from 2 rows"),
    # Folders.
    refused("folder-empty", "folder", "nothing in it", folder(), "holds neither corpus.jsonl nor texts"),
    refused("folder-shards", "folder", "tables, but no texts", folder(file("a.jsonl", GOOD), file("b.jsonl", GOOD)), "it has 'a.jsonl', 'b.jsonl': give one of them"),
    refused("folder-other", "folder", "no texts", folder(file("a.pdf", b"")), "holds neither corpus.jsonl nor texts"),
    refused("folder-hidden", "folder", "hidden texts only", folder(file(".a.txt", b"a")), "holds neither corpus.jsonl nor texts"),
    handled("folder-mixed", "folder", "files of other kinds", folder(file("a.txt", b"a"), file("b.pdf", b"%PDF")), "1 document from 1 row: 1 file of another kind ignored"),
    handled("folder-loop", "folder", "link to the folder itself", folder(file("a.txt", b"a"), link("again", ".")), "1 document from 1 row: 1 file of another kind ignored"),
    refused("folder-link", "folder", "text that is a link to nothing", folder(file("a.txt", b"a"), link("b.txt", "gone")), "'b.txt' cannot be read (No such file or directory"),
    handled("folder-link-skip", "folder", "text that is a link to nothing", folder(file("a.txt", b"a"), link("b.txt", "gone")), "1 row skipped", skip=True),
    handled("folder-pipe", "folder", "named pipe among the texts", folder(file("a.txt", b"a"), pipe("b.txt")), "1 file of another kind ignored"),
    refused("folder-not-utf8", "folder", "text that is not UTF-8", folder(file("a.txt", b"a"), file("b.txt", b"caf\xe9")), "'b.txt' is not UTF-8 (at byte 4)"),
    handled("folder-not-utf8-skip", "folder", "text that is not UTF-8", folder(file("a.txt", b"a"), file("b.txt", b"caf\xe9")), "1 row skipped", skip=True),
    refused("folder-utf16", "folder", "text in UTF-16", folder(file("a.txt", "a".encode("utf-16"))), "'a.txt' begins like UTF-16 text"),
    handled("folder-empty-text", "folder", "empty text", folder(file("a.txt", b"a"), file("b.md", b"")), "2 documents (1 empty) from 2 rows"),
    refused("folder-no-permission", "folder", "text without permission", folder(locked(file("a.txt", b"a"))), "'a.txt' cannot be read (no permission"),
    refused("beir-bad-row", "BEIR folder", "broken JSON", folder(file("corpus.jsonl", BROKEN), file("a.txt", b"a")), "corpus.jsonl, line 1 is not one JSON object"),
]  # fmt: skip


@pytest.mark.parametrize("threat", CORPORA, ids=lambda threat: threat.id)
def test_threat(threat: Threat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    index = tmp_path / "out" / "docs.vicinal"
    index.parent.mkdir()
    limit = csv.field_size_limit()
    path = threat.make(tmp_path / "in", monkeypatch)

    outcome = run_index(path, index, skip=threat.skip)

    csv.field_size_limit(limit)
    assert threat.said in outcome.said
    assert outcome.exit_code == (0 if threat.verdict == "handled" else 2)
    assert index.exists() == (threat.verdict == "handled")
    if threat.verdict == "refused":
        assert str(path) in outcome.said and "\n" not in outcome.said and ":" in outcome.said.replace(str(path), "")
        assert not [path for path in index.parent.iterdir() if path.suffix != ".lock"]


def test_the_page_shows_exactly_these_rows() -> None:
    section = re.search(r"^## Corpora\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None
    shown = [line for line in section[1].splitlines() if line.startswith("| ") and "`test_threat[" in line]
    assert shown == [threat.row for threat in CORPORA]


def test_no_two_rows_share_a_name() -> None:
    assert len({threat.id for threat in CORPORA}) == len(CORPORA)


if __name__ == "__main__":
    print("\n".join(threat.row for threat in CORPORA))
