"""The express lane: the equation, its limits, its gradients, and an encoder that is bound to a context."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import vicinal
from vicinal.context import Context
from vicinal.documents import Document
from vicinal.encoder import Encoder
from vicinal.encoder.effect import INERT, effect, pseudo_query
from vicinal.encoder.lane import GAMMA, HALFWAY, InverseRoot, Lane
from vicinal.errors import IndexRefused, VicinalError
from vicinal.vectors import final, unit

DOCUMENTS = [
    Document(f"d{n}", text=f"{subject} of the agreement, clause {n}: {what}")
    for n, (subject, what) in enumerate(
        [(s, w) for s in ("termination", "payment", "liability", "privacy") for w in ("notice", "fees", "data", "law")]
        * 4
    )
]


def reference(context: np.ndarray, gamma: float, halfway: float) -> np.ndarray:
    """The map, direction by direction."""
    count, dim = context.shape
    moved = np.eye(dim)
    if count <= 1:
        return moved
    gate = (count - 1) / (count - 1 + halfway)
    strengths, directions = np.linalg.eigh(context.T @ context / count)
    for strength, direction in zip(strengths, directions.T, strict=True):
        damped = 1 - (1 + max(strength, 0) / gamma) ** -0.5
        moved -= gate * damped * np.outer(direction, direction)
    return moved


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_the_map_is_its_equation(count: int) -> None:
    context = unit(torch.randn(count, 16, generator=torch.Generator().manual_seed(0)) + 1)
    expected = reference(context.double().numpy(), GAMMA, HALFWAY)
    np.testing.assert_allclose(Lane().matrix(context).detach().numpy(), expected, atol=1e-6)


def test_a_context_of_one_document_moves_nothing() -> None:
    assert torch.equal(Lane().matrix(unit(torch.randn(1, 8))), torch.eye(8))


def test_what_all_documents_share_is_damped_and_what_they_do_not_is_kept() -> None:
    context = unit(torch.tensor([[1.0, 0.2, 0.0], [1.0, -0.2, 0.0]]).repeat(64, 1))
    moved = Lane().matrix(context)
    assert moved[0, 0] < 0.4 < moved[1, 1] < 1 == moved[2, 2]


def test_never_less_than_a_quarter_of_a_length_is_left() -> None:
    same = unit(torch.ones(5000, 8))
    assert (final(torch.ones(1, 8), None, None) @ Lane().matrix(same)).norm() > (1 + 1 / GAMMA) ** -0.5 - 1e-6


def test_the_gradient_of_the_inverse_root_is_right_where_eigenvalues_are_equal_too() -> None:
    def root(matrix: torch.Tensor) -> torch.Tensor:
        return InverseRoot.apply((matrix + matrix.T) / 2)  # type: ignore[no-any-return]

    random = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for matrix in (random @ random.T + torch.eye(5), torch.eye(4, dtype=torch.float64)):
        assert torch.autograd.gradcheck(root, (matrix.double().requires_grad_(),))


def test_gradients_reach_the_context_and_both_constants() -> None:
    lane = Lane()
    context = unit(torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    vectors = unit(torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    (vectors @ lane.matrix(unit(context)))[:, 0].sum().backward()
    for gradient in (context.grad, lane.log_gamma.grad, lane.log_halfway.grad):
        assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0


def test_the_null_context_is_the_model_itself_to_the_bit(tiny: Encoder) -> None:
    reader = tiny.with_context(tiny.context(DOCUMENTS))
    plain = tiny.encode_documents(["a clause"]).dense
    assert np.array_equal(reader.without_context().encode_documents(["a clause"]).dense, plain)
    assert np.array_equal(tiny.with_context(tiny.context([])).encode_documents(["a clause"]).dense, plain)
    assert not np.array_equal(reader.encode_documents(["a clause"]).dense, plain)


def test_binding_changes_no_raw_vector_and_not_the_encoder_that_was_bound(tiny: Encoder) -> None:
    before = tiny.encode_queries(["a clause"]).dense
    reader = tiny.with_context(tiny.context(DOCUMENTS))
    assert np.array_equal(reader.encode_raw(["a"], "query").vectors, tiny.encode_raw(["a"], "query").vectors)
    assert np.array_equal(tiny.encode_queries(["a clause"]).dense, before)
    assert tiny.bound is None


@pytest.mark.parametrize("dim", [None, 16, 1])
def test_the_order_is_truncate_normalise_correct_normalise(tiny: Encoder, dim: int | None) -> None:
    context = tiny.context(DOCUMENTS, size=9)
    raw = tiny.encode_raw(["the fees"], "query").vectors
    short = raw[:, :dim] / np.linalg.norm(raw[:, :dim])
    shown = context.vectors.numpy()[:, :dim]
    moved = short @ reference(shown / np.linalg.norm(shown, axis=1, keepdims=True), GAMMA, HALFWAY)
    found = tiny.with_context(context).encode_queries(["the fees"], dim).dense
    np.testing.assert_allclose(found, moved / np.linalg.norm(moved), atol=1e-6)


def test_a_vector_of_which_a_map_leaves_nothing_is_kept(tiny: Encoder) -> None:
    nothing = torch.diag(torch.tensor([1e-4, 1.0]))
    kept = final(torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]]), None, nothing)
    torch.testing.assert_close(kept, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1e-4, 1.0]]), atol=1e-7, rtol=0)


def test_a_context_of_another_encoder_is_refused(tiny: Encoder) -> None:
    other = Context.of(DOCUMENTS, lambda texts: torch.ones(len(texts), 64), encoder="another")
    with pytest.raises(IndexRefused, match="another encoder"):
        tiny.with_context(other)


def test_many_tenants_read_at_once_each_in_its_own_context(tiny: Encoder) -> None:
    readers = [tiny.with_context(tiny.context(DOCUMENTS, size=8, seed=seed)) for seed in range(8)]
    expected = [reader.encode_queries(["notice"]).dense for reader in readers]
    found: dict[int, np.ndarray] = {}

    def read(number: int) -> None:
        for _ in range(5):
            found[number] = readers[number].encode_queries(["notice"]).dense

    threads = [threading.Thread(target=read, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected[number]) for number in range(8))
    assert len({vector.tobytes() for vector in expected}) == 8


def test_an_index_keeps_its_context_and_asks_in_it(tiny: Encoder, tmp_path: Path) -> None:
    corpus = vicinal.Corpus.read(DOCUMENTS)
    reader = tiny.with_context(tiny.context(corpus, size=16))
    with vicinal.Index.build(tmp_path / "own.vicinal", reader, corpus) as built:
        before = built.search("liability and fees", k=5)
    with vicinal.Index.open(tmp_path / "own.vicinal") as index:
        assert index.search("liability and fees", k=5) == before
        (score,) = [hit.score for hit in index.search("liability and fees", k=1)]
        vectors = reader.encode_documents([document.content for document in DOCUMENTS]).dense
        best = float((vectors @ reader.encode_queries(["liability and fees"]).dense[0]).max())
        assert score == pytest.approx(best, abs=1e-3)  # rows are kept in 16 bit
        told = index.info()["context"]
        assert (told["documents"], told["fingerprint"]) == (16, reader.bound and reader.bound.fingerprint)
    with vicinal.Index.build(tmp_path / "null.vicinal", tiny, corpus) as plain:
        assert plain.info()["context"] is None
        assert plain.search("liability and fees", k=1)[0].score != before[0].score


def test_an_index_refuses_the_reader_of_another_context(tiny: Encoder, tmp_path: Path) -> None:
    corpus = vicinal.Corpus.read(DOCUMENTS)
    reader, other = (tiny.with_context(tiny.context(corpus, size=16, seed=seed)) for seed in (0, 1))
    vicinal.Index.build(tmp_path / "i.vicinal", reader, corpus).close()
    with pytest.raises(IndexRefused, match="another context"):
        vicinal.Index.open(tmp_path / "i.vicinal", other)
    with vicinal.Index.open(tmp_path / "i.vicinal", tiny) as index:
        assert index.search("fees", k=1), "a model without context is bound by the index"


def test_another_context_is_another_index(tiny: Encoder, tmp_path: Path) -> None:
    corpus = vicinal.Corpus.read(DOCUMENTS)
    reader, other = (tiny.with_context(tiny.context(corpus, size=16, seed=seed)) for seed in (0, 1))
    vicinal.Index.build(tmp_path / "i.vicinal", reader, corpus).close()
    with vicinal.Index.build(tmp_path / "i.vicinal", reader, corpus) as again:
        assert not again.is_new
    with pytest.raises(VicinalError, match="its context"):
        vicinal.Index.build(tmp_path / "i.vicinal", other, corpus)


def test_a_context_that_was_changed_inside_an_index_is_found(tiny: Encoder, tmp_path: Path) -> None:
    from vicinal.index.segments import verify

    corpus = vicinal.Corpus.read(DOCUMENTS)
    vicinal.Index.build(tmp_path / "i.vicinal", tiny.with_context(tiny.context(corpus)), corpus).close()
    (path,) = (tmp_path / "i.vicinal").rglob("context.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert any("context.safetensors" in problem for problem in verify(tmp_path / "i.vicinal"))
    with (
        vicinal.Index.open(tmp_path / "i.vicinal") as index,
        pytest.raises(VicinalError, match=r"context\.safetensors"),
    ):
        index.search("fees")


def test_the_effect_of_a_context_is_measured_and_an_inert_one_is_told_apart(tiny: Encoder) -> None:
    reader = tiny.with_context(tiny.context(DOCUMENTS))
    assert effect(reader, documents=DOCUMENTS)["top10"] < INERT
    still = tiny.with_context(tiny.context(DOCUMENTS, size=1))  # the map of one document is the identity
    assert effect(still, documents=DOCUMENTS) == {"documents": len(DOCUMENTS), "cosine": 1.0, "top10": 1.0}
    assert effect(reader, documents=[])["documents"] == 0


def test_a_wrong_corpus_can_be_measured_against_an_index(tiny: Encoder, tmp_path: Path) -> None:
    corpus = vicinal.Corpus.read(DOCUMENTS)
    wrong = vicinal.Corpus.read([Document(f"w{n}", text=f"stars shine {n}") for n in range(50)])
    vicinal.Index.build(tmp_path / "i.vicinal", tiny.with_context(tiny.context(corpus)), corpus).close()
    with vicinal.Index.open(tmp_path / "i.vicinal") as index:
        assert index.against(corpus)["top10"] == 1.0
        assert index.against(wrong)["top10"] < 1.0


@pytest.mark.parametrize(
    ("document", "query"),
    [
        (Document("a", "A title", "text"), "A title"),
        (Document("a", text="One. Two."), "One."),
        (Document("a", text="w " * 40), " ".join(["w"] * 16)),
        (Document("a", text="一つ。二つ。"), "一つ。"),
    ],
)
def test_a_pseudo_query_is_a_title_or_the_beginning_of_a_sentence(document: Document, query: str) -> None:
    assert pseudo_query(document) == query
