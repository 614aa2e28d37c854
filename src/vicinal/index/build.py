"""Documents in, a published index out; killed at any moment, it leaves no index, or the old one, or the new one.

The data's way:

    corpus --> documents.sqlite --windows--> encoder --> passages-*, dense-* --> bm25/ --> hashes --> manifest

Everything is written to `.INDEX.partial`, beside INDEX, where no reader looks. Each part is published there as soon as
it is whole, so that a build which was interrupted goes on where it stopped, provided that it is asked for the same
thing; what was refused leaves nothing. The last step renames the finished folder to INDEX; onto an existing index it
moves the new segment in, replaces the manifest, and only then removes what the old manifest named.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from .. import __version__, files
from ..context import Context
from ..corpus import Corpus
from ..documents import Document, DocumentStore
from ..encoder import Encoder
from ..errors import DamagedIndex, IndexRefused, InputError, VicinalError
from ..progress import Advance, Progress, silent, within
from .lexical import BM25, check_language
from .segments import (
    CONTEXT,
    DENSE,
    DOCUMENTS,
    FORMAT,
    LEXICAL,
    MANIFEST,
    PASSAGES,
    SEGMENTS,
    Manifest,
    SegmentRecord,
    faults,
    records_of,
    verify,
)

WINDOW_DOCUMENTS = 16_384  # documents per file of rows: what an interrupted build loses at most
WINDOW_CHARACTERS = 1 << 26  # or this much text, so that long documents do not fill the memory
STATE = "state.json"
SEGMENT_NAME = re.compile(r"segment-[0-9a-f]{16}(-[0-9]+)?")


@dataclass(frozen=True)
class Rows:
    """What is stored of some documents: a row each, or none for a document that is never to be a hit."""

    numbers: list[int]  # the documents' numbers
    vectors: npt.NDArray[Any]  # (rows, dim), raw
    spans: list[tuple[int, int]]  # where in its document's text a passage starts and stops
    cut: int = 0  # how many documents were longer than what was read
    uncorrected: int = 0  # of how many rows the context would leave next to nothing


MakeRows = Callable[[int, list[Document], Advance], Rows]  # from the number of the first document, and some documents


@dataclass(frozen=True)
class Order:
    """What is to be built: it is kept in the manifest, and the same order onto the same corpus gives the same index."""

    dim: int
    encoder: Mapping[str, Any] | None  # None: vectors of another model, whose hash is `vectors`
    keep_text: bool = True
    language: str = "auto"
    vectors: str | None = None
    context: Context | None = None
    effect: Callable[[DocumentStore], Mapping[str, Any]] | None = None  # what the context changes, measured once
    attention: Mapping[str, Any] | None = None  # what is said of attention to the context, where there is any

    def request(self, corpus_fingerprint: str) -> dict[str, Any]:
        """Everything that shapes the index, as JSON."""
        return {
            "corpus": corpus_fingerprint,
            "encoder": self.encoder and dict(self.encoder),
            "vectors": self.vectors,
            "context": self.context and {k: v for k, v in self.context.describe().items() if k != "made"},
            "engine": "exact",
            "representations": [DENSE],
            "dim": self.dim,
            "text": self.keep_text,
            "language": self.language,
        }


def build(
    target: Path,
    corpus: Corpus,
    make: MakeRows,
    order: Order,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> bool:
    """Write the index that `order` asks for at `target`; False says that it was there already."""
    check_target(target)
    check_language(order.language)
    target = Path(os.path.realpath(target))  # so that a link stays one, and "." has a name
    partial = target.with_name(f".{target.name}.partial")
    if (target / MANIFEST).exists():
        difference = _difference(target, corpus, order, overwrite, progress)
        if not difference:
            with contextlib.suppress(OSError, IndexRefused), files.alone(target):  # a disk that is read-only, or busy
                _tidy(target, partial)
            return False
        if not overwrite:
            raise IndexRefused(
                f"{target} exists and differs in {difference}: "
                "--overwrite replaces it, -o NAME puts the new one elsewhere"
            )
    with files.alone(target):
        state = _taken_up(partial, target, corpus, order, progress) or _begun(partial, corpus, order, progress)
        segment = _segment(partial, target, state["request"])
        try:
            record = _finished(partial, segment, state, make, order, progress)
        except VicinalError:
            files.remove(partial)
            raise
        manifest = Manifest(
            encoder=order.encoder,
            representations={DENSE: {"dim": order.dim}},
            request=state["request"],
            segments=[record],
            vicinal=__version__,
        )
        _publish(partial, target, manifest)
        return True


def check_target(target: Path) -> None:
    """Refuse, before any work, a place where no index can stand."""
    target = Path(os.path.realpath(target))
    if not target.name:
        raise InputError(f"{target} has no name that an index could have: choose another place with -o")
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent} to put {target.name} into: make it first")
    if target == Path(os.path.realpath(".")):
        raise InputError(f"{target} is the folder that you work in, which cannot be replaced: choose another with -o")
    is_empty = target.is_dir() and not any(target.iterdir())
    if os.path.lexists(target) and not is_index(target) and not is_empty:
        raise IndexRefused(f"{target} exists and is not an index: choose another place with -o")


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, were it a damaged one: a manifest alone is what other programs have, too."""
    try:
        Manifest.read(folder)
    except DamagedIndex:
        return any((segment / DOCUMENTS).is_file() for segment in _segments_in(folder))
    except IndexRefused as refusal:
        return (folder / MANIFEST).is_file() and "was written by vicinal" in str(refusal)  # a newer one
    return True


