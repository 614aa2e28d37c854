"""The format: every changed byte is found, nothing but what was written is ever believed, and nothing is written."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vicinal import files
from vicinal.documents import Document
from vicinal.errors import DamagedIndex, IndexRefused, VicinalError
from vicinal.index import segments
from vicinal.index.segments import MANIFEST, Manifest, strangers, verify
from vicinal.search import Hit, Index

QUERY = np.random.default_rng(5).normal(size=8).astype(np.float32)


def parts_of(index: Path) -> list[Path]:
    return sorted(path for path in index.rglob("*") if path.is_file())


def look(index: Path) -> list[list[Hit]]:
    """Everything that reads an index."""
    with Index.open(index) as opened:
        opened.info()
        opened.export(index.with_name("export.jsonl"))
        opened.export(index.with_name("export.parquet"))
        found = [opened.search_vector(QUERY, 5), opened.search("tenants rent", 5, mode="bm25")]
        return [*found, opened.search_vector(QUERY, 100, dim=3)]


def snapshot(folder: Path) -> dict[str, tuple[object, int]]:
    """Bytes and times: the time of a folder tells of files that came and went."""
    return {
        path.as_posix(): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }


def test_a_whole_index_has_no_fault(index: Path) -> None:
    assert verify(index) == [] and strangers(index, Manifest.read(index)) == []
    assert [len(hits) for hits in look(index)] == [5, 5, 39]


def test_every_file_is_covered_by_a_hash_of_the_whole_file(index: Path) -> None:
    manifest = Manifest.read(index)
    assert {path.relative_to(index).as_posix() for path in parts_of(index)} == {MANIFEST, *manifest.files}
    for name, record in manifest.files.items():
        assert (index / name).stat().st_size == record.bytes and files.sha256_of(index / name) == record.sha256


def test_looking_writes_nothing(index: Path) -> None:
    before = snapshot(index)
    verify(index)
    look(index)
    assert snapshot(index) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
def test_looking_needs_no_right_to_write(index: Path, tmp_path: Path) -> None:
    for path in [index, *index.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    # Root may write everywhere, so it gives up that right once everything is imported; pytest's folders are its own.
    script = f"""
import os, shutil, sys, tempfile
from pathlib import Path
import numpy as np
from vicinal.index.segments import verify
from vicinal.search import Index
def look(index):
    with Index.open(index) as opened:
        hits = opened.search_vector(np.ones(8), 3), opened.search("rent", 3, "bm25")
        return verify(index), opened.info()["documents"], *map(len, hits)
index = Path({str(index)!r})
first = look(index)
with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    there = Path(shutil.copytree(index, Path(folder) / "i"))
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        (there / "x").touch()
        sys.exit("the folder can be written to")
    except PermissionError:
        pass
    try:
        assert look(there) == first == ([], 40, 3, 3), first
    finally:
        os.seteuid(os.getuid())
        for path in [there, *there.rglob("*")]:
            path.chmod(0o755)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    for path in [index, *index.rglob("*")]:
        path.chmod(0o755)
    assert done.returncode == 0, done.stderr


# --- Every changed byte is found.


def flips(path: Path, count: int, chance: random.Random) -> Iterator[int]:
    """Change one bit of a file at a time, and put it back."""
    whole = path.read_bytes()
    for place in [0, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(count))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        yield place
    path.write_bytes(whole)


def test_a_changed_bit_anywhere_in_any_file_is_found_and_its_file_named(index: Path) -> None:
    chance = random.Random(1)
    for path in parts_of(index):
        for place in flips(path, 12, chance):
            (problem,) = verify(index)
            assert str(index if path.name == MANIFEST else path) in problem, (path, place)
    assert verify(index) == []


def test_bytes_all_over_the_manifest_count(index: Path) -> None:
    path = index / MANIFEST
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for other in (bytes([whole[place] ^ 1]), b""):
            path.write_bytes(whole[:place] + other + whole[place + 1 :])
            with pytest.raises(DamagedIndex, match="not what was written"):
                Manifest.read(index)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [cut, grow, empty, Path.unlink, replace_by_folder])
