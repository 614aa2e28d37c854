"""Crashes: killed at any moment, an index is whole, or the old one, or not there; and the next run completes it.

As SQLite and restic do: all durability passes through `files.flush` and `files.rename`. A shim there keeps a model of
the disk, in which only what was flushed is sure. At the n-th call, for every n, the machine dies: of the rest any part
may have reached the disk, some of it torn, some of it not at all. Then processes are killed for real.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from vicinal import Corpus, Document, Encoder, Index, documents, files
from vicinal.errors import IndexRefused, VicinalError
from vicinal.index import build as building
from vicinal.index.segments import MANIFEST, Manifest, strangers, verify

DOCUMENTS = [Document(f"d{n}", "T" * (n % 2), f"rent {n} roof", {"n": n}) for n in range(5)]
VECTORS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def build(index: Path, count: int = 5, *, overwrite: bool = False, keep_text: bool = True) -> None:
    given = DOCUMENTS[:count] if keep_text else None
    ids = [document.id for document in DOCUMENTS[:count]]
    Index.from_vectors(index, ids, VECTORS[:count], given, overwrite=overwrite, language="english").close()


def bytes_of(index: Path) -> dict[str, bytes]:
    return {path.relative_to(index).as_posix(): path.read_bytes() for path in index.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed when is told by `files.flush`; that the system does it would take most of the time here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# --- The machine dies at the n-th call.


class Crash(BaseException):
    """The end of the machine."""


class Disk:
    """What is on the disk below a folder: for sure what was flushed, and of the rest what chance leaves.

    A file's bytes and its name are flushed each on its own: the file, and the folder that holds the name. A rename is
    one step: it has happened, or it has not.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bytes: dict[int, bytes] = {}  # of a file, by its inode
        self.names: dict[int, dict[str, int]] = {}  # in a folder, by its inode
        self.held: dict[int, int] = {}  # open files, so that no inode is used again
        for folder, _, _ in os.walk(root, topdown=False):
            for path in Path(folder).iterdir():
                self.flush(path)
        self.flush(root)

    def flush(self, path: Path) -> None:
        inode = self._hold(path)
        if path.is_file():
            self.bytes[inode] = path.read_bytes()
            return
        now = {inner.name: self._hold(inner) for inner in path.iterdir()}
        for others in self.names.values():  # what was moved here is gone from where it was
            for name in [name for name, moved in others.items() if moved in now.values()]:
                del others[name]
        self.names[inode] = now

    def after_a_crash(self, image: Path, chance: Callable[[], bool]) -> None:
        """Write what may be found after a crash: `chance` says whether what was not flushed got there."""
        self._path_of = {path.stat().st_ino: path for path in [self.root, *self.root.rglob("*")]}
        sure = {inode: (folder, name) for folder, inner in self.names.items() for name, inode in inner.items()}
        now = {inode: (path.parent.stat().st_ino, path.name) for inode, path in self._path_of.items()}
        moved = {inode for inode in sure if inode in now and now[inode] != sure[inode]}
        self._arrived = {inode: chance() for inode in moved}
        self._write(self.root.stat().st_ino, image, chance)

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)

    def _hold(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def _write(self, folder: int, image: Path, chance: Callable[[], bool]) -> None:
        image.mkdir(parents=True)
        sure = self.names.get(folder, {})
        here = self._path_of.get(folder)
        now = {path.name: path.stat().st_ino for path in here.iterdir()} if here is not None else {}
        for name in sorted({*sure, *now}):
            old, new = sure.get(name), now.get(name)
            if old != new:
                if self._arrived.get(old):  # type: ignore[arg-type]
                    old = None
                if new in self._arrived:
                    old = new if self._arrived[new] else old
                elif chance():
                    old = new
            if old is not None:
                self._write_one(old, image / name, chance)

    def _write_one(self, inode: int, image: Path, chance: Callable[[], bool]) -> None:
        path = self._path_of.get(inode)
        if inode in self.names or (path is not None and path.is_dir()):
            self._write(inode, image, chance)
            return
        flushed = self.bytes.get(inode, b"")
        latest = path.read_bytes() if path is not None else flushed
        if latest != flushed and chance():
            torn = latest if chance() else latest[: len(latest) // 2] if chance() else b"\0" * len(latest)
            flushed = torn
        image.write_bytes(flushed)


CHANCES: dict[str, Callable[[random.Random], Callable[[], bool]]] = {
    "nothing": lambda numbers: lambda: False,
    "everything": lambda numbers: lambda: True,
    "some": lambda numbers: lambda: numbers.random() < 0.5,
    "most": lambda numbers: lambda: numbers.random() < 0.8,
}


@contextmanager
def dying(root: Path, at: int) -> Iterator[tuple[Disk, list[str]]]:
    """Let the machine die at a call to the disk, counted from 0; yields the disk, and the calls."""
    disk, calls = Disk(root), list[str]()

    def call(what: str) -> None:
        if len(calls) == at:
            raise Crash
        calls.append(what)

    def flush(path: Path) -> None:
        call(f"flush {path.name}")
        disk.flush(path)

    def rename(source: Path, target: Path) -> None:
        call(f"rename {target.name}")
        source.replace(target)

    def remove(path: Path) -> None:
        if len(calls) != at or sys.exc_info()[0] is None:  # the dead tidy nothing up
            kept_remove(path)

    kept_remove = files.remove
    with pytest.MonkeyPatch.context() as patch:
        for module, name, shim in ((files, "flush", flush), (files, "rename", rename), (files, "remove", remove)):
            patch.setattr(module, name, shim)
        patch.setattr(documents, "remove", remove)
        try:
            yield disk, calls
        finally:
            disk.close()


def died_at_every_call(
    tmp_path: Path, start: Callable[[Path], None], work: Callable[[Path], None], chances: dict[str, int]
) -> Iterator[tuple[Path, list[str]]]:
    """Every disk that may be found, with the calls until the machine died."""
    at = 0
    while True:
        machine = tmp_path / f"machine-{at}"
        machine.mkdir()
        start(machine)
        images = []
        with dying(machine, at) as (disk, calls):
            try:
                work(machine)
                died = False
            except Crash:
                died = True
            for kind, times in chances.items():
                for time_ in range(times):
                    image = tmp_path / f"image-{at}-{kind}-{time_}"
                    disk.after_a_crash(image, CHANCES[kind](random.Random(f"{at} {kind} {time_}")))
                    images.append(image)
        shutil.rmtree(machine)
        for image in images:
            yield image, calls
            shutil.rmtree(image)
        if not died:
            return
        at += 1


SCENES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "new": (lambda machine: None, lambda machine: build(machine / "i")),
    "new-onto-an-empty-folder": (lambda machine: (machine / "i").mkdir(), lambda machine: build(machine / "i")),
    "new-without-text": (lambda machine: None, lambda machine: build(machine / "i", keep_text=False)),
    "overwrite": (
        lambda machine: build(machine / "i", 3),
        lambda machine: build(machine / "i", overwrite=True),
    ),
}


def dies(tmp_path: Path, scene: str, chances: dict[str, int]) -> None:
    start, work = SCENES[scene]
    for name, steps in (("before", [start]), ("after", [start, work])):
        (tmp_path / name).mkdir()
        for step in steps:
            step(tmp_path / name)
    old = bytes_of(tmp_path / "before" / "i") if (tmp_path / "before" / "i").is_dir() else {}
    new = bytes_of(tmp_path / "after" / "i")
    seen = {"old": 0, "new": 0}
    for image, calls in died_at_every_call(tmp_path, start, work, chances):
        index = image / "i"
        if (index / MANIFEST).exists():
            assert verify(index) == [], calls
            manifest = (index / MANIFEST).read_bytes()
            assert manifest in (old.get(MANIFEST), new[MANIFEST])
            with Index.open(index) as opened:
                assert opened.search_vector(VECTORS[0], 1)[0].id == "d0"
            seen["new" if manifest == new[MANIFEST] else "old"] += 1
        else:
            assert not old and (not index.exists() or names(index) == []), f"{calls}: half an index"
            with pytest.raises(IndexRefused):
                Index.open(index)
            seen["old"] += 1
        work(image)
        assert bytes_of(index) == new, calls
        assert names(image) == ["i"] and strangers(index, Manifest.read(index)) == []
    assert min(seen.values()) > 0 and sum(seen.values()) > 30


needs_inodes = pytest.mark.skipif(sys.platform == "win32", reason="the model of the disk holds folders open")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "WINDOW_DOCUMENTS", 3)