def _segments_in(folder: Path) -> list[Path]:
    """Folders in an index that are called as segments are."""
    return [path for path in (folder / SEGMENTS).glob("segment-*") if SEGMENT_NAME.fullmatch(path.name)]


def _difference(target: Path, corpus: Corpus, order: Order, overwrite: bool, progress: Progress) -> str:
    """What the index at `target` does not have in common with what is asked for; empty where nothing."""
    try:
        manifest = Manifest.read(target)
    except DamagedIndex:
        return "its bytes (its manifest is damaged)"
    different = _differences(manifest.request, order.request(corpus.fingerprint(progress=progress)))
    if different:
        return " and ".join(f"its {name}" for name in different)
    # Whoever wants it replaced may have been told of damage that only reading shows.
    problems = verify(target, progress) if overwrite else faults(target, manifest)
    return f"its bytes ({problems[0]})" if problems else ""


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names under which two requests differ; what a model is called and where it lies does not count."""

    def counting(value: Any) -> Any:
        return {k: v for k, v in value.items() if k not in ("name", "source")} if isinstance(value, dict) else value

    return [name for name in other if counting(one.get(name)) != counting(other[name])]


def _taken_up(partial: Path, target: Path, corpus: Corpus, order: Order, progress: Progress) -> dict[str, Any] | None:
    """What an interrupted build of the same request left; None where there is nothing to go on with."""
    request = order.request(corpus.fingerprint(progress=progress))
    try:
        kept: dict[str, Any] = json.loads((partial / STATE).read_bytes())
        if kept["version"] != [FORMAT, __version__] or _differences(kept["request"], request):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # absent, or damaged: it is begun anew
        return None
    segment = _segment(partial, target, request)
    placed = target / SEGMENTS / segment.name
    if placed.exists() and not segment.exists():  # interrupted just before the manifest
        _make_folders(segment.parent)
        files.publish(placed, segment)
    try:
        DocumentStore.open(_source(partial, segment, order)).close()
    except DamagedIndex:
        return None
    for unfinished in partial.rglob(".*.partial"):
        files.remove(unfinished)
    return kept | {"request": request}


def _begun(partial: Path, corpus: Corpus, order: Order, progress: Progress) -> dict[str, Any]:
    """The documents in `partial`, and what is known of them; where that is refused, nothing."""
    files.remove(partial)
    try:
        _make_folders(partial)
        with files.writing(partial / DOCUMENTS) as name:
            counts = corpus.store(name, progress=progress)
        numbers = {key: value for key, value in counts.as_dict().items() if isinstance(value, int) and key != "rows"}
        state = {"version": [FORMAT, __version__], "request": order.request(counts.fingerprint), "counts": numbers}
        files.write_json(partial / STATE, state)
    except BaseException:
        files.remove(partial)
        raise
    return state


def _segment(partial: Path, target: Path, request: Mapping[str, Any]) -> Path:
    """Where the segment of a request is written: each has its own name, and no name is taken twice in one index."""
    taken: set[str] = set()
    if (target / MANIFEST).exists():
        with contextlib.suppress(DamagedIndex):
            taken = {segment.name for segment in Manifest.read(target).segments}
    name = f"segment-{files.fingerprint_of(request)[:16]}"
    names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
    return partial / "index" / SEGMENTS / next(name for name in names if name not in taken)


def _source(partial: Path, segment: Path, order: Order) -> Path:
    """The documents with their text: in the segment only at the end, and only where they are to stay in it."""
    spool = partial / DOCUMENTS
    return segment / DOCUMENTS if order.keep_text and not spool.exists() else spool


def _make_folders(folder: Path) -> None:
    """Make a folder, and those above it, so that a crash does not lose what is published inside."""
    if not folder.exists():
        _make_folders(folder.parent)
        folder.mkdir()
        files.flush(folder.parent)


def _finished(
    partial: Path, segment: Path, state: Mapping[str, Any], make: MakeRows, order: Order, progress: Progress
) -> SegmentRecord:
    """Everything that is missing of a segment, written; what is there already stays."""
    _make_folders(segment)
    source = _source(partial, segment, order)
    with DocumentStore.open(source) as documents:
        counts = {**state["counts"], **_write_rows(segment, documents, make, progress)}
        _write_lexical(partial, segment, documents, order.language, progress)
        total = len(documents)
        context = _write_context(segment, documents, order)
    if not order.keep_text:
        with files.writing(segment / DOCUMENTS) as name:
            DocumentStore.write_without_text(name, source)
    elif source != segment / DOCUMENTS:
        files.publish(source, segment / DOCUMENTS)
    has_words = (segment / LEXICAL).exists()
    return SegmentRecord(
        name=segment.name,
        documents=total,
        passages=counts["passages"],
        text=order.keep_text,
        language=BM25.open(segment / LEXICAL).language if has_words else None,
        context=context,
        counts=counts,
        files=records_of(segment, progress),
        tombstones={},
    )


def windows(documents: DocumentStore) -> Iterator[tuple[int, list[Document]]]:
    """Documents in order, a bounded number at a time, each window with the number of its first document."""
    start, characters, window = 0, 0, list[Document]()
    for number, document in enumerate(documents):
        length = len(document.title) + len(document.text)
        if window and (len(window) == WINDOW_DOCUMENTS or characters + length > WINDOW_CHARACTERS):
            yield start, window
            start, characters, window = number, 0, []
        window.append(document)
        characters += length
    if window:
        yield start, window


def encoded_rows(encoder: Encoder) -> MakeRows:
    """Rows by an encoder: a document that has text is one passage, as much of it as the encoder reads."""

    def make(first: int, documents: list[Document], advance: Advance) -> Rows:
        present = [(n, document) for n, document in enumerate(documents, first) if document.content]
        advance(len(documents) - len(present))
        raw = encoder.encode_raw([document.content for _, document in present], "document", progress=within(advance))
        spans = [(0, _stop(document, int(end))) for (_, document), end in zip(present, raw.ends, strict=True)]
        return Rows([n for n, _ in present], raw.vectors, spans, raw.cut, encoder.uncorrected(raw.vectors))

    return make


def fingerprint_of(vectors: npt.NDArray[Any], progress: Progress = silent) -> str:
    """The SHA-256 of vectors, read in parts; those that are not finite numbers are refused."""
    digest = hashlib.sha256(f"{vectors.dtype.str} {vectors.shape}\n".encode())
    with progress("read vectors", len(vectors)) as advance:
        for start in range(0, len(vectors), WINDOW_DOCUMENTS):
            part = np.asarray(vectors[start : start + WINDOW_DOCUMENTS])
            wrong = np.flatnonzero(~np.isfinite(part).all(axis=1))
            if len(wrong):
                raise InputError(
                    f"vector {start + wrong[0]} (counted from 0) holds NaN or infinity, and nothing can be compared "
                    "with it: look at the model that made it"
                )
            digest.update(part.tobytes())
            advance(len(part))
    return digest.hexdigest()


def given_rows(vectors: npt.NDArray[Any]) -> MakeRows:
    """Rows by vectors that are there already, in the documents' order; a vector of zeros is no row."""

    def make(first: int, documents: list[Document], advance: Advance) -> Rows:
        part = np.asarray(vectors[first : first + len(documents)])
        kept = np.flatnonzero(part.any(axis=1))
        advance(len(documents))
        return Rows((first + kept).tolist(), part[kept], [(0, len(documents[i].text)) for i in kept])

    return make