def test_a_file_that_is_gone_or_of_another_size_is_found_before_anything_is_read(
    index: Path, harm: Callable[[Path], None]
) -> None:
    for path in parts_of(index):
        copy = index.with_name("copy.vicinal")
        shutil.copytree(index, copy)
        harm(copy / path.relative_to(index))
        with pytest.raises(IndexRefused) as refusal:
            Index.open(copy)
        assert "copy.vicinal" in str(refusal.value)
        if path.name != MANIFEST or isinstance(refusal.value, DamagedIndex):
            assert len(verify(copy)) == 1
        shutil.rmtree(copy)


def test_two_files_that_changed_places_are_found(index: Path) -> None:
    one, other = (next(index.rglob(name)) for name in ("indices.csc.index.npy", "data.csc.index.npy"))
    assert one.stat().st_size == other.stat().st_size
    one.rename(index / "x")
    other.rename(one)
    (index / "x").rename(other)
    assert len(verify(index)) == 2
    with pytest.raises(DamagedIndex), Index.open(index) as opened:
        opened.search("rent", mode="bm25")


def test_a_strange_file_is_named_and_never_read(index: Path) -> None:
    hits = look(index)
    segment = next((index / "segments").iterdir())
    for place in (index / "notes.txt", segment / "dense-000001.safetensors", segment / "documents.sqlite-journal"):
        place.write_bytes(b"not ours")
        assert verify(index) == [] and strangers(index, Manifest.read(index)) == [place]
        assert look(index) == hits
        place.unlink()


def test_a_link_inside_an_index_is_not_followed(index: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    segment = next((index / "segments").iterdir())
    for place in (segment / "documents.sqlite", segment / "bm25", segment, index / "segments", index / MANIFEST):
        place.rename(secret)
        place.symlink_to(secret)
        with pytest.raises(DamagedIndex):
            Index.open(index)
        assert verify(index)
        place.unlink()
        secret.rename(place)
    assert verify(index) == []


def test_an_index_may_itself_be_reached_by_a_link(index: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(index)
    assert verify(tmp_path / "current") == [] and look(tmp_path / "current") == look(index)


def test_an_index_that_is_replaced_while_it_is_opened_is_the_new_one(
    index: Path, make: Callable[..., Path], library: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, faults = make(index.with_name("other.vicinal"), library[:9]), segments.faults

    def replaced_first(folder: Path, manifest: Manifest) -> list[str]:
        if other.exists():
            shutil.rmtree(folder)
            other.rename(folder)
        return faults(folder, manifest)

    monkeypatch.setattr(segments, "faults", replaced_first)
    with Index.open(index) as opened:
        assert len(opened) == 9 and opened.search_vector(QUERY, 1)


# --- Nothing is believed because it is there.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"sha256": 5}',
        b'{"sha256": null, "format": 1}',
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b"\xff\xfe{}",
        b'{"a": "\xe9"}',
        b'{"sha256": "\\ud800"}',
        b'{"sha256": "x", "a": NaN}',
        b'{"sha256": "x", "a": 1e999}',
        b'{"sha256": "x", "a": ' + b"9" * 10_000 + b"}",
        b"\0" * 100,
        b" " * (segments.MANIFEST_BYTES + 1),
    ],
    ids=lambda content: f"{content[:12]!r}-{len(content)}",
)
def test_what_is_no_manifest_is_damage(index: Path, content: bytes) -> None:
    (index / MANIFEST).write_bytes(content)
    with pytest.raises(DamagedIndex, match="not what was written"):
        Manifest.read(index)
    assert len(verify(index)) == 1


def test_a_manifest_that_claims_another_hash_is_damage(index: Path) -> None:
    body = json.loads((index / MANIFEST).read_bytes())
    for claimed in ("0" * 64, body["sha256"].upper(), "", None):
        (index / MANIFEST).write_text(files.canonical_json(body | {"sha256": claimed}))
        assert verify(index)
    (index / MANIFEST).write_text(json.dumps(body))
    assert verify(index), "and so is one that says the same in other bytes"


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "..", "a/../../b", "C:\\x", "a\\b", "", "a//b", ".hidden", "a\n", "a\0b"],
)
def test_a_manifest_that_names_what_is_not_inside_is_refused(index: Path, forger: Any, name: str) -> None:
    body = forger.body
    record = next(iter(body["segments"][0]["files"].values()))
    for change in (
        lambda s: s["files"].update({name: record}),
        lambda s: s["tombstones"].update({name: record}),
        lambda s: s.update(name=name),
    ):
        changed = copy.deepcopy(body)
        change(changed["segments"][0])
        forger.write(changed)
        with pytest.raises(DamagedIndex, match="outside the index: do not use it"):
            Manifest.read(index)
        assert len(verify(index)) == 1


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from leaves(below, (*path, key))


