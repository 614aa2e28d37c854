"""The cache of raw vectors: equal to encoding anew, whatever happens to its files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vicinal import Encoder
from vicinal.encoder import Raw
from vicinal.errors import InputError
from vicinal.evaluation import cache
from vicinal.evaluation.cache import Cached, Store, cache_folder
from vicinal.progress import Progress, silent

TEXTS = ["cats purr", "stars shine", "", "cats purr", "a longer text than the others"]


class Counting:
    """An encoder whose vectors can be seen from the text; it remembers what it was asked."""

    def __init__(self, fingerprint: str = "f", precision: str = "fp32", documents: int = 20, queries: int = 8) -> None:
        self.fingerprint, self.precision, self.dim = fingerprint, precision, 3
        self.attends, self.bound = False, None
        self.max_document_tokens, self.max_query_tokens = documents, queries
        self.asked: list[str] = []

    def encode_raw(self, texts: Sequence[str], role: str, progress: Progress = silent) -> Raw:
        limit = {"document": self.max_document_tokens, "query": self.max_query_tokens}[role]
        self.asked += texts
        with progress("", len(texts)) as advance:
            advance(len(texts))
        vectors = np.array([[len(text), text.count("a"), -0.5] for text in texts], dtype=np.float32).reshape(-1, 3)
        ends = np.array([min(len(text), limit) for text in texts], dtype=np.int64)
        return Raw(vectors, ends, sum(len(text) > limit for text in texts))


def cached(folder: Path, **settings: Any) -> Cached:
    encoder: Any = Counting(**settings)
    return Cached(encoder, folder)


def same(one: Raw, other: Raw) -> bool:
    return bool((one.vectors == other.vectors).all() and (one.ends == other.ends).all() and one.cut == other.cut)


def anew(texts: Sequence[str], role: str = "document") -> Raw:
    return Counting().encode_raw(texts, role)


@pytest.mark.parametrize("role", ["document", "query"])
def test_cached_vectors_are_those_of_the_encoder_in_the_order_asked(role: str, tmp_path: Path) -> None:
    assert same(cached(tmp_path).encode_raw(TEXTS, role), anew(TEXTS, role))
    assert same(cached(tmp_path).encode_raw(TEXTS[::-1], role), anew(TEXTS[::-1], role))


def test_a_text_is_encoded_once_in_one_run_and_never_in_the_next(tmp_path: Path) -> None:
    for asked in (["", "cats purr", "stars shine", TEXTS[4]], []):
        again = cached(tmp_path)
        again.encode_raw(TEXTS, "document")
        assert sorted(again.encoder.asked) == sorted(asked)  # type: ignore[attr-defined]
        assert again.encoded == len(asked)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(rounds=st.lists(st.lists(st.sampled_from([*TEXTS, "東京", "half \ud800"])), max_size=4))
def test_any_sequence_of_questions_is_answered_as_by_the_encoder(
    rounds: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    for texts in rounds:
        assert same(cached(folder).encode_raw(texts, "document"), anew(texts))


SHAPES: list[tuple[str, dict[str, Any], bool]] = [
    ("document", {}, True),
    ("document", {"fingerprint": "g"}, False),
    ("document", {"precision": "bf16"}, False),
    ("document", {"documents": 9}, False),
    ("document", {"queries": 9}, True),
    ("query", {}, False),  # another prompt
]


@pytest.mark.parametrize(("role", "changed", "known"), SHAPES)
def test_what_shapes_a_vector_keeps_caches_apart(
    role: str, changed: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    cached(tmp_path, documents=8, queries=8).encode_raw(TEXTS, "document")
    again = cached(tmp_path, **{"documents": 8, "queries": 8, **changed})
    again.encode_raw(TEXTS, role)
    assert again.encoded == (0 if known else 4)


def test_a_querys_limit_shapes_its_vector(tmp_path: Path) -> None:
    for queries in (8, 9):
        asked = cached(tmp_path, queries=queries)
        asked.encode_raw(TEXTS, "query")
        assert asked.encoded == 4


def test_the_real_encoder_gives_the_same_bits_through_a_cache(tiny: Encoder, tmp_path: Path) -> None:
    first = Cached(tiny, tmp_path).encode_raw(TEXTS, "query")
    again = Cached(tiny, tmp_path).encode_raw(TEXTS, "query")
    assert same(first, again)
    np.testing.assert_allclose(first.vectors, tiny.encode_raw(TEXTS, "query").vectors, atol=1e-5)


def test_progress_reaches_the_number_of_texts(tmp_path: Path) -> None:
    class Bar:
        def __init__(self, label: str, total: int | None = None, /) -> None:
            self.total, self.done = total, 0

        def __enter__(self) -> Any:
            return self.advance

        def __exit__(self, *_: object) -> None:
            bars.append((self.done, self.total))

        def advance(self, count: int) -> None:
            self.done += count

    bars: list[tuple[int, int | None]] = []
    for _ in range(2):
        cached(tmp_path).encode_raw(TEXTS, "document", progress=Bar)
    assert bars == [(5, 5), (5, 5)]


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.sqlite")
    return path


def filled(folder: Path, texts: Sequence[str] = TEXTS) -> Path:
    cached(folder).encode_raw(texts, "document")
    return only_file(folder)


@pytest.mark.parametrize("damage", ["text", "header", "middle", "cut", "another table"])
def test_a_damaged_file_is_said_moved_aside_and_begun_anew(damage: str, tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(500)]
    path = filled(tmp_path, texts)
    whole = path.read_bytes()
    if damage == "another table":
        path.unlink()
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE vectors (something_else INT)")
    else:
        path.write_bytes(
            {
                "text": b"no database at all" * 100,
                "header": b"\0" * 100 + whole[100:],
                "middle": whole[:4096] + b"\xa5" * (len(whole) - 4096),
                "cut": whole[: len(whole) // 2],
            }[damage]
        )
    with pytest.warns(UserWarning, match=r"a cache of vectors was damaged .*it is now .*\.damaged"):
        assert same(cached(tmp_path).encode_raw(texts, "document"), anew(texts))
    assert path.with_suffix(".damaged").exists()
    again = cached(tmp_path)
    again.encode_raw(texts, "document")
    assert again.encoded < 500


@pytest.mark.parametrize("bit", [0, 40, 95, 120, 190])
def test_a_changed_bit_in_a_vector_is_noticed_and_the_text_encoded_again(bit: int, tmp_path: Path) -> None:
    path = filled(tmp_path, ["cats purr", "stars shine"])
    with closing(sqlite3.connect(path)) as store, store:
        key, value = store.execute("SELECT key, value FROM vectors").fetchone()
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        store.execute("UPDATE vectors SET value = ? WHERE key = ?", (bytes(changed), key))
    again = cached(tmp_path)
    assert same(again.encode_raw(["cats purr", "stars shine"], "document"), anew(["cats purr", "stars shine"]))
    assert again.encoded == 1


def test_rows_that_changed_places_are_noticed(tmp_path: Path) -> None:
    path = filled(tmp_path, ["cats purr", "stars shine"])
    with closing(sqlite3.connect(path)) as store, store:
        rows = store.execute("SELECT key, value FROM vectors").fetchall()
        store.execute("DELETE FROM vectors")
        store.executemany("INSERT INTO vectors VALUES (?, ?)", [(rows[0][0], rows[1][1]), (rows[1][0], rows[0][1])])
    assert same(cached(tmp_path).encode_raw(["cats purr"], "document"), anew(["cats purr"]))


def test_a_full_disk_loses_the_cache_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def small(path: Path, timeout: float) -> sqlite3.Connection:
        connection = connect(path, timeout=timeout)
        connection.execute("PRAGMA max_page_count = 8")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    monkeypatch.setattr(cache, "AT_ONCE", 400)
    texts = [f"text {n}" for n in range(2000)]
    with pytest.warns(
        UserWarning, match=r"no vectors are kept in .*database or disk is full.*: the next run encodes again"
    ):
        assert same(cached(tmp_path).encode_raw(texts, "document"), anew(texts))
    monkeypatch.undo()
    assert same(cached(tmp_path).encode_raw(texts, "document"), anew(texts))


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_place_that_cannot_be_written_loses_the_cache_and_not_the_run(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    if place == "file":
        folder.write_bytes(b"a file where the folder should be")
    else:
        filled(folder)
        path = only_file(folder)
        path.unlink()
        path.mkdir()
    with pytest.warns(UserWarning, match="no vectors are kept in"):
        assert same(cached(folder).encode_raw(TEXTS, "document"), anew(TEXTS))


def test_a_file_that_stays_locked_is_gone_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WAIT_SECONDS", 0.01)
    with closing(sqlite3.connect(filled(tmp_path))) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(UserWarning, match="database is locked"):
            assert same(cached(tmp_path).encode_raw(TEXTS, "document"), anew(TEXTS))


def test_threads_share_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "AT_ONCE", 20)
    texts = [f"text {n}" for n in range(200)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda turn: cached(tmp_path).encode_raw(texts[turn:], "document"), range(12)))
    assert all(same(answer, anew(texts[turn:])) for turn, answer in enumerate(answers))


def test_an_interrupted_run_keeps_what_it_had_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "AT_ONCE", 10)
    interrupted = cached(tmp_path)
    encode = interrupted.encoder.encode_raw

    def stopping(texts: Sequence[str], role: str, progress: Progress = silent) -> Raw:
        if len(interrupted.encoder.asked) >= 30:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return encode(texts, role, progress)

    monkeypatch.setattr(interrupted.encoder, "encode_raw", stopping)
    texts = [f"text {n}" for n in range(100)]
    with pytest.raises(KeyboardInterrupt):
        interrupted.encode_raw(texts, "document")
    resumed = cached(tmp_path)
    assert same(resumed.encode_raw(texts, "document"), anew(texts))
    assert resumed.encoded == 70


WRITER = """
import os, sys
from pathlib import Path
from vicinal.evaluation.cache import Store

path, first, killed_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(path)

def rows(start):
    for n in range(start, start + 500):
        if n == killed_at:
            os.kill(os.getpid(), 9) if os.name == "posix" else os._exit(9)
        yield n.to_bytes(16, "little"), n.to_bytes(4, "little") * 1000

for start in range(first, first + 3000, 500):
    store.put(rows(start))
store.close()
"""


def test_processes_may_write_at_once_and_be_killed_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite"
    starts = [(0, -1), (1000, 2900)]  # the second is killed while its fourth 500 rows are written
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(first), str(killed_at)])
        for first, killed_at in starts
    ]
    assert [writer.wait() == 0 for writer in writers] == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = Store(path)
        there = [n for n in range(4000) if store.get(n.to_bytes(16, "little")) == n.to_bytes(4, "little") * 1000]
        store.close()
    assert there == list(range(3000))


def test_the_folder_is_the_users_to_choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("VICINAL_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.setenv("VICINAL_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "vicinal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "vicinal"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(InputError, match="set VICINAL_CACHE to a folder"):
        cache_folder()