def _stop(document: Document, end: int) -> int:
    """Where in the text a passage ends that ends at `end` in the content, which is title, space and text, stripped."""
    lead = len(document.content) - len(document.text.rstrip())
    return min(max(end - lead, 0), len(document.text))


def _write_rows(segment: Path, documents: DocumentStore, make: MakeRows, progress: Progress) -> dict[str, int]:
    """Store the rows of every document, window by window; windows that are there already are only counted."""
    rows = with_row = 0
    seen = {"cut": 0, "uncorrected": 0}
    with progress("encoding", len(documents)) as advance:
        for part, (first, window) in enumerate(windows(documents)):
            passages, dense = (segment / f"{kind}-{part:06d}.safetensors" for kind in (PASSAGES, DENSE))
            if _are_whole(passages, dense):
                advance(len(window))
            else:
                made = make(first, window, advance)
                start, stop = np.array(made.spans, dtype=np.int64).reshape(-1, 2).T
                document = np.array(made.numbers, dtype=np.int64)
                _write_tensors(dense, dense=storable(made.vectors))
                told = {name: np.array([getattr(made, name)]) for name in seen}
                _write_tensors(passages, document=document, start=start, stop=stop, **told)
            stored = load_file(passages)
            rows += len(stored["document"])
            with_row += len(np.unique(stored["document"]))
            seen = {name: count + int(stored[name][0]) for name, count in seen.items()}
    return {"passages": rows, "empty": len(documents) - with_row, **seen}


