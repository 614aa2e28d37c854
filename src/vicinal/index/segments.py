"""What an index is on the disk: immutable segments under one manifest, every byte of which is covered by a hash.

    INDEX/
      manifest.json                    format, encoder, what was asked for, the list of segments; its own SHA-256
      segments/<name>/
        documents.sqlite               the documents: number, id, title, text, metadata
        passages-000000.safetensors    a row per passage: its document's number, where it starts and stops in the text
        dense-000000.safetensors ...   the same rows: raw vectors, 16 bit; other representations will stand beside them
        context.safetensors            the context that the rows were encoded with, where there was one
        bm25/                          the lexical engine's own files
      tombstones/<name>.npy            the numbers of a segment's documents that are no longer part of the index

docs/format.md is the full account. The manifest lists every file with its size and hash, and is replaced atomically.
Opening checks the manifest's hash and every file's size; `verify` reads every byte. Nothing here ever writes inside a
published index.

>>> safe_name("dense-000000.safetensors"), safe_name("../../etc/passwd")
(True, False)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from .. import files
from ..context import Context
from ..documents import DocumentStore
from ..errors import DamagedIndex, IndexRefused, InputError
from ..progress import Progress, silent
from .base import Blocks, Rows
from .lexical import BM25

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES = 1 << 26  # a longer one is none of ours: a billion documents take 40 MB
SEGMENTS = "segments"
DOCUMENTS = "documents.sqlite"
PASSAGES, DENSE = "passages", "dense"
LEXICAL = "bm25"
CONTEXT = "context.safetensors"
CURE = "restore it, or rebuild the index"
SPAN = (
    "document",
    "start",
    "stop",
)  # the tensors of a passages' file; the others are the builder's counts
VECTOR_TYPES = (torch.float16, torch.float32)


@dataclass(frozen=True)
class FileRecord:
    """What the manifest knows of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class SegmentRecord:
    """What the manifest knows of a segment; paths are relative to its folder, `tombstones` to the index."""

    name: str
    documents: int
    passages: int
    text: bool  # whether titles and texts were kept
    language: str | None  # of its BM25; None: no words
    context: Mapping[str, Any] | None  # None: encoded without context
    counts: Mapping[str, int]  # what became of the rows of its corpus
    files: Mapping[str, FileRecord]
    tombstones: Mapping[str, FileRecord]  # at most one file