def test_no_forged_manifest_does_more_than_be_refused(index: Path, forger: Any) -> None:
    body = forger.body
    done = 0
    for path in list(leaves(body)):
        if path[0] == "request":
            continue  # shown and compared, never acted on
        for value in (None, -1, 0, 1 << 70, 1.5, True, "x", "../x", [], {}, ["x"], {"x": 1}):
            changed = copy.deepcopy(body)
            place = changed
            for key in path[:-1]:
                place = place[key]
            if place[path[-1]] == value:
                continue
            place[path[-1]] = value
            forger.write(changed)
            try:
                verify(index)
                look(index)
                done += 1
            except VicinalError as error:
                assert "\n" not in str(error)
    assert done, "some of it is only told, not needed"


def test_what_a_later_version_adds_does_not_disturb(index: Path, forger: Any) -> None:
    hits, body = look(index), forger.body
    body["later"] = {"anything": [1]}
    body["segments"][0]["later"] = "too"
    body["segments"][0]["counts"]["later"] = 7
    forger.write(body)
    assert look(index) == hits and verify(index) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"requires": ["passages", "sparse"]}, "passages, sparse"),
        ({"format": "x"}, "format x"),
    ],
)
def test_what_must_be_known_and_is_not_is_refused_and_not_called_damage(
    index: Path, forger: Any, change: dict[str, Any], said: str
) -> None:
    forger.write(forger.body | change | {"vicinal": "9.9"})
    for open in (lambda: Index.open(index), lambda: verify(index)):
        with pytest.raises(IndexRefused, match=f"vicinal 9.9; this version does not know {said}") as refusal:
            open()
        assert not isinstance(refusal.value, DamagedIndex)


def test_a_context_that_is_named_but_not_there_is_damage(index: Path, forger: Any) -> None:
    effect = {"documents": 1, "cosine": 1.0, "top10": 1.0}
    forger.segment(
        context={"fingerprint": "x", "documents": 1, "size": 1, "choice": "random", "seed": 0, "effect": effect}
    )
    with pytest.raises(DamagedIndex, match=r"context\.safetensors"):
        Index.open(index).search("a question")


def test_whatever_byte_of_whatever_file_is_changed_nothing_but_a_sentence_comes_of_it(index: Path) -> None:
    chance = random.Random(2)
    expected, told, same = look(index), 0, 0
    for path in parts_of(index):
        for _ in flips(path, 40, chance):
            try:
                same += look(index) == expected
            except VicinalError as error:
                told += 1
                assert str(error) and "\n" not in str(error)
    assert told > 100 and same > 10
    assert look(index) == expected


@pytest.mark.parametrize(
    "header", [b"\xff" * 8, b"\x00" * 8, b"\x02" + b"\x00" * 7 + b"{}", b"\x08" + b"\x00" * 7 + b"not json"]
)
def test_a_header_of_safetensors_that_is_none_is_damage(index: Path, header: bytes) -> None:
    path = next(index.rglob("dense-*"))
    whole = path.read_bytes()
    path.write_bytes(header + whole[len(header) :])
    with pytest.raises(DamagedIndex):
        Index.open(index)


@pytest.mark.parametrize(
    "changed",
    [
        {"document": np.arange(39, dtype=np.int64) + 1000},
        {"document": np.arange(39, dtype=np.int64) - 5},
        {"document": np.full(39, 1 << 62, dtype=np.int64)},
        {"document": np.arange(39, dtype=np.float64)},
        {"document": np.arange(39, dtype=np.int32)},
        {"document": np.arange(38, dtype=np.int64)},
        {"document": np.arange(39, dtype=np.int64).reshape(-1, 1)},
        {"document": np.int64(3)},
        {"document": None},
        {"start": np.full(39, -1, dtype=np.int64)},
        {"start": np.full(39, 1 << 60, dtype=np.int64)},
        {"stop": np.full(39, 1 << 60, dtype=np.int64)},
        {"stop": np.full(39, -1, dtype=np.int64)},
        {"stop": None},
    ],
)
def test_spans_that_fit_no_document_are_damage(index: Path, forger: Any, changed: dict[str, np.ndarray | None]) -> None:
    forger.tensors("passages-*", **changed)
    assert verify(index) == []
    with pytest.raises(DamagedIndex):
        look(index)


