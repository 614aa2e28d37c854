"""Tables out: vectors and documents as files that other programs read.

    encode    corpus -> id, vector                                   .parquet
    export    index  -> id, title, text, metadata's own keys         .jsonl, which is a corpus again
                        id, title, text, metadata as JSON, vector    .parquet

A row per document, in order. Vectors are final ones, in 32 bit; a document without content, which is never a hit, has a
vector of zeros, as `Index.from_vectors` reads it. The one idea: a window of documents is in memory at a time, and the
file appears when it is whole.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from .. import __version__, files
from ..corpus import Corpus
from ..documents import Document, DocumentStore, canonical
from ..encoder import ROLES, Encoder
from ..errors import DamagedIndex, InputError
from ..progress import Advance, Progress, silent, within
from ..vectors import checked_dim, final
from .base import Floats
from .build import windows
from .exact import Exact
from .segments import Segment


def encode(
    target: Path,
    encoder: Encoder,
    corpus: Corpus,
    role: str = "document",
    *,
    dim: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write the vector of every document of a corpus, and return what was counted.

    >>> import vicinal
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     corpus = Corpus.read([{"id": "a", "text": "cats purr"}, {"id": "b", "text": ""}])
    ...     counts = encode(Path(folder) / "vectors.parquet", vicinal.load("tiny"), corpus, dim=16)
    ...     parquet.read_table(Path(folder) / "vectors.parquet").schema.field("vector").type, counts["documents"]
    (FixedSizeListType(fixed_size_list<element: float>[16]), 2)
    """
    _check_kind(target, ".parquet")
    if role not in ROLES:
        raise InputError(f"there is no role {role!r}: texts are encoded as {' or as '.join(ROLES)}")
    dim = checked_dim(dim, encoder.dim)
    with files.writing(target) as partial, tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "documents.sqlite"
        counts = corpus.store(store, progress=progress)
        about = {
            "corpus": counts.fingerprint,
            "model": encoder.settings,
            "role": role,
            "dim": dim,
            "context": encoder.bound and encoder.bound.describe(),
        }
        cut = uncorrected = 0
        with (
            DocumentStore.open(store) as documents,
            parquet.ParquetWriter(partial, _schema(["id"], dim, about)) as writer,
            progress(f"encoding {role}s", len(documents)) as advance,
        ):
            for _, window in windows(documents):
                present = [number for number, document in enumerate(window) if document.content]
                advance(len(window) - len(present))
                raw = encoder.encode_raw([window[n].content for n in present], role, progress=within(advance))
                vectors = np.zeros((len(window), dim), dtype=np.float32)
                vectors[present] = final(torch.from_numpy(raw.vectors), dim, encoder.correction(dim)).numpy()
                writer.write_batch(_batch([[document.id for document in window]], vectors, writer.schema))
                cut += raw.cut
                uncorrected += encoder.uncorrected(raw.vectors, dim)
    return counts.as_dict() | {"cut": cut, "uncorrected": uncorrected}


def export(
    target: Path,
    segments: Sequence[Segment],
    corrections: Sequence[torch.Tensor | None],
    about: Mapping[str, Any],
    *,
    progress: Progress = silent,
) -> int:
    """Write the documents of segments, with their vectors where the file is Parquet, and return their number."""
    _check_kind(target, ".jsonl", ".parquet")
    total = sum(len(segment.documents) - len(segment.dead) for segment in segments)
    with files.writing(target) as partial, progress("exporting", total) as advance:
        if target.suffix == ".parquet":
            _write_parquet(partial, segments, corrections, about, advance)
        else:
            _write_jsonl(partial, segments, advance)
    return total


def _write_jsonl(partial: Path, segments: Sequence[Segment], advance: Advance) -> None:
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        for segment in segments:
            for _, documents in _alive(segment):
                for document in documents:
                    own = {"id": document.id, "title": document.title, "text": document.text}
                    row = {**own, **document.metadata, **own}  # its own keys come first, and win
                    file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                advance(len(documents))


def _write_parquet(
    partial: Path,
    segments: Sequence[Segment],
    corrections: Sequence[torch.Tensor | None],
    about: Mapping[str, Any],
    advance: Advance,
) -> None:
    schema = _schema(["id", "title", "text", "metadata"], about["dim"], about)
    with parquet.ParquetWriter(partial, schema) as writer:
        for segment, correction in zip(segments, corrections, strict=True):
            engine = Exact(segment.dense, correction=correction)
            if (np.diff(segment.document_of) < 0).any():
                raise DamagedIndex(f"the passages of {segment.folder} are out of order: `vicinal verify` says where")
            for numbers, documents in _alive(segment):
                first, end = (np.searchsorted(segment.document_of, numbers, side) for side in ("left", "right"))
                vectors = np.zeros((len(numbers), about["dim"]), dtype=np.float32)
                if (has_row := end > first).any():
                    vectors[has_row] = engine.vectors(first[has_row]).numpy()
                if not np.isfinite(vectors).all():
                    raise DamagedIndex(f"a vector of {segment.folder} is no number: `vicinal verify` says where")
                writer.write_batch(_batch(_columns(documents), vectors, schema))
                advance(len(documents))


def _alive(segment: Segment) -> Iterator[tuple[list[int], list[Document]]]:
    """The documents of a segment that were not deleted, with their numbers, some at a time."""
    dead = set(segment.dead.tolist())
    for start, window in windows(segment.documents):
        numbers = [number for number in range(start, start + len(window)) if number not in dead]
        if numbers:
            yield numbers, [window[number - start] for number in numbers]


def _columns(window: Sequence[Document]) -> list[list[str]]:
    rows = [(d.id, d.title, d.text, canonical(d.metadata)) for d in window]
    return [[row[column] for row in rows] for column in range(4)]


def _schema(names: Sequence[str], dim: int, about: Mapping[str, Any]) -> Any:
    """Columns of text, then the vector; what made the vectors stands in the schema's metadata, under `vicinal`."""
    fields = [*((name, pa.string()) for name in names), ("vector", pa.list_(pa.float32(), dim))]
    return pa.schema(fields, metadata={"vicinal": files.canonical_json({**about, "vicinal": __version__})})


def _batch(columns: Sequence[Sequence[str]], vectors: Floats, schema: Any) -> Any:
    vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    return pa.record_batch([*(pa.array(column, pa.string()) for column in columns), vector], schema=schema)


def _check_kind(target: Path, *kinds: str) -> None:
    if target.suffix not in kinds:
        raise InputError(f"the name {target} does not say what is to be written: expected one in {' or '.join(kinds)}")
