"""Views: final vectors in the order of operations, in the precision they came in; what is refused."""

from __future__ import annotations

import pytest
import torch

from vicinal import vectors
from vicinal.encoder.lane import Lane
from vicinal.errors import InputError
from vicinal.losses import Contrastive, Views
from vicinal.losses.base import unit

RAW = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dim", [None, 3, 8])
@pytest.mark.parametrize("bound", [False, True])
def test_final_vectors_are_those_of_search(dim: int | None, bound: bool) -> None:
    lane, context = Lane(), torch.randn(20, 8, generator=torch.Generator().manual_seed(1)) + 1

    def correct(size: int) -> torch.Tensor | None:
        return lane.matrix(vectors.unit(context[:, :size])).detach() if bound else None

    queries, documents = Views(RAW[:2], RAW, correct=correct).at(dim)
    assert torch.equal(documents, vectors.final(RAW, dim, correct(dim or 8)))
    assert torch.equal(queries, documents[:2])


def test_a_correction_that_leaves_nothing_is_not_applied() -> None:
    _, documents = Views(RAW, RAW, correct=lambda size: 1e-9 * torch.ones(size, size)).at()
    torch.testing.assert_close(documents, vectors.final(RAW), rtol=0, atol=1e-6)


def test_64_bit_stays_and_16_bit_becomes_32() -> None:
    kinds = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}
    for given, kept in kinds.items():
        queries, documents = Views(RAW.to(given), RAW.to(given)).at(4)
        assert (queries.dtype, documents.dtype) == (kept, kept)


def test_autocast_takes_nothing_from_a_loss() -> None:
    views = Views(RAW, RAW.flip(0) + RAW, correct=lambda size: torch.eye(size) + 0.1)
    loss = Contrastive(both=True, same_side=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(views)
        assert (RAW @ RAW.T).dtype == torch.bfloat16
    assert inside == loss(views)


def test_a_vector_without_length_stays_zero_and_its_gradient_is_what_arrives() -> None:
    zero = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (unit(zero) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(unit(zero), torch.zeros(1, 3, dtype=torch.float64))
    assert zero.grad is not None and zero.grad.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("queries", "documents", "told"),
    [
        (RAW, RAW[:4], "5 queries came with 4 documents"),
        (RAW[:0], RAW, "0 queries"),
        (RAW[:, :7], RAW, r"\(5, 7\) and documents \(5, 8\)"),
        (RAW[0], RAW, r"queries are \(8,\)"),
    ],
)
def test_views_that_cannot_be_are_refused(queries: torch.Tensor, documents: torch.Tensor, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Views(queries, documents)


@pytest.mark.parametrize("size", [0, 9])
def test_a_size_that_vectors_do_not_have_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"size {size} .* 8 dimensions"):
        Views(RAW, RAW).at(size)


@pytest.mark.parametrize("score", [torch.nan, torch.inf])
def test_a_teachers_score_that_is_no_number_is_refused(score: float) -> None:
    with pytest.raises(InputError, match="not a number"):
        Views(RAW, RAW, teacher=torch.full((5, 5), score))


@pytest.mark.parametrize("name", ["allowed", "allowed_queries", "allowed_documents", "allowed_others"])
def test_a_mask_of_another_shape_is_refused(name: str) -> None:
    views = Views(RAW, RAW, others=RAW, **{name: torch.ones(5, 4, dtype=torch.bool)})
    with pytest.raises(InputError, match=rf"{name} is \(5, 4\), expected"):
        Contrastive(both=True, same_side=True)(views)