@dataclass(frozen=True)
class Manifest:
    """The one record that makes an index out of segments."""

    encoder: Mapping[str, Any] | None  # None: vectors of another model, handed in
    representations: Mapping[str, Mapping[str, int]]  # {"dense": {"dim": 384}}
    request: Mapping[str, Any]  # what was asked for: the same request gives the same index
    segments: Sequence[SegmentRecord]
    requires: Sequence[str] = ()  # what a reader must know beyond what format 1 had at first
    format: int = FORMAT
    vicinal: str = ""

    @property
    def dim(self) -> int:
        return self.representations[DENSE]["dim"]

    @property
    def files(self) -> dict[str, FileRecord]:
        """Every file that is part of the index, but for the manifest; paths are relative to the index."""
        found: dict[str, FileRecord] = {}
        for segment in self.segments:
            found |= {f"{SEGMENTS}/{segment.name}/{name}": record for name, record in segment.files.items()}
            found |= segment.tombstones
        return found

    def write(self, folder: Path) -> None:
        """Replace the manifest of `folder` atomically."""
        body = asdict(self)
        files.write_json(folder / MANIFEST, body | {"sha256": files.fingerprint_of(body)})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of an index; absent, damaged and newer ones are told apart."""
        path = folder / MANIFEST
        if folder.exists() and not folder.is_dir():
            raise IndexRefused(f"there is no index at {folder}, but a file: give the folder that `vicinal index` wrote")
        if not path.is_file():
            raise IndexRefused(f"there is no index at {folder}: make one with `vicinal index CORPUS -o {folder}`")
        body = _intact(path)
        if body is None:
            raise DamagedIndex(f"the manifest of {folder} is not what was written: {CURE}")
        unknown = [f"format {body.get('format')}"] if body.get("format") != FORMAT else body.get("requires")
        if unknown and isinstance(unknown, list):
            raise IndexRefused(
                f"{folder} was written by vicinal {body.get('vicinal')}; this version does not know "
                f"{', '.join(map(str, unknown))}: use that version or a newer one, or remove the index and build anew"
            )
        if not _has_shape(body, SHAPE):
            raise DamagedIndex(f"the manifest of {folder} has another shape than format {FORMAT}: rebuild the index")
        segments = [_segment_record(segment) for segment in body["segments"]]
        known = ("encoder", "representations", "request", "requires", "format", "vicinal")
        manifest = cls(segments=segments, **{name: body[name] for name in known})
        if not all(map(safe_name, manifest.files)):
            raise DamagedIndex(f"the manifest of {folder} names files outside the index: do not use it")
        return manifest


def _intact(path: Path) -> dict[str, Any] | None:
    """The body of a manifest; None where its bytes are not those that were written."""
    if _is_elsewhere(path.parent, MANIFEST) or path.stat().st_size > MANIFEST_BYTES:
        return None
    try:
        text = path.read_bytes().decode()
        body = json.loads(text)
        claimed = body.pop("sha256")
        whole = claimed == files.fingerprint_of(body) and text == files.canonical_json(body | {"sha256": claimed})
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    return body if whole else None


COUNT = range(1 << 63)
FILES = {str: {"bytes": COUNT, "sha256": str}}
ENCODER = {
    "name": str,
    "source": str,
    "fingerprint": str,
    "pooling": str,
    "precision": str,
    "max_document_tokens": COUNT,
    "max_query_tokens": COUNT,
    "?lane": [float],
}
CONTEXT_SHAPE = {
    "fingerprint": str,
    "documents": COUNT,
    "size": COUNT,
    "choice": str,
    "seed": COUNT,
    "?made": dict,
    "?attention": {"cache_bytes": COUNT, "order_matters": bool},
    "effect": (None, {"documents": COUNT, "cosine": float, "top10": float}),
}
SHAPE = {
    "encoder": (None, ENCODER),
    "representations": {DENSE: {"dim": COUNT}},
    "request": dict,
    "segments": [
        {
            "name": str,
            "documents": COUNT,
            "passages": COUNT,
            "text": bool,
            "language": (None, str),
            "context": (None, CONTEXT_SHAPE),
            "counts": {str: COUNT},
            "files": FILES,
            "tombstones": FILES,
        }
    ],
    "requires": list,
    "format": COUNT,
    "vicinal": str,
}


MISSING = object()


def _has_shape(value: object, shape: Any) -> bool:
    """Whether a JSON value has a shape: a type, a range, None, a list of one shape, some of several, keys or any keys.

    A key "?name" may be absent.

    >>> _has_shape({"a": [1, 2]}, {"a": [int]}), _has_shape({"a": 1}, {str: str}), _has_shape(None, (None, int))
    (True, False, True)
    """
    if isinstance(shape, dict) and isinstance(value, dict):
        if str in shape:
            return all(_has_shape(inner, shape[str]) for inner in value.values())
        given = {name: value.get(name.removeprefix("?"), MISSING) for name in shape}
        return all(
            name.startswith("?") if given[name] is MISSING else _has_shape(given[name], inner)
            for name, inner in shape.items()
        )
    if isinstance(shape, list) and isinstance(value, list):
        return all(_has_shape(inner, shape[0]) for inner in value)
    if isinstance(shape, tuple):
        return any(_has_shape(value, each) for each in shape)
    if isinstance(shape, range):
        return type(value) is int and value in shape
    return value is None if shape is None else type(value) is shape


def _segment_record(body: Mapping[str, Any]) -> SegmentRecord:
    def records(of: Mapping[str, Any]) -> dict[str, FileRecord]:
        return {name: FileRecord(known["bytes"], known["sha256"]) for name, known in of.items()}

    names = ("name", "documents", "passages", "text", "language", "context", "counts")
    own = {name: body[name] for name in names}
    return SegmentRecord(**own, files=records(body["files"]), tombstones=records(body["tombstones"]))


def safe_name(name: str) -> bool:
    """A relative name that stays where it is: plain characters, no step upwards."""
    return all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", part) for part in name.split("/"))


def records_of(folder: Path, progress: Progress = silent) -> dict[str, FileRecord]:
    """The size and hash of every closed file below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    records = {}
    with progress("hashing", sum(path.stat().st_size for path in paths)) as advance:
        for path in paths:
            size = path.stat().st_size
            records[path.relative_to(folder).as_posix()] = FileRecord(size, files.sha256_of(path))
            advance(size)
    return records


def faults(folder: Path, manifest: Manifest) -> list[str]:
    """What can be said without reading: a sentence for each file that is missing, elsewhere or of another size."""
    return [fault for name, record in manifest.files.items() if (fault := _fault(folder, name, record))]


def _fault(folder: Path, name: str, record: FileRecord) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{path} is missing: {CURE}"
    if _is_elsewhere(folder, name):
        return f"{path} is a link, or behind one, and may lead anywhere: {CURE}"
    if path.stat().st_size != record.bytes:
        return f"{path} has {path.stat().st_size} bytes, {record.bytes} were written: {CURE}"
    return None


def _is_elsewhere(folder: Path, name: str) -> bool:
    """Whether a link inside an index leads to where another's files may be."""
    return os.path.realpath(folder / name) != str(Path(os.path.realpath(folder), name))


def size_of(folder: Path, manifest: Manifest) -> int:
    """The bytes of an index, its manifest included."""
    return (folder / MANIFEST).stat().st_size + sum(record.bytes for record in manifest.files.values())


def verify(folder: Path, progress: Progress = silent) -> list[str]:
    """Read every byte of an index; say, a sentence each, what is not as it was written. An empty list: it is whole."""
    try:
        manifest = Manifest.read(folder)
    except DamagedIndex as error:
        return [str(error)]
    problems = []
    with progress("verifying", sum(record.bytes for record in manifest.files.values())) as advance:
        for name, record in manifest.files.items():
            if fault := _fault(folder, name, record):
                problems.append(fault)
            elif files.sha256_of(folder / name) != record.sha256:
                problems.append(f"{folder / name} holds other bytes than were written: {CURE}")
            advance(record.bytes)
    return problems


