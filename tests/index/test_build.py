"""Building: the same bytes from the same input, on from where it stopped, and nothing left where it was refused."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import vicinal
from vicinal import Corpus, Document, Encoder, Index, files
from vicinal.encoder import Raw
from vicinal.encoder.lane import Lane
from vicinal.errors import CorpusError, DamagedIndex, IndexRefused, InputError
from vicinal.index import build as building
from vicinal.index import tables
from vicinal.index.segments import Manifest, strangers, verify
from vicinal.progress import Progress, silent
from vicinal.vectors import unit

TEXTS = ["cats purr", "stars shine", "", "rent is due", "  \n", "roofs leak in winter"]
DOCUMENTS = [Document(f"d{n}", "Title" * (n % 2), text, {"n": n}) for n, text in enumerate(TEXTS)]


def bytes_of(index: Path) -> dict[str, bytes]:
    return {path.relative_to(index).as_posix(): path.read_bytes() for path in index.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Watched:
    """An encoder that says what it encodes, and stops after so many calls."""

    def __init__(self, encoder: Encoder, calls: int = 1 << 30, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.encoder, self.left, self.error = encoder, calls, error
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode_raw(self, texts: Sequence[str], role: str, progress: Progress = silent) -> Raw:
        if not self.left:
            raise self.error("stopped")
        self.left -= 1
        self.seen += texts
        return self.encoder.encode_raw(texts, role, progress)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "WINDOW_DOCUMENTS", 2)


def test_the_same_input_gives_the_same_bytes_whatever_it_came_in(tmp_path: Path, tiny: Encoder) -> None:
    rows = [{"_id": d.id, "title": d.title, "text": d.text, **d.metadata} for d in DOCUMENTS]
    (tmp_path / "docs.jsonl").write_text("".join(files.canonical_json(row).replace("\n", "") + "\n" for row in rows))
    for name, source in (("a", DOCUMENTS), ("b", rows), ("c", tmp_path / "docs.jsonl")):
        Index.build(tmp_path / name, tiny, Corpus.read(source)).close()
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b") == bytes_of(tmp_path / "c")


def test_every_document_is_kept_and_those_without_content_are_never_hits(tmp_path: Path, tiny: Encoder) -> None:
    with Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)) as index:
        assert list(index.segments[0].documents) == DOCUMENTS
        hits = index.search("rent", 100)
        assert sorted(hit.id for hit in hits) == ["d0", "d1", "d3", "d5"]
        told = index.info()
    assert (told["documents"], told["passages"], told["counts"]["empty"]) == (6, 4, 2)
    assert "Title" in DOCUMENTS[1].content and not DOCUMENTS[2].content


@pytest.mark.parametrize("windows", [1, 2, 3, 100])
def test_how_many_documents_are_encoded_together_does_not_show_in_the_hits(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    with Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS)) as index:
        expected = index.search("does the roof leak", 10)
    monkeypatch.setattr(building, "WINDOW_DOCUMENTS", windows)
    with Index.build(tmp_path / "parts", tiny, Corpus.read(DOCUMENTS)) as index:
        assert len(index.segments[0].dense) == -(-len(DOCUMENTS) // windows)
        found = index.search("does the roof leak", 10)
    assert [hit.id for hit in found] == [hit.id for hit in expected]
    np.testing.assert_allclose([h.score for h in found], [h.score for h in expected], atol=2e-3)


def test_long_documents_fill_a_window_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "WINDOW_CHARACTERS", 10)
    texts = ["x" * 4, "x" * 6, "x", "x" * 50, "x", "x"]
    with tempfile.TemporaryDirectory() as folder:
        Corpus.read([{"text": text} for text in texts]).store(Path(folder) / "d.sqlite")
        with building.DocumentStore.open(Path(folder) / "d.sqlite") as store:
            assert [(first, len(window)) for first, window in building.windows(store)] == [
                (0, 2),
                (2, 1),
                (3, 1),
                (4, 2),
            ]


# --- Interrupted.


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_an_interrupted_build_goes_on_where_it_stopped_to_the_same_bytes(
    tmp_path: Path, tiny: Encoder, small_windows: None, calls: int
) -> None:
    Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS)).close()
    stopping = Watched(tiny, calls)
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "i", stopping, Corpus.read(DOCUMENTS))  # type: ignore[arg-type]
    assert names(tmp_path) == [".i.partial", "whole"]

    again = Watched(tiny)
    index = Index.build(tmp_path / "i", again, Corpus.read(DOCUMENTS))  # type: ignore[arg-type]
    index.close()

    assert index.is_new and bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")
    assert names(tmp_path) == ["i", "whole"]
    contents = [document.content for document in DOCUMENTS if document.content]
    assert stopping.seen + again.seen == contents, "no text is encoded twice"
    assert len(again.seen) < len(contents) or calls == 0


def test_what_was_half_written_when_it_stopped_is_written_again(
    tmp_path: Path, tiny: Encoder, small_windows: None
) -> None:
    Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS)).close()
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "i", Watched(tiny, 2), Corpus.read(DOCUMENTS))  # type: ignore[arg-type]
    segment = next((tmp_path / ".i.partial" / "index" / "segments").iterdir())
    (segment / "passages-000001.safetensors").unlink()
    (segment / ".passages-000001.safetensors.999.partial").write_bytes(b"half")
    (tmp_path / ".i.partial" / "bm25").mkdir()
    (tmp_path / ".i.partial" / "bm25" / "data.csc.index.npy").write_bytes(b"half")
    again = Watched(tiny)
    Index.build(tmp_path / "i", again, Corpus.read(DOCUMENTS)).close()  # type: ignore[arg-type]
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")
    assert again.seen == [d.content for d in DOCUMENTS[2:] if d.content]


@pytest.mark.parametrize("other", ["corpus", "language", "text", "encoder", "version"])
def test_what_was_left_of_another_request_is_replaced(
    tmp_path: Path, tiny: Encoder, small_windows: None, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "i", Watched(tiny, 1), Corpus.read(DOCUMENTS))  # type: ignore[arg-type]
    documents, options = DOCUMENTS, dict[str, Any]()
    if other == "corpus":
        documents = DOCUMENTS[::-1]
    elif other == "version":
        monkeypatch.setattr(building, "__version__", "0.0.0")
    elif other == "encoder":
        tiny = vicinal.load("tiny", precision="fp32", max_document_tokens=5)
    else:
        options = {"language": {"language": "none"}, "text": {"keep_text": False}}[other]
    again = Watched(tiny)
    Index.build(tmp_path / "i", again, Corpus.read(documents), **options).close()  # type: ignore[arg-type]
    assert again.seen == [d.content for d in documents if d.content]
    Index.build(tmp_path / "whole", tiny, Corpus.read(documents), **options).close()
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole") and names(tmp_path) == ["i", "whole"]


def test_a_build_that_was_interrupted_without_text_goes_on_too(
    tmp_path: Path, tiny: Encoder, small_windows: None
) -> None:
    Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS), keep_text=False).close()
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "i", Watched(tiny, 2), Corpus.read(DOCUMENTS), keep_text=False)  # type: ignore[arg-type]
    again = Watched(tiny)
    Index.build(tmp_path / "i", again, Corpus.read(DOCUMENTS), keep_text=False).close()  # type: ignore[arg-type]
    assert again.seen == [DOCUMENTS[5].content] and bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")


def test_documents_without_text_are_never_what_a_build_goes_on_from(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS), keep_text=False).close()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(building, "_publish", stop)
        Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS), keep_text=False)
    (tmp_path / ".i.partial" / "documents.sqlite").unlink()  # as removing the folder, interrupted too, may leave it
    next((tmp_path / ".i.partial").rglob("passages-*")).unlink()
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS), keep_text=False).close()
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")


def test_an_interrupted_overwrite_leaves_the_old_index_and_goes_on(
    tmp_path: Path, tiny: Encoder, small_windows: None
) -> None:
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS[:3])).close()
    old = bytes_of(tmp_path / "i")
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "i", Watched(tiny, 1), Corpus.read(DOCUMENTS), overwrite=True)  # type: ignore[arg-type]
    assert bytes_of(tmp_path / "i") == old
    again = Watched(tiny)
    Index.build(tmp_path / "i", again, Corpus.read(DOCUMENTS), overwrite=True).close()  # type: ignore[arg-type]
    Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS)).close()
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole") and DOCUMENTS[0].content not in again.seen


# --- Refused.


def rows_that_end_badly() -> Any:
    yield {"text": "fine"}
    yield {"text": 5}


@pytest.mark.parametrize(
    ("source", "error"),
    [([], CorpusError), (rows_that_end_badly(), CorpusError), ([{"no": "text"}], CorpusError)],
)
def test_a_corpus_that_is_refused_leaves_nothing(tmp_path: Path, tiny: Encoder, source: Any, error: type) -> None:
    with pytest.raises(error):
        Index.build(tmp_path / "i", tiny, Corpus.read(source))
    assert names(tmp_path) == []


def test_an_encoder_that_refuses_leaves_nothing(tmp_path: Path, tiny: Encoder, small_windows: None) -> None:
    with pytest.raises(InputError, match="stopped"):
        Index.build(tmp_path / "i", Watched(tiny, 1, InputError), Corpus.read(DOCUMENTS))  # type: ignore[arg-type]
    assert names(tmp_path) == []


def test_a_corpus_that_cannot_be_read_any_more_leaves_what_was_interrupted(
    tmp_path: Path, tiny: Encoder, small_windows: None
) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "i", Watched(tiny, 1), Corpus.read(tmp_path / "docs.jsonl"))  # type: ignore[arg-type]
    corpus = Corpus.read(tmp_path / "docs.jsonl")
    (tmp_path / "docs.jsonl").rename(tmp_path / "away")
    with pytest.raises(CorpusError):
        Index.build(tmp_path / "i", tiny, corpus)
    (tmp_path / "away").rename(tmp_path / "docs.jsonl")
    again = Watched(tiny)
    Index.build(tmp_path / "i", again, corpus).close()  # type: ignore[arg-type]
    assert again.seen == ["three"]


@pytest.mark.parametrize("place", ["file", "folder", "folder/file", "none/i", "pipe", "link"])
def test_a_place_where_no_index_can_be_is_refused_before_any_work(tmp_path: Path, tiny: Encoder, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine too")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("link")
    before = names(tmp_path)
    watched = Watched(tiny)
    with pytest.raises((InputError, IndexRefused)) as refusal:
        Index.build(tmp_path / place, watched, Corpus.read(DOCUMENTS))  # type: ignore[arg-type]
    assert names(tmp_path) == before and not watched.seen
    assert "-o" in str(refusal.value) or "make it first" in str(refusal.value)
    assert (tmp_path / "folder" / "file").read_text() == "mine too" and (tmp_path / "file").read_text() == "mine"


def test_an_index_has_a_name_and_is_not_the_folder_one_works_in(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no name"):
        Index.build("/", tiny, Corpus.read(DOCUMENTS))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for place in (".", "../here", tmp_path / "here"):
        with pytest.raises(InputError, match="the folder that you work in"):
            Index.build(place, tiny, Corpus.read(DOCUMENTS))
    Index.build("relative", tiny, Corpus.read(DOCUMENTS)).close()
    assert verify(tmp_path / "here" / "relative") == []


def test_an_empty_folder_becomes_the_index_and_a_link_stays_one(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "empty")
    Index.build(tmp_path / "link", tiny, Corpus.read(DOCUMENTS)).close()
    Index.build(tmp_path / "link", tiny, Corpus.read(DOCUMENTS[:2]), overwrite=True).close()
    assert (tmp_path / "link").is_symlink() and verify(tmp_path / "disk" / "empty") == []
    assert names(tmp_path) == ["disk", "link"] and names(tmp_path / "disk") == ["empty"]


def test_a_language_that_is_not_known_is_refused_before_any_work(tmp_path: Path, tiny: Encoder) -> None:
    with pytest.raises(InputError, match="did you mean"):
        Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS), language="germane")
    assert names(tmp_path) == []


# --- Onto an index that is there.


def test_the_same_again_does_nothing_and_anything_else_is_refused_by_name(tmp_path: Path, tiny: Encoder) -> None:
    assert Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).is_new
    before = bytes_of(tmp_path / "i"), (tmp_path / "i").stat().st_mtime_ns
    watched = Watched(tiny)
    assert not Index.build(tmp_path / "i", watched, Corpus.read(DOCUMENTS)).is_new  # type: ignore[arg-type]
    assert not Index.build(tmp_path / "i", watched, Corpus.read(DOCUMENTS), overwrite=True).is_new  # type: ignore[arg-type]
    other = vicinal.load("tiny", precision="fp32", max_query_tokens=9)
    for difference, encoder, documents, options in (
        ("its corpus", tiny, DOCUMENTS[1:], {}),
        ("its encoder", other, DOCUMENTS, {}),
        ("its text", tiny, DOCUMENTS, {"keep_text": False}),
        ("its language", tiny, DOCUMENTS, {"language": "german"}),
        ("its corpus and its language", tiny, DOCUMENTS[1:], {"language": "german"}),
    ):
        with pytest.raises(IndexRefused, match=f"differs in {difference}: --overwrite replaces it"):
            Index.build(tmp_path / "i", encoder, Corpus.read(documents), **options)
    assert (bytes_of(tmp_path / "i"), (tmp_path / "i").stat().st_mtime_ns) == before and not watched.seen
    assert names(tmp_path) == ["i"]


def test_where_a_model_lies_is_no_difference(tmp_path: Path, tiny: Encoder) -> None:
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).close()
    moved = Watched(tiny)
    settings = tiny.settings | {"source": "elsewhere", "name": "other"}
    moved.__dict__["settings"] = settings
    assert not Index.build(tmp_path / "i", moved, Corpus.read(DOCUMENTS)).is_new  # type: ignore[arg-type]


def test_overwriting_replaces_all_of_the_old_index(tmp_path: Path, tiny: Encoder) -> None:
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).close()
    Index.build(tmp_path / "other", tiny, Corpus.read(DOCUMENTS[:2])).close()
    assert Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS[:2]), overwrite=True).is_new
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "other") and names(tmp_path) == ["i", "other"]


def test_who_reads_the_old_index_goes_on_reading_it(tmp_path: Path, tiny: Encoder) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows does not let files go that are open")
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).close()
    with Index.open(tmp_path / "i", tiny) as old:
        Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS[:2]), overwrite=True).close()
        assert [hit.id for hit in old.search("rent is due", 1)] == ["d3"]
        with pytest.raises(IndexRefused, match="was replaced since it was opened: open it again") as refusal:
            old.search("rent", mode="bm25")
        assert not isinstance(refusal.value, DamagedIndex)


@pytest.mark.parametrize("harm", ["manifest", "missing", "flipped"])
def test_a_damaged_index_is_told_of_and_replaced_when_asked(tmp_path: Path, tiny: Encoder, harm: str) -> None:
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).close()
    Index.build(tmp_path / "whole", tiny, Corpus.read(DOCUMENTS)).close()
    dense = next((tmp_path / "i").rglob("dense-*"))
    if harm == "manifest":
        (tmp_path / "i" / "manifest.json").write_text("{}")
    elif harm == "missing":
        dense.unlink()
    else:
        content = dense.read_bytes()
        dense.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if harm == "flipped":
        assert verify(tmp_path / "i"), "only reading shows it, and then"
    else:
        with pytest.raises(IndexRefused, match="its bytes"):
            Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS))
    with Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS), overwrite=True) as index:
        assert index.is_new and index.search("rent", 1)
    assert verify(tmp_path / "i") == [] == strangers(tmp_path / "i", Manifest.read(tmp_path / "i"))


def test_what_an_interruption_left_inside_is_removed_by_the_next_build(tmp_path: Path, tiny: Encoder) -> None:
    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).close()
    (tmp_path / "i" / "segments" / "segment-0123456789abcdef").mkdir()
    (tmp_path / "i" / "segments" / "segment-0123456789abcdef" / "documents.sqlite").write_text("old")
    (tmp_path / "i" / ".manifest.json.77.partial").write_text("half")
    (tmp_path / "i" / "README").write_text("mine")
    (tmp_path / ".i.partial").mkdir()
    assert not Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).is_new
    assert (
        names(tmp_path / "i") == ["README", "manifest.json", "segments"]
        and len(names(tmp_path / "i" / "segments")) == 1
    )
    assert names(tmp_path) == ["i"]


def test_a_second_writer_is_refused_with_a_sentence(tmp_path: Path, tiny: Encoder) -> None:
    class Second(Watched):
        def encode_raw(self, *args: Any, **more: Any) -> Raw:
            with pytest.raises(IndexRefused, match="another process is writing"):
                Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS))
            return super().encode_raw(*args, **more)

    Index.build(tmp_path / "i", Second(tiny), Corpus.read(DOCUMENTS)).close()  # type: ignore[arg-type]
    assert verify(tmp_path / "i") == []


# --- What is in it.


def test_without_text_no_byte_of_a_text_is_in_any_file_but_for_its_words(tmp_path: Path, tiny: Encoder) -> None:
    documents = [Document("a", "Xylophone quartet", "zebra crossing", {"kept": "marimba"}), Document("b", text="plain")]
    with Index.build(tmp_path / "i", tiny, Corpus.read(documents), keep_text=False) as index:
        (hit,) = index.search("zebra", 1, mode="bm25")
        assert (hit.id, hit.title, hit.text, hit.span, hit.metadata) == ("a", "", "", (0, 14), {"kept": "marimba"})
        with pytest.raises(IndexRefused, match="keeps no text"):
            index.export(tmp_path / "out.jsonl")
        assert index.info()["refused"] == ["export", "info --against"]
    whole = b"".join(bytes_of(tmp_path / "i").values())
    assert b"zebra crossing" not in whole and b"Xylophone" not in whole and b"marimba" in whole


@pytest.mark.parametrize(
    ("title", "text", "tokens", "found"),
    [
        ("", "cats purr and stars shine", 4, (0, "cats")),
        ("", "   cats purr and stars shine", 4, (0, "   cats")),
        ("On cats", "cats purr and stars shine", 512, (0, "cats purr and stars shine")),
        ("On cats", "  purr  ", 512, (0, "  purr")),
        ("A title that is longer than what the encoder reads", "text", 4, (0, "")),
        ("Only a title", " ", 512, (0, "")),
    ],
)
def test_a_span_says_how_much_of_a_text_was_read(
    tmp_path: Path, title: str, text: str, tokens: int, found: tuple[int, str]
) -> None:
    encoder = vicinal.load("tiny", precision="fp32", max_document_tokens=tokens)
    with Index.build(tmp_path / "i", encoder, Corpus.read([Document("a", title, text)])) as index:
        (hit,) = index.search("cats", 1)
        cut = index.info()["counts"]["cut"]
    start, read = found
    assert text[hit.span[0] : hit.span[1]] == hit.text and hit.span[0] == start and text.startswith(hit.text)
    assert hit.text == read or (cut and read.startswith(hit.text[:3]))
    assert cut == (tokens == 4)


def test_rows_that_their_context_would_leave_nothing_of_are_kept_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_all_that_cats_are(lane: Lane, context: torch.Tensor) -> torch.Tensor:
        cats = unit(torch.from_numpy(encoder.encode_raw(["cats purr"], "document").vectors))
        return torch.eye(64) - cats.T @ cats

    encoder = vicinal.load("tiny", precision="fp32")
    monkeypatch.setattr(Lane, "matrix", takes_all_that_cats_are)
    documents = [Document("a", text="cats purr"), Document("b", text="stars shine"), Document("c", text="")]
    reader = encoder.with_context(encoder.context(documents))
    with Index.build(tmp_path / "i", reader, Corpus.read(documents)) as index:
        assert index.info()["counts"]["uncorrected"] == 1
        assert index.search("cats purr", 1)[0].id == "a"
    counts = tables.encode(tmp_path / "v.parquet", reader, Corpus.read(documents))
    assert counts["uncorrected"] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_who_may_read_an_index_is_for_the_umask_to_say(tmp_path: Path, tiny: Encoder, umask: int) -> None:
    old = os.umask(umask)
    try:
        Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS)).close()
        Index.build(tmp_path / "n", tiny, Corpus.read(DOCUMENTS), keep_text=False).close()
    finally:
        os.umask(old)
    for path in [*(tmp_path / "i").rglob("*"), *(tmp_path / "n").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_the_whole_request_is_inside(tmp_path: Path, tiny: Encoder) -> None:
    corpus = Corpus.read(DOCUMENTS)
    Index.build(tmp_path / "i", tiny, corpus).close()
    manifest = Manifest.read(tmp_path / "i")
    assert manifest.encoder == tiny.settings and manifest.vicinal == vicinal.__version__ and manifest.format == 1
    assert manifest.request == {
        "corpus": corpus.fingerprint(),
        "encoder": tiny.settings,
        "vectors": None,
        "context": None,
        "engine": "exact",
        "representations": ["dense"],
        "dim": 64,
        "text": True,
        "language": "auto",
    }


# --- Random verbs against a dictionary.


class Verbs(RuleBasedStateMachine):
    """Whatever is asked in whatever order, an index holds what a dictionary would, or is not there."""

    NAMES = st.sampled_from(["a", "b"])
    CORPUS = st.lists(
        st.tuples(st.sampled_from("uvwxyz"), st.sampled_from(["rent", "roof leaks", "", "court"])), min_size=1
    )

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.model: dict[str, dict[str, str]] = {}
        self.damaged: set[str] = set()

    def teardown(self) -> None:
        self.folder.cleanup()

    def _build(self, name: str, corpus: list[tuple[str, str]], overwrite: bool) -> None:
        documents = list(dict(corpus).items())
        vectors = np.array([[len(text), len(id), 1] for id, text in documents], dtype=np.float32)
        given = [Document(id, text=text) for id, text in documents]
        Index.from_vectors(
            self.root / name, [id for id, _ in documents], vectors, given, overwrite=overwrite, language="english"
        ).close()

    @rule(name=NAMES, corpus=CORPUS, overwrite=st.booleans())
    def build(self, name: str, corpus: list[tuple[str, str]], overwrite: bool) -> None:
        wanted = dict(corpus)
        there = list(self.model.get(name, wanted).items())
        if not overwrite and (there != list(wanted.items()) or name in self.damaged):
            with pytest.raises(IndexRefused):
                self._build(name, corpus, overwrite)
            return
        self._build(name, corpus, overwrite)
        self.model[name] = wanted
        self.damaged.discard(name)

    @precondition(lambda self: self.model)
    @rule(name=NAMES, data=st.data())
    def damage(self, name: str, data: st.DataObject) -> None:
        if name in self.model:
            path = data.draw(st.sampled_from(sorted((self.root / name).rglob("*.*"))))
            if path.is_file():
                path.write_bytes(path.read_bytes() + b"!")
                self.damaged.add(name)

    @rule(name=NAMES, query=st.sampled_from(["rent", "roofs", "court appeal"]))
    def search(self, name: str, query: str) -> None:
        if name not in self.model or name in self.damaged:
            with pytest.raises(IndexRefused):
                Index.open(self.root / name)
            return
        with Index.open(self.root / name) as index:
            if not any(self.model[name].values()):
                with pytest.raises(IndexRefused, match="no words"):
                    index.search(query, mode="bm25")
                return
            found = {hit.id for hit in index.search(query, 100, mode="bm25")}
            everything = {hit.id for hit in index.search_vector([1, 1, 1], 100)}
        stems = {"rent": ["rent"], "roofs": ["roof"], "court appeal": ["court"]}[query]
        expected = {id for id, text in self.model[name].items() if any(stem in text for stem in stems)}
        assert found == expected and everything == set(self.model[name])

    @invariant()
    def what_is_there_is_whole(self) -> None:
        assert {path.name for path in self.root.iterdir()} == set(self.model)
        for name in self.model:
            assert bool(verify(self.root / name)) == (name in self.damaged)


Verbs.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestVerbs = Verbs.TestCase


def test_a_build_is_told_of_as_it_goes(tmp_path: Path, tiny: Encoder) -> None:
    from contextlib import contextmanager

    told: dict[str, list[int | None]] = {}

    @contextmanager
    def progress(label: str, total: int | None = None, /) -> Any:
        told.setdefault(label, [total, 0])
        yield lambda count: told[label].__setitem__(1, (told[label][1] or 0) + count)

    Index.build(tmp_path / "i", tiny, Corpus.read(DOCUMENTS), progress=progress).close()
    assert told["encoding"] == [6, 6] and told["bm25"][1] == 4 and told["hashing"][0] == told["hashing"][1]