def _are_whole(passages: Path, dense: Path) -> bool:
    """Whether an interrupted build left the rows of a window, as far as their own files can tell."""
    try:
        return len(load_file(passages)["document"]) == len(load_file(dense)[DENSE])
    except (OSError, ValueError, KeyError, SafetensorError):
        return False


def _write_context(segment: Path, documents: DocumentStore, order: Order) -> dict[str, Any] | None:
    """The context beside the rows that were encoded with it; what is said of it, for the manifest."""
    if order.context is None:
        return None
    order.context.save(segment / CONTEXT)
    effect = {"effect": dict(order.effect(documents)) if order.effect else None}
    attention = {"attention": dict(order.attention)} if order.attention else {}
    return order.context.describe() | attention | effect


def _write_tensors(path: Path, **tensors: npt.NDArray[Any]) -> None:
    with files.writing(path) as name:
        # Not safetensors' save_file, whose files nobody but their owner may read.
        name.write_bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))


def storable(raw: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Raw vectors in 16 bit. Their length never matters, so what 16 bit would lose is scaled by a power of two.

    >>> storable(np.array([[1.0, 0.5], [1e6, 5e5], [1e-9, 0.0]], dtype=np.float32)).round(2).astype(str).tolist()
    [['1.0', '0.5'], ['0.95', '0.48'], ['0.54', '0.0']]
    """
    if not np.isfinite(raw).all():
        raise InputError("a vector holds NaN or infinity, and nothing can be compared with it: look at the model")
    largest = np.abs(raw).max(axis=1, keepdims=True, initial=0)
    fits = (largest == 0) | ((largest >= 2.0**-6) & (largest < 2.0**15))
    scaled: npt.NDArray[np.float16] = np.ldexp(raw, np.where(fits, 0, -np.frexp(largest)[1])).astype(np.float16)
    return scaled


def _write_lexical(partial: Path, segment: Path, documents: DocumentStore, language: str, progress: Progress) -> None:
    """BM25 over the same rows, in the same order; documents without any text leave nothing to search by words."""
    folder, unfinished = segment / LEXICAL, partial / LEXICAL
    files.remove(unfinished)
    if folder.exists():
        return
    has_row = np.zeros(len(documents), dtype=bool)
    for path in segment.glob(f"{PASSAGES}-*"):
        has_row[load_file(path)["document"]] = True
    if not any(document.content for number, document in enumerate(documents) if has_row[number]):
        return
    unfinished.mkdir()
    contents = (document.content for number, document in enumerate(documents) if has_row[number])
    BM25.build(unfinished, contents, language=language, progress=progress)
    files.publish(unfinished, folder)


def _publish(partial: Path, target: Path, manifest: Manifest) -> None:
    """Turn the finished folder into the index at `target`, or its segment into the one of the index that is there."""
    (segment,) = manifest.segments
    if (target / MANIFEST).exists():
        home = target / SEGMENTS
        home.mkdir(exist_ok=True)
        files.remove(home / segment.name)  # of a build that was interrupted here, and not taken up
        files.publish(partial / "index" / SEGMENTS / segment.name, home / segment.name)
        manifest.write(target)
    else:
        manifest.write(partial / "index")
        if target.is_dir():
            target.rmdir()  # an empty folder, as check_target saw to
        files.publish(partial / "index", target)
    _tidy(target, partial)


def _tidy(target: Path, partial: Path) -> None:
    """Remove what a build leaves beside an index that is whole, and inside it, after one that was interrupted."""
    manifest = Manifest.read(target)
    named = {segment.name for segment in manifest.segments}
    old = [path for path in _segments_in(target) if path.name not in named]
    for path in [partial, *old, *target.glob(f".{MANIFEST}.*.partial")]:
        with contextlib.suppress(OSError):  # where another process reads from it (Windows), the next build removes it
            files.remove(path)