def strangers(folder: Path, manifest: Manifest) -> list[Path]:
    """Files inside an index folder that are not part of the index: never read, and safe to remove."""
    ours = {folder / MANIFEST, *(folder / name for name in manifest.files)}
    return sorted(path for path in folder.rglob("*") if not path.is_dir() and path not in ours)


def opened(folder: Path) -> tuple[Manifest, list[Segment]]:
    """Open an index; where another one takes its place meanwhile, open that."""
    while True:
        manifest = Manifest.read(folder)
        try:
            if found := faults(folder, manifest):
                raise DamagedIndex(found[0])
            return manifest, [Segment(folder, record, manifest.dim) for record in manifest.segments]
        except DamagedIndex:
            if Manifest.read(folder) == manifest:
                raise


class Segment:
    """One open segment: its documents, its rows, its tombstones, and its lexical engine when first asked for."""

    def __init__(self, folder: Path, record: SegmentRecord, dim: int) -> None:
        self.folder, self.record = folder / SEGMENTS / record.name, record
        self.documents = DocumentStore.open(self.folder / DOCUMENTS)
        try:
            self.dense = [_tensor(path, DENSE, VECTOR_TYPES, dim) for path in self._parts(DENSE)]
            self._passages = {
                name: [_tensor(path, name, (torch.int64,)) for path in self._parts(PASSAGES)] for name in SPAN
            }
            self.dead = self._tombstones(folder)
            lengths = [[len(block) for block in blocks] for blocks in (self.dense, *self._passages.values())]
            fits = (
                len(self.documents) == record.documents
                and all(each == lengths[0] for each in lengths)
                and sum(lengths[0]) == record.passages
            )
            if not fits:
                raise DamagedIndex(f"the files of {self.folder} do not fit together: restore them, or rebuild")
        except DamagedIndex:
            self.documents.close()
            raise

    def __len__(self) -> int:
        return self.record.passages

    @cached_property
    def lexical(self) -> BM25 | None:
        """The words of its rows."""
        if self.record.language is None:
            return None
        bm25 = BM25.open(self.folder / LEXICAL)
        if len(bm25) != len(self):
            raise DamagedIndex(f"{self.folder / LEXICAL} has {len(bm25)} rows, its segment {len(self)}: rebuild it")
        return bm25

    @cached_property
    def context(self) -> Context | None:
        """The context that its rows were encoded with."""
        if self.record.context is None:
            return None
        try:
            context = Context.load(self.folder / CONTEXT)
        except InputError as error:
            raise DamagedIndex(f"{error}; it is part of an index: restore it, or rebuild the index") from error
        if context.fingerprint != self.record.context.get("fingerprint"):
            raise DamagedIndex(f"{self.folder / CONTEXT} is another context than was written: restore it, or rebuild")
        return context

    @cached_property
    def document_of(self) -> Rows:
        """The number of every row's document."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part.numpy() for part in self._passages["document"])])

    @property
    def dead_rows(self) -> Rows:
        """The rows of documents that are no longer part of the index."""
        return np.flatnonzero(np.isin(self.document_of, self.dead)) if len(self.dead) else self.dead

    def passages(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        """Of each of these rows, its document's number, and where it starts and stops in the document's text."""
        document, start, stop = (Blocks(self._passages[name]).take(rows).numpy() for name in SPAN)
        return document, start, stop

    def _parts(self, kind: str) -> list[Path]:
        return [self.folder / name for name in sorted(self.record.files) if name.startswith(f"{kind}-")]

    def _tombstones(self, folder: Path) -> Rows:
        """The numbers of documents that are no longer part of the index, each once, sorted."""
        dead = np.zeros(0, dtype=np.int64)
        for name in self.record.tombstones:
            try:
                part = np.lib.format.open_memmap(folder / name, mode="r")
                fits = part.ndim == 1 and part.dtype == np.int64
                dead = np.union1d(dead, part) if fits else dead
            except Exception as error:  # damaged bytes come out of numpy as errors of every kind
                raise DamagedIndex(f"{folder / name} cannot be read ({error}): {CURE}") from error
            if not fits or (len(dead) and not 0 <= dead[0] <= dead[-1] < self.record.documents):
                raise DamagedIndex(f"{folder / name} names documents that are not there: {CURE}")
        return dead


def _tensor(path: Path, name: str, types: Sequence[torch.dtype], *width: int) -> torch.Tensor:
    """One tensor of a file, memory-mapped: rows of numbers, or of vectors as wide as `width`."""
    try:
        with safe_open(path, framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise DamagedIndex(f"{path} cannot be read ({error}): {CURE}") from error
    if tensor.dtype not in types or tensor.shape[1:] != width or not tensor.dim():
        raise DamagedIndex(f"{path} holds other numbers than were written: {CURE}")
    return tensor
