"""Documents in SQLite: what was written comes back, and what was changed is found out."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.documents import WHITESPACE, Document, DocumentStore, Fingerprint
from vicinal.errors import DamagedIndex, InputError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
METADATA = st.dictionaries(
    TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=2
)
DOCUMENTS = st.builds(Document, id=st.sampled_from("abcdefgh") | TEXT, title=TEXT, text=TEXT, metadata=METADATA)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def latest(rows: list[Document]) -> list[Document]:
    """What must be left of rows: the last of each id, at the place of the first; a dict's own law."""
    return list({row.id: row for row in rows}.values())


@settings(deadline=None, max_examples=60)
@given(st.lists(DOCUMENTS, max_size=30))
def test_what_was_written_comes_back(rows: list[Document]) -> None:
    expected = latest(rows)
    with tempfile.TemporaryDirectory() as folder:
        counts = DocumentStore.write(Path(folder) / "d.sqlite", rows)
        with DocumentStore.open(Path(folder) / "d.sqlite") as store:
            assert list(store) == expected and len(store) == len(expected)
            assert [store.by_id(document.id) for document in expected] == expected
            assert [store.number_of(document.id) for document in expected] == list(range(len(expected)))
            backwards = list(range(len(expected)))[::-1] * 2
            assert store.by_numbers(backwards) == [expected[number] for number in backwards]
            assert store.between(1, 3) == expected[1:3]
            assert all(document.id in store for document in expected) and "no such id" not in store
    assert (counts.rows, counts.documents, counts.duplicated) == (len(rows), len(expected), len(rows) - len(expected))
    assert counts.empty == sum(not document.content for document in expected)


def test_every_kind_of_white_space_is_empty() -> None:
    assert not WHITESPACE.strip() and all(not chr(code).isspace() for code in range(0x3001, sys.maxunicode + 1))
    with tempfile.TemporaryDirectory() as folder:
        rows = [Document("a", WHITESPACE, WHITESPACE), Document("b", "", "\u200b"), Document("c", "t"), Document("d")]
        assert DocumentStore.write(Path(folder) / "d.sqlite", rows).empty == 2


def test_a_document_that_is_not_there_is_a_key_or_an_index_error(tmp_path: Path) -> None:
    DocumentStore.write(tmp_path / "d.sqlite", [Document("a")])
    with DocumentStore.open(tmp_path / "d.sqlite") as store:
        for look in (store.by_id, store.number_of):
            with pytest.raises(KeyError):
                look("b")
        for number in (-1, 1, 1 << 70):
            with pytest.raises(IndexError):
                store.by_numbers([0, number])
        assert store.between(-5, 99) == [Document("a")] and not store.between(1, 0)
    with pytest.raises(sqlite3.ProgrammingError):
        store.by_id("a")


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [Document(str(n % 700), "t" * (n % 50), "x" * (n % 3000), {"n": n}) for n in range(1000)]
    DocumentStore.write(tmp_path / "a.sqlite", rows)
    DocumentStore.write(tmp_path / "b.sqlite", iter(rows))
    assert (tmp_path / "a.sqlite").read_bytes() == (tmp_path / "b.sqlite").read_bytes()


def test_the_fingerprint_is_of_every_part_of_every_row_in_order() -> None:
    def of(*rows: Document) -> str:
        fingerprint = Fingerprint()
        for row in rows:
            fingerprint.add(row)
        return fingerprint.hexdigest()

    one, two = Document("a", "b", "c", {"d": 1}), Document("e")
    others = [
        (two, one),
        (one,),
        (one, two, two),
        (Document("a", "b", "c", {"d": "1"}), two),
        (Document("a", "b", "c", {"d": 1.0}), two),
        (Document("a", "bc", "", {"d": 1}), two),
        (Document("ab", "", "c", {"d": 1}), two),
        (Document("a", "b", 'c{"d":1}'), two),
    ]
    assert len({of(*rows) for rows in [(one, two), *others]}) == len(others) + 1
    assert of(Document("a", metadata={"x": 1, "y": 2})) == of(Document("a", metadata={"y": 2, "x": 1}))


def test_what_fails_on_the_way_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[Document]:
        yield Document("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DocumentStore.write(tmp_path / "d.sqlite", rows())
    assert not names(tmp_path)
    (tmp_path / "d.sqlite").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        DocumentStore.write(tmp_path / "d.sqlite", [])
    assert (tmp_path / "d.sqlite").read_text() == "mine"


def test_reading_writes_nothing_and_plays_no_journal_in(tmp_path: Path) -> None:
    path, journal = tmp_path / "d.sqlite", tmp_path / "d.sqlite-journal"
    DocumentStore.write(path, [Document("a", text="x")])
    journal.write_bytes(b"not ours" * 64)
    before = path.read_bytes(), path.stat().st_mtime_ns, tmp_path.stat().st_mtime_ns
    with DocumentStore.open(path) as store:
        assert store.by_id("a").text == "x"
        assert names(tmp_path) == ["d.sqlite", "d.sqlite-journal"]
        for forbidden in ("DELETE FROM documents", "CREATE TABLE t (x)"):
            with pytest.raises(DamagedIndex):
                store._query(forbidden)
    assert before == (path.read_bytes(), path.stat().st_mtime_ns, tmp_path.stat().st_mtime_ns)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_who_may_read_the_file_is_for_the_umask_to_say(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        DocumentStore.write(tmp_path / "d.sqlite", [Document("a")])
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "d.sqlite").stat().st_mode) == 0o666 & ~umask


