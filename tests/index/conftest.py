"""Indexes to look at: small ones that need no encoder, and ones of several segments, made by hand."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from vicinal import files
from vicinal.documents import Document
from vicinal.index.segments import MANIFEST, SEGMENTS, FileRecord, Manifest
from vicinal.search import Index

WORDS = ["tenant", "rent", "roof", "court", "appeal", "judge", "road", "bridge", "river", "winter"]
DIM = 8

Documents = list[Document]
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed when is tested in test_crash.py; that the system does it would take most of the time here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def library() -> Documents:
    """Forty documents, no two alike but for two, the last without text."""
    chance = np.random.default_rng(0)
    texts = [" ".join(chance.choice(WORDS, 3 + n % 9)) for n in range(39)]
    texts[20] = texts[3]
    kept = [
        Document(f"id{n}", WORDS[n % 10].title(), text, {"year": n, "tags": [None]}) for n, text in enumerate(texts)
    ]
    return [*kept, Document("id39", metadata={"year": 0})]


def vectors_of(documents: Sequence[Document]) -> np.ndarray:
    """A vector per document that depends on its content alone; none where there is no content."""
    rows = [np.random.default_rng([*d.content.encode()]).normal(size=DIM) * bool(d.content) for d in documents]
    return np.array(rows, dtype=np.float32).reshape(-1, DIM)


@pytest.fixture(scope="session")
def make() -> Make:
    """A function that makes an index of documents at a path."""

    def make(path: Path, documents: Sequence[Document], **options: object) -> Path:
        ids = [document.id for document in documents]
        Index.from_vectors(path, ids, vectors_of(documents), documents, language="english", **options).close()  # type: ignore[arg-type]
        return path

    return make


@pytest.fixture(scope="session")
def _whole(tmp_path_factory: pytest.TempPathFactory, library: Documents, make: Make) -> Path:
    return make(tmp_path_factory.mktemp("whole") / "library.vicinal", library)


@pytest.fixture
def index(_whole: Path, tmp_path: Path) -> Path:
    """An index of the library, to do with as one likes."""
    return Path(shutil.copytree(_whole, tmp_path / "library.vicinal"))


@pytest.fixture(scope="session")
def joined(make: Make) -> Make:
    """A function that makes one index of several segments: what adds and deletes will leave, made by hand."""

    def joined(path: Path, parts: Sequence[Sequence[Document]], dead: Sequence[Sequence[int]] = ()) -> Path:
        manifests = []
        (path / SEGMENTS).mkdir(parents=True)
        (path / "tombstones").mkdir()
        for number, part in enumerate(parts):
            one = make(path.with_name(f"{path.name}-{number}"), part)
            manifest = Manifest.read(one)
            name = manifest.segments[0].name
            (one / SEGMENTS / name).rename(path / SEGMENTS / name)
            if number < len(dead) and dead[number]:
                file = f"tombstones/{name}.npy"
                np.save(path / file, np.array(dead[number], dtype=np.int64), allow_pickle=False)
                record = FileRecord((path / file).stat().st_size, files.sha256_of(path / file))
                manifest = replace(manifest, segments=[replace(manifest.segments[0], tombstones={file: record})])
            manifests.append(manifest)
            shutil.rmtree(one)
        replace(manifests[0], segments=[manifest.segments[0] for manifest in manifests]).write(path)
        return path

    return joined


class Forger:
    """Who changes an index so that every hash is right: with him, hashes are no help."""

    def __init__(self, index: Path) -> None:
        self.index = index

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.index / MANIFEST).read_bytes())
        return {name: value for name, value in body.items() if name != "sha256"}

    def write(self, body: dict[str, Any]) -> None:
        """Make this the manifest."""
        files.write_json(self.index / MANIFEST, body | {"sha256": files.fingerprint_of(body)})

    def segment(self, **changed: Any) -> None:
        """Change what the manifest knows of the first segment."""
        body = self.body
        body["segments"][0] |= changed
        self.write(body)

    def accept(self, path: Path) -> None:
        """Make the manifest know a file as it is now."""
        body = self.body
        segment = body["segments"][0]
        record = {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
        if path.parent.name == "tombstones":
            segment["tombstones"] = {path.relative_to(self.index).as_posix(): record}
        else:
            segment["files"][path.relative_to(self.index / SEGMENTS / segment["name"]).as_posix()] = record
        self.write(body)

    def replace(self, name: str, content: bytes) -> None:
        """Change the bytes of a file."""
        path = next(self.index.rglob(name))
        path.write_bytes(content)
        self.accept(path)

    def tensors(self, name: str, **changed: np.ndarray | None) -> None:
        """Change tensors of a file; None takes one away."""
        tensors = load_file(next(self.index.rglob(name))) | changed
        self.replace(name, save({key: np.ascontiguousarray(t) for key, t in tensors.items() if t is not None}))

    def sql(self, *statements: str) -> None:
        """Change the documents."""
        path = next(self.index.rglob("documents.sqlite"))
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        self.accept(path)


@pytest.fixture
def forger(index: Path) -> Forger:
    return Forger(index)