@pytest.mark.parametrize(
    "dense",
    [
        np.full((39, 8), np.nan, dtype=np.float16),
        np.full((39, 8), np.inf, dtype=np.float16),
        np.ones((39, 7), dtype=np.float16),
        np.ones((38, 8), dtype=np.float16),
        np.ones((39, 8), dtype=np.float64),
        np.ones((39, 8), dtype=np.int8),
        np.ones(39, dtype=np.float16),
        None,
    ],
)
def test_vectors_that_are_none_are_damage(index: Path, forger: Any, dense: np.ndarray | None) -> None:
    forger.tensors("dense-*", dense=dense)
    assert verify(index) == []
    with pytest.raises(DamagedIndex):
        look(index)


def test_documents_of_another_index_are_damage(index: Path, forger: Any) -> None:
    forger.sql("DELETE FROM documents WHERE number > 30")
    with pytest.raises(DamagedIndex, match="do not fit together"):
        Index.open(index)


def test_words_of_another_index_are_damage(
    index: Path, forger: Any, tmp_path: Path, make: Callable[..., Path], library: Any
) -> None:
    other = make(tmp_path / "other.vicinal", library[:10])
    for path in other.rglob("bm25/*"):
        forger.replace(path.name, path.read_bytes())
    with pytest.raises(DamagedIndex, match="has 10 rows, its segment 39"):
        look(index)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("exploded",))


def test_a_pickle_is_never_opened(index: Path, forger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "bomb.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    for path in parts_of(index):
        if path.name != MANIFEST:
            whole = path.read_bytes()
            forger.replace(path.name, (tmp_path / "bomb.npy").read_bytes())
            try:
                look(index)
                assert path.name == "params.index.json", "which is for bm25s, and not read by us"
            except DamagedIndex:
                pass
            forger.replace(path.name, whole)
    assert not (tmp_path / "exploded").exists()


# --- Several segments, as adds and deletes will leave them.

Joined = Callable[[Path, Sequence[Sequence[Document]], Sequence[Sequence[int]]], Path]


def test_several_segments_are_searched_as_one_index(
    tmp_path: Path, library: list[Document], make: Callable[..., Path], joined: Joined
) -> None:
    live = [document for n, document in enumerate(library) if n not in (0, 12, 20, 38)]
    one = make(tmp_path / "one.vicinal", live)
    several = joined(tmp_path / "several.vicinal", [library[:11], library[11:12], library[12:]], [[0], [], [0, 8, 26]])
    assert verify(several) == [] == strangers(several, Manifest.read(several))
    assert look(several) == look(one)
    with Index.open(several) as many, Index.open(one) as single:
        told = many.info(), single.info()
        assert [t["documents"] for t in told] == [36, 36] and [t["passages"] for t in told] == [35, 35]
        assert [t["lexical"] for t in told] == ["english", "english"] and len(told[0]["segments"]) == 3
        for query in ("court road", "judges", "the bridge of the river"):
            assert many.search(query, 40, "bm25") == single.search(query, 40, "bm25")
    exports = []
    for index in (several, one):
        with Index.open(index) as opened:
            opened.export(tmp_path / "out.jsonl")
            exports.append((tmp_path / "out.jsonl").read_bytes())
    assert exports[0] == exports[1]


@pytest.mark.parametrize("dead", [[40], [-1], [3, 1 << 40], [1.5], [[1]], ["a"]])
def test_tombstones_of_documents_that_are_not_there_are_damage(
    tmp_path: Path, library: list[Document], joined: Joined, forger: Any, dead: list[Any]
) -> None:
    index = joined(tmp_path / "i.vicinal", [library], [[1]])
    assert len(look(index)[0]) == 5
    path = next(index.glob("tombstones/*"))
    np.save(path, np.array(dead))
    type(forger)(index).accept(path)
    assert verify(index) == []
    with pytest.raises(DamagedIndex, match="tombstones"):
        Index.open(index)


def test_an_index_of_nothing_but_deleted_documents_has_no_hits(
    tmp_path: Path, library: list[Document], joined: Joined
) -> None:
    index = joined(tmp_path / "i.vicinal", [library], [list(range(40))])
    with Index.open(index) as opened:
        assert len(opened) == 0 and opened.search_vector(QUERY) == [] and opened.search("rent", mode="bm25") == []