@needs_inodes
@pytest.mark.parametrize("scene", SCENES)
def test_whenever_the_machine_dies_the_index_is_whole_or_absent_and_the_next_run_completes_it(
    tmp_path: Path, small_windows: None, scene: str
) -> None:
    dies(tmp_path, scene, {"some": 2 if scene == "new" else 1})


@pytest.mark.slow
@needs_inodes
@pytest.mark.parametrize("scene", SCENES)
def test_whenever_the_machine_dies_and_whatever_reached_the_disk(
    tmp_path: Path, small_windows: None, scene: str
) -> None:
    dies(tmp_path, scene, {"nothing": 1, "everything": 1, "some": 6, "most": 4})


@needs_inodes
def test_the_model_of_the_disk_forgets_what_was_not_flushed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "kept").write_text("kept")
    disk = Disk(root)
    (root / "kept").write_text("changed")
    (root / "new").write_text("new")
    (root / "folder" / "flushed").write_text("flushed, but its name was not")
    disk.flush(root / "folder" / "flushed")
    (root / "named").write_text("its name was flushed, but it was not")
    disk.flush(root)
    (root / "named").rename(root / "moved")
    (root / "kept").unlink()
    found = {}
    for kind in ("nothing", "everything"):
        disk.after_a_crash(tmp_path / kind, CHANCES[kind](random.Random(0)))
        found[kind] = bytes_of(tmp_path / kind)
    disk.close()
    assert found["nothing"] == {"kept": b"kept", "new": b"", "named": b""}
    assert found["everything"] == bytes_of(root)