def test_a_copy_without_text_has_no_byte_of_it(tmp_path: Path) -> None:
    rows = [Document(f"id{n}", f"headline{n}", f"secret{n}" * 100, {"year": n}) for n in range(100)]
    DocumentStore.write(tmp_path / "d.sqlite", [*rows, Document("id7", "headline", "secret", {"year": 7})])
    DocumentStore.write_without_text(tmp_path / "bare.sqlite", tmp_path / "d.sqlite")
    assert b"secret" not in (tmp_path / "bare.sqlite").read_bytes()
    assert b"headline" not in (tmp_path / "bare.sqlite").read_bytes()
    with DocumentStore.open(tmp_path / "bare.sqlite") as store:
        assert list(store) == [Document(row.id, "", "", row.metadata) for row in rows]


def test_many_threads_may_ask_at_once(tmp_path: Path) -> None:
    DocumentStore.write(tmp_path / "d.sqlite", (Document(str(n), text=str(n)) for n in range(1000)))
    wrong: list[object] = []

    def ask(seed: int) -> None:
        numbers = random.Random(seed).choices(range(1000), k=200)
        try:
            wrong.extend(n for n, found in zip(numbers, store.by_numbers(numbers), strict=True) if found.id != str(n))
        except Exception as error:
            wrong.append(error)

    with DocumentStore.open(tmp_path / "d.sqlite") as store:
        threads = [threading.Thread(target=ask, args=[seed]) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


RENAMED = "ALTER TABLE documents RENAME TO old"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS number, 'a' AS id FROM n"


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE documents",),
        (RENAMED,),
        (RENAMED, f"CREATE VIEW documents AS {ENDLESS}"),
        ("CREATE TRIGGER t AFTER INSERT ON documents BEGIN SELECT 1; END",),
        ("CREATE TABLE other (x)",),
        ("UPDATE documents SET text = x'00ff' WHERE number = 1",),
        ("UPDATE documents SET title = 5.5",),  # text by its column's affinity, and read as such
        ("UPDATE documents SET metadata = '[1]'",),
        ("UPDATE documents SET metadata = 'no json'",),
        (f"UPDATE documents SET metadata = '{'[' * 100_000}'",),
        ("UPDATE documents SET text = CAST(x'ff' AS TEXT)",),
        ("DELETE FROM documents WHERE number = 1",),
        ("UPDATE documents SET number = -4 WHERE number = 1",),
        ("UPDATE documents SET number = 9223372036854775807 WHERE number = 1",),
    ],
)
def test_a_table_of_another_kind_is_damage_or_plain_documents(tmp_path: Path, statements: tuple[str, ...]) -> None:
    path = tmp_path / "d.sqlite"
    DocumentStore.write(path, [Document(id, "t", "x", {}) for id in "abc"])
    change(path, *statements)
    try:
        with DocumentStore.open(path) as store:
            found = store.by_numbers(range(min(len(store), 3)))
    except DamagedIndex as error:
        assert str(path) in str(error)
    else:
        assert statements == ("UPDATE documents SET title = 5.5",) and found[0].title == "5.5"


def test_whatever_byte_is_changed_only_damage_is_told(tmp_path: Path) -> None:
    path, broken = tmp_path / "d.sqlite", tmp_path / "broken.sqlite"
    DocumentStore.write(path, (Document(f"id{n}", f"t{n}", "text " * n, {"n": n}) for n in range(200)))
    whole = path.read_bytes()
    chance = random.Random(0)
    told = 0
    for _ in range(400):
        changed = bytearray(whole)
        anywhere, in_header, in_page = chance.randrange(len(whole)), chance.randrange(200), 4096 * chance.randrange(3)
        changed[chance.choice([anywhere, in_header, in_page])] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            del changed[chance.randrange(len(changed)) :]
        broken.write_bytes(changed)
        try:
            with DocumentStore.open(broken) as store:
                store.by_id("id7")
                store.by_numbers([0, 150])
                sum(1 for _ in store)
        except (DamagedIndex, KeyError, IndexError):
            told += 1
    assert told > 40, "some bytes matter to SQLite itself, the others are for the hashes to find"
    assert hashlib.sha256(whole).hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_is_missing_or_no_database_is_damage(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("not a database " * 100)
    (tmp_path / "folder").mkdir()
    for name in ("missing", "empty", "text", "folder"):
        with pytest.raises(DamagedIndex):
            DocumentStore.open(tmp_path / name)
