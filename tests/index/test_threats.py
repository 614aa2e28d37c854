# ruff: noqa: E501 (the table has a line for each threat)
"""Broken indexes, a row each: what is wrong, and what becomes of it. docs/threats.md shows the same rows, no others.

`python tests/index/test_threats.py` prints the rows for that page.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vicinal import cli, files
from vicinal.index.segments import MANIFEST, MANIFEST_BYTES

PAGE = Path(__file__).parent.parent.parent / "docs" / "threats.md"

# What is done with an index: the arguments of the command line. {index}, {corpus} and {other} are paths.
SEARCH = ("search", "{index}", "rent of a roof", "--mode", "bm25")
VECTORS = ("export", "{index}", "-o", "{index}.parquet")
VERIFY = ("verify", "{index}")
INDEX = ("index", "{corpus}", "-o", "{index}", "--model", "tiny", "--quiet")


@dataclass(frozen=True)
class Threat:
    """One row; `said` stands word for word in what the user sees."""

    id: str
    format: str
    fault: str
    make: Callable[[Any], None]  # takes what conftest calls a forger
    verdict: str
    said: str
    command: tuple[str, ...] = SEARCH

    @property
    def row(self) -> str:
        said = self.said.replace("|", "\\|")
        fault = f"{self.fault} (`{self.command[0]}`)"
        return f"| {self.format} | {fault} | {self.verdict} | {said} | `test_index_threat[{self.id}]` |"


def refused(id: str, format: str, fault: str, make: Callable[[Any], None], said: str, *command: str) -> Threat:
    return Threat(id, format, fault, make, "refused", said, command or SEARCH)


def handled(id: str, format: str, fault: str, make: Callable[[Any], None], said: str, *command: str) -> Threat:
    return Threat(id, format, fault, make, "handled", said, command or SEARCH)


# --- Ways to break an index.

Break = Callable[[Any], None]


def at(name: str, harm: Callable[[Path], object]) -> Break:
    """Harm the first file of a name; hashes stay as they are."""
    return lambda forger: harm(next(path for path in sorted(forger.index.rglob(name))))


def gone(path: Path) -> None:
    path.unlink()


def short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flipped(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])


def linked(path: Path) -> None:
    elsewhere = path.parents[[p.name for p in path.parents].index("library.vicinal")].parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def manifest(content: bytes) -> Break:
    return lambda forger: (forger.index / MANIFEST).write_bytes(content)


def claims(**changed: Any) -> Break:
    return lambda forger: forger.write(forger.body | changed)


def segment(**changed: Any) -> Break:
    return lambda forger: forger.segment(**changed)


def names(name: str) -> Break:
    return lambda forger: forger.segment(files={name: {"bytes": 1, "sha256": "0" * 64}})


def tensors(name: str, **changed: Any) -> Break:
    return lambda forger: forger.tensors(name, **changed)


def replaced(name: str, content: bytes | Callable[[bytes], bytes]) -> Break:
    def make(forger: Any) -> None:
        old = next(forger.index.rglob(name)).read_bytes()
        forger.replace(name, content(old) if callable(content) else content)

    return make


def sql(*statements: str) -> Break:
    return lambda forger: forger.sql(*statements)


def settings(**changed: Any) -> Break:
    return replaced("lexical.json", lambda old: json.dumps(json.loads(old) | changed).encode())


def terms(**changed: Any) -> Break:
    return replaced("vocab.index.json", lambda old: json.dumps(json.loads(old) | changed).encode())


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("exploded",))


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


def tombstones(content: Any) -> Break:
    def make(forger: Any) -> None:
        (forger.index / "tombstones").mkdir()
        np.save(forger.index / "tombstones" / "x.npy", np.array(content))
        forger.accept(forger.index / "tombstones" / "x.npy")

    return make


def swapped(forger: Any) -> None:
    one, other = (next(forger.index.rglob(name)) for name in ("indices.csc.index.npy", "data.csc.index.npy"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def stranger(name: str) -> Break:
    def make(forger: Any) -> None:
        (forger.index / name).parent.mkdir(parents=True, exist_ok=True)
        (forger.index / name).write_bytes(b"not ours")

    return make


def as_it_is(forger: Any) -> None:
    """Nothing is wrong with the index itself."""


def nothing(forger: Any) -> None:
    shutil.rmtree(forger.index)


def not_an_index(forger: Any) -> None:
    nothing(forger)
    forger.index.mkdir()
    (forger.index / "mine.txt").write_text("mine")


def another_programs_folder(forger: Any) -> None:
    """A web page has a manifest.json too, and a stream may have segments."""
    nothing(forger)
    (forger.index / "segments").mkdir(parents=True)
    (forger.index / "manifest.json").write_text('{"name": "My page"}')
    (forger.index / "segments" / "film1.ts").write_text("mine")


def a_damaged_partial(forger: Any) -> None:
    """What a killed build left, and a failing disk has changed since."""
    nothing(forger)
    partial = forger.index.with_name(f".{forger.index.name}.partial")
    partial.mkdir()
    (partial / "state.json").write_text("garbage")
    (partial / "documents.sqlite").write_bytes(b"garbage")


def a_file(forger: Any) -> None:
    nothing(forger)
    forger.index.write_text("mine")


def a_pipe(forger: Any) -> None:
    nothing(forger)
    os.mkfifo(forger.index)


def a_link_to_nothing(forger: Any) -> None:
    nothing(forger)
    forger.index.symlink_to(forger.index)


def no_folder(forger: Any) -> None:
    nothing(forger)
    forger.index.parent.rename(forger.index.parent.with_name("away"))


def busy(forger: Any) -> None:
    lock = files.alone(forger.index)
    lock.__enter__()
    forger.held = lock


def full(forger: Any) -> None:
    nothing(forger)

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    forger.patch.setattr(files, "flush", fail)


def half_written(forger: Any) -> None:
    """What a killed build of something else leaves."""
    nothing(forger)
    partial = forger.index.with_name(f".{forger.index.name}.partial")
    partial.mkdir()
    (partial / "state.json").write_text('{"version": [1, "0.0.0"], "request": {}}')
    (partial / "documents.sqlite").write_bytes(b"half")
    forger.index.with_name(f".{forger.index.name}.lock").touch()


def both(*harms: Break) -> Break:
    def make(forger: Any) -> None:
        for harm in harms:
            harm(forger)

    return make


def overwritten(*command: str) -> tuple[str, ...]:
    return (*command, "--overwrite")


NAN, FAR = np.full((39, 8), np.nan, dtype=np.float16), np.full(39, 1 << 40, dtype=np.int64)
DEEP = b'{"a":' * 100_000
VIEW = ("ALTER TABLE documents RENAME TO old", "CREATE VIEW documents AS SELECT * FROM old")

INDEXES = [
    refused("none", "INDEX", "nothing there", nothing, "there is no index at"),
    refused("not-one", "INDEX", "a folder of something else", not_an_index, "there is no index at"),
    refused("a-file", "INDEX", "a file", a_file, "there is no index at"),
    handled("stranger", "INDEX", "a file that is not part of it", stranger("notes.txt"), "is not part of the index: it is never read", *VERIFY),
    handled("stranger-segment", "INDEX", "what a killed build left inside", stranger("segments/segment-0/dense-000000.safetensors"), "is not part of the index: it is never read", *VERIFY),
    refused("swapped", "INDEX", "two files of one size changed places", swapped, "holds other bytes than were written", *VERIFY),
    refused("manifest-gone", "manifest", "missing", at(MANIFEST, gone), "there is no index at"),
    refused("manifest-empty", "manifest", "empty", manifest(b""), "is not what was written"),
    refused("manifest-cut", "manifest", "cut short", at(MANIFEST, short), "is not what was written"),
    refused("manifest-flipped", "manifest", "a changed bit", at(MANIFEST, flipped), "is not what was written", *VERIFY),
    refused("manifest-not-utf8", "manifest", "not UTF-8", manifest(b"\xff\xfe{}"), "is not what was written"),
    refused("manifest-deep", "manifest", "nested 100,000 levels deep", manifest(DEEP), "is not what was written"),
    refused("manifest-long", "manifest", "longer than 64 MiB", manifest(b" " * (MANIFEST_BYTES + 1)), "is not what was written"),
    refused("manifest-hash", "manifest", "edited, with another hash", manifest(b'{\n  "format": 1,\n  "sha256": "0"\n}\n'), "is not what was written"),
    refused("manifest-shape", "manifest", "edited, with its hash: another shape", claims(segments=[{}]), "has another shape than format 1"),
    refused("manifest-outside", "manifest", "edited, with its hash: names `../../etc/passwd`", names("../../etc/passwd"), "names files outside the index: do not use it"),
    refused("manifest-absolute", "manifest", "edited, with its hash: names `/etc/passwd`", names("/etc/passwd"), "names files outside the index: do not use it"),
    refused("manifest-format", "manifest", "of a newer format", claims(format=2), "this version does not know format 2"),
    refused("manifest-requires", "manifest", "of this format, with what a newer version added", claims(requires=["sparse"]), "this version does not know sparse"),
    handled("manifest-extra", "manifest", "of this format, with a field more", claims(later=1), "  1  "),
    refused("manifest-context", "manifest", "encoded with a context that is none", segment(context={"fingerprint": "x"}), "has another shape than format 1"),
    refused("manifest-link", "manifest", "a link to elsewhere", at(MANIFEST, linked), "is not what was written"),
    refused("sqlite-gone", "documents", "missing", at("documents.sqlite", gone), "documents.sqlite is missing"),
    refused("sqlite-cut", "documents", "cut short", at("documents.sqlite", short), "were written"),
    refused("sqlite-flipped", "documents", "a changed bit", at("documents.sqlite", flipped), "holds other bytes than were written", *VERIFY),
    refused("sqlite-link", "documents", "a link to elsewhere", at("documents.sqlite", linked), "is a link, or behind one"),
    refused("sqlite-not", "documents", "no database, with its hash", replaced("documents.sqlite", b"x" * 999), "file is not a database"),
    refused("sqlite-view", "documents", "a view in place of the table, with its hash", sql(*VIEW), "its table is another"),
    refused("sqlite-few", "documents", "fewer than were written, with its hash", sql("DELETE FROM documents WHERE number > 30"), "do not fit together"),
    refused("sqlite-hole", "documents", "one in the middle missing, with its hash", sql("DELETE FROM documents WHERE number = 7"), "documents asked for", *VECTORS),
    refused("sqlite-bytes", "documents", "bytes as text, with its hash", sql("UPDATE documents SET text = x'00ff'"), "holds other types than were written"),
    refused("sqlite-metadata", "documents", "metadata that is no JSON, with its hash", sql("UPDATE documents SET metadata = '{'"), "cannot be read"),
    refused("dense-gone", "vectors", "missing", at("dense-*", gone), "dense-000000.safetensors is missing"),
    refused("dense-cut", "vectors", "cut short", at("dense-*", short), "were written"),
    refused("dense-flipped", "vectors", "a changed bit", at("dense-*", flipped), "holds other bytes than were written", *VERIFY),
    refused("dense-header", "vectors", "a header that is none, with its hash", replaced("dense-*", b"\xff" * 700), "dense-000000.safetensors cannot be read"),
    refused("dense-pickle", "vectors", "a pickle, with its hash", replaced("dense-*", pickled()), "dense-000000.safetensors cannot be read"),
    refused("dense-width", "vectors", "of another width, with their hash", tensors("dense-*", dense=np.ones((39, 7), dtype=np.float16)), "holds other numbers than were written"),
    refused("dense-few", "vectors", "fewer than passages, with their hash", tensors("dense-*", dense=np.ones((9, 8), dtype=np.float16)), "do not fit together"),
    refused("passages-far", "passages", "of documents that are not there, with their hash", tensors("passages-*", document=FAR), "passages of documents that are not there"),
    refused("passages-span", "passages", "that end outside their document, with their hash", tensors("passages-*", stop=FAR), "has a passage that its document does not hold"),
    refused("passages-tensor", "passages", "without one of their tensors, with their hash", tensors("passages-*", start=None), "passages-000000.safetensors cannot be read"),
    refused("bm25-gone", "words", "missing", at("indptr*", gone), "indptr.csc.index.npy is missing"),
    refused("bm25-flipped", "words", "a changed bit", at("vocab*", flipped), "holds other bytes than were written", *VERIFY),
    refused("bm25-pickle", "words", "a pickle, with its hash", replaced("frequencies.npy", pickled()), "cannot be read"),
    refused("bm25-vocabulary", "words", "a term that leads nowhere, with its hash", terms(rent=10**6), "rows or terms that are not there"),
    refused("bm25-nan", "words", "scores that are no numbers, with their hash", replaced("data*", lambda old: old[:128] + b"\xff" * (len(old) - 128)), "a score is not a number"),
    refused("bm25-language", "words", "in a language that nothing can stem, with its hash", settings(language="klingon"), "is not a language that words can be stemmed in"),
    refused("bm25-rules", "words", "told apart by newer rules", settings(rules=2), "were told apart by rules 2, this version knows 1"),
    refused("tombstones-far", "tombstones", "of documents that are not there, with their hash", tombstones([40]), "names documents that are not there"),
    refused("tombstones-not", "tombstones", "no numbers, with their hash", tombstones(["a"]), "names documents that are not there"),
    handled("new", "`index`", "an empty folder at INDEX", both(nothing, lambda forger: forger.index.mkdir()), '"is_new": true', *INDEX, "--json", "-"),
    refused("over-another", "`index`", "an index of another corpus at INDEX", lambda forger: None, "--overwrite replaces it", *INDEX),
    handled("over-another-asked", "`index`", "the same, with `--overwrite`", lambda forger: None, '"is_new": true', *overwritten(*INDEX), "--json", "-"),
    refused("over-damaged", "`index`", "a damaged index at INDEX", at(MANIFEST, short), "differs in its bytes (its manifest is damaged): --overwrite replaces it", *INDEX),
    handled("over-damaged-asked", "`index`", "the same, with `--overwrite`", at(MANIFEST, short), '"is_new": true', *overwritten(*INDEX), "--json", "-"),
    refused("over-newer", "`index`", "an index of a newer format at INDEX, with `--overwrite`", claims(format=2), "this version does not know format 2", *overwritten(*INDEX)),
    refused("over-folder", "`index`", "a folder of something else at INDEX, with `--overwrite`", not_an_index, "exists and is not an index", *overwritten(*INDEX)),
    refused("over-page", "`index`", "another program's folder with a manifest.json and segments, with `--overwrite`", another_programs_folder, "exists and is not an index", *overwritten(*INDEX)),
    refused("over-file", "`index`", "a file at INDEX, with `--overwrite`", a_file, "exists and is not an index", *overwritten(*INDEX)),
    refused("over-pipe", "`index`", "a named pipe at INDEX", a_pipe, "exists and is not an index", *INDEX),
    refused("over-link", "`index`", "a link to itself at INDEX", a_link_to_nothing, "exists and is not an index", *INDEX),
    refused("no-folder", "`index`", "no folder to put INDEX into", no_folder, "there is no folder", *INDEX),
    refused("busy", "`index`", "another process writes INDEX", busy, "another process is writing", *overwritten(*INDEX)),
    refused("full", "`index`", "the disk is full", full, "the disk is full (No space left on device", *INDEX),
    handled("half-damaged", "`index`", "what a killed build left, damaged since", a_damaged_partial, '"is_new": true', *INDEX, "--json", "-"),
    refused("seed", "`index`", "a seed that no index can keep", nothing, "expected 0 to 2,147,483,647", *INDEX, "--seed", str(1 << 63)),
    refused("size", "`index`", "a context of more documents than can be counted", nothing, "expected 1 to 2,147,483,647", *INDEX, "--context-size", str(1 << 63)),
    refused("json-manifest", "`info`", "`--json` onto a file of the index", as_it_is, "lies inside the index", "info", "{index}", "--json", "{index}/manifest.json"),
    refused("json-stranger", "`verify`", "`--json` into the index", as_it_is, "lies inside the index", "verify", "{index}", "--json", "{index}/verify.json"),
    refused("json-corpus", "`index`", "`--json` onto the corpus", nothing, "to be read and to be written", *INDEX, "--json", "{corpus}"),
    refused("json-target", "`index`", "`--json` onto INDEX", nothing, "would be written twice", *INDEX, "--json", "{index}"),
    handled("half-written", "`index`", "what a killed build of something else left, and its lock", half_written, '"is_new": true', *INDEX, "--json", "-"),
]  # fmt: skip


def run(*arguments: str) -> tuple[int, str]:
    """What a user sees of the command line."""
    told = io.StringIO()
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as out, redirect_stderr(told):
        try:
            cli.app(list(arguments), prog_name="vicinal", standalone_mode=True)
        except SystemExit as end:
            code = int(end.code or 0)
        out.flush()
    written = out.buffer.getvalue().decode()  # type: ignore[union-attr]
    return code, told.getvalue() if code else written


@pytest.mark.parametrize("threat", INDEXES, ids=lambda threat: threat.id)
def test_index_threat(threat: Threat, forger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if threat.id == "over-pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    monkeypatch.chdir(tmp_path)
    forger.patch = monkeypatch
    corpus = tmp_path.parent / f"{tmp_path.name}.jsonl"
    corpus.write_text('{"text": "rent"}\n{"text": "roof"}\n')
    threat.make(forger)
    before = everything(tmp_path)

    code, said = run(*(argument.format(index=forger.index, corpus=corpus) for argument in threat.command))

    after = everything(tmp_path)
    if hasattr(forger, "held"):
        forger.held.__exit__(None, None, None)
    assert threat.said in said
    assert code == (0 if threat.verdict == "handled" else 2)
    if threat.verdict == "refused":
        sentences = said.splitlines()
        assert len(sentences) == 1 or (threat.command == VERIFY and len(sentences) == 2)
        assert all(sentence.startswith("error: ") and ":" in sentence[7:] for sentence in sentences)
        left = {name for name in after if not name.startswith(".library.vicinal.partial")}
        assert {name: after[name] for name in left} == before, "what was there is as it was"
        assert left == set(after) or threat.id == "full", "only what was interrupted leaves what is of use"
    assert not (tmp_path / "exploded").exists()


def everything(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else b"" for name, path in found.items()}


def test_the_page_shows_exactly_these_rows() -> None:
    section = re.search(r"^## Indexes\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None
    shown = [line for line in section[1].splitlines() if line.startswith("| ") and "`test_index_threat[" in line]
    assert shown == [threat.row for threat in INDEXES]


def test_no_two_rows_share_a_name() -> None:
    assert len({threat.id for threat in INDEXES}) == len(INDEXES)


if __name__ == "__main__":
    sys.stdout.write("\n".join(threat.row for threat in INDEXES) + "\n")