# --- Processes are killed.

CORPUS = [{"id": str(n), "text": f"document {n} of {n * 7919 % 1000} words"} for n in range(300)]

# One process imports everything once, and forks for every run: so each moment of a run counts, and none of its start.
FORKING = """
import os, random, signal, sys, time, json, traceback
from pathlib import Path
import vicinal
from vicinal.index import build as building
from vicinal.index.segments import verify
import torch
torch.set_num_threads(1)
index, rows = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_bytes())
kills, seed = map(int, sys.argv[3:])
building.WINDOW_DOCUMENTS = 30

def run(target):
    child = os.fork()
    if child:
        return child
    try:
        vicinal.Index.build(target, vicinal.load("tiny", precision="fp32"), vicinal.Corpus.read(rows))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

start = time.monotonic()
assert os.waitpid(run(index.with_name("whole")), 0)[1] == 0
seconds = time.monotonic() - start
chance = random.Random(seed)
for n in range(kills):
    child = run(index)
    time.sleep(chance.random() * seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(json.dumps({"there": index.exists(), "problems": verify(index) if index.exists() else [],
        "windows": len(list(index.parent.glob(".i.partial/index/segments/*/passages-*")))}), flush=True)
sys.exit(os.waitpid(run(index), 0)[1] != 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork; the test of the command line does not")
def test_killed_at_random_moments_it_is_absent_or_whole_and_completed_by_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(CORPUS))
    done = subprocess.run(
        [sys.executable, "-c", FORKING, tmp_path / "i", tmp_path / "rows.json", "4", "1"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    after = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(after) == 4 and not any(each["problems"] for each in after)
    assert [each["windows"] for each in after if not each["there"]] == sorted(
        each["windows"] for each in after if not each["there"]
    ), "what was finished stays finished"
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")
    assert names(tmp_path) == ["i", "rows.json", "whole"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "vicinal", *map(str, arguments)]


def corpus_of(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "docs.jsonl"
    rows = ({"id": str(n), "text": f"row {n} of {n * 7919 % 1000}"} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_the_command_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, 40_000)
    arguments = ("--model", "tiny", "--precision", "fp32", "--quiet")
    start = time.monotonic()
    subprocess.run(command("index", corpus, "-o", tmp_path / "whole", *arguments), check=True)
    seconds = time.monotonic() - start
    index, chance, killed = tmp_path / "i.vicinal", random.Random(7), 0
    while killed < 20:
        child = subprocess.Popen(command("index", corpus, "-o", index, *arguments))
        time.sleep(chance.random() * seconds)
        child.kill()
        killed += child.wait() != 0
        if index.exists():
            assert verify(index) == []
            shutil.rmtree(index)
    subprocess.run(command("index", corpus, "-o", index, *arguments), check=True)
    assert bytes_of(index) == bytes_of(tmp_path / "whole")
    assert names(tmp_path) == ["docs.jsonl", "i.vicinal", "whole"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to another process")
def test_ctrl_c_leaves_nothing_at_the_index_and_the_same_command_goes_on(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, 20_000)
    index = tmp_path / "i.vicinal"
    arguments = command("index", corpus, "-o", index, "--model", "tiny", "--precision", "fp32", "--quiet")
    child = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / ".i.vicinal.partial" / "state.json").exists():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == 130 and said.startswith("interrupted; run the same command again")
    assert names(tmp_path) == [".i.vicinal.partial", "docs.jsonl"]


# --- The disk is full, or the machine has enough of us.


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_when_nothing_more_can_be_written_it_is_said_and_nothing_is_at_the_index(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": " ".join(f"w{n * m % 997}" for m in range(1, 9))} for n in range(90)]
    Index.build(tmp_path / "whole", tiny, Corpus.read(rows)).close()
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def limited(size: int) -> str:
        with no_file_longer_than(size):
            try:
                Index.build(tmp_path / "i", tiny, Corpus.read(tmp_path / "docs.jsonl")).close()
                return ""
            except OSError as failure:
                assert not isinstance(failure, VicinalError) and not (tmp_path / "i").exists()
                return files.explain(failure)

    def stop(vectors: object) -> None:
        raise KeyboardInterrupt

    said = [limited(size) for size in range(0, 20_000, 6000)]  # too little for the documents
    assert all(said) and names(tmp_path) == ["docs.jsonl", "whole"], "no part of them is of use"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(building, "storable", stop)
        Index.build(tmp_path / "i", tiny, Corpus.read(rows))
    for size in range(0, 1 << 20, 4096):  # for what comes after them
        said.append(limited(size))
        if not said[-1]:
            break
    assert {sentence.split(" (")[0] for sentence in said[:-1]} == {
        "no file may be that long here",
        "the disk did not do what it was asked",
    }
    assert not any("\n" in sentence for sentence in said) and sum("dense-" in sentence for sentence in said) > 1
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole") and names(tmp_path) == ["docs.jsonl", "i", "whole"]


def test_a_database_that_fills_the_disk_says_that_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = documents._writer

    def small(path: Path) -> object:
        connection = writer(path)
        connection.execute("PRAGMA max_page_count = 4")
        return connection

    monkeypatch.setattr(documents, "_writer", small)
    with pytest.raises(OSError) as failure:
        documents.DocumentStore.write(tmp_path / "d.sqlite", (Document(str(n), text="x" * 1000) for n in range(100)))
    assert failure.value.errno == errno.ENOSPC and files.explain(failure.value).startswith("the disk is full")
    assert names(tmp_path) == []


@pytest.mark.parametrize("what", ["flush", "rename", "write_bytes"])
def test_an_error_of_the_disk_at_any_moment_leaves_nothing_at_the_index(
    tmp_path: Path, small_windows: None, what: str
) -> None:
    build(tmp_path / "whole")
    holder = Path if what == "write_bytes" else files
    real = getattr(holder, what)
    for at in range(1000):
        left = at

        def failing(*args: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args)

        index = tmp_path / f"{at}.i"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holder, what, failing)
            try:
                build(index)
                break
            except OSError as error:
                assert files.explain(error).startswith("the disk is full (No space left on device")
        if index.exists():
            assert verify(index) == [] and what == "flush", "only the very last flush comes after the rename"
        build(index)
        assert bytes_of(index) == bytes_of(tmp_path / "whole")
    assert at > 3 and not [name for name in names(tmp_path) if name.startswith(".")]
