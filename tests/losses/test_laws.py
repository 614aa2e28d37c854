"""The laws that all losses of Views keep, on one batch with hard negatives, masks, a teacher and a context's map.

A loss is named in SIBLINGS once. What it cannot do stands beside it and is tested too: it is a fact, not an excuse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from vicinal.errors import InputError
from vicinal.losses import KL, Contrastive, Loss, MarginMSE, Matryoshka, Regression, Sum, Views

N, M, D, E = 4, 7, 6, 5
LEADING = (2, 3)
MASKED = 5  # a hard negative that no query is allowed


def head() -> torch.nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.nn.Linear(D, E)


@dataclass(frozen=True)
class Sibling:
    name: str
    loss: Callable[[float], Loss]  # at a temperature
    targets: int = E  # dimensions of the teacher's vectors
    cannot: frozenset[str] = field(default_factory=frozenset)


SIBLINGS = (
    Sibling("contrastive", Contrastive),
    Sibling("contrastive, both", lambda t: Contrastive(t, both=True)),
    Sibling("contrastive, same side", lambda t: Contrastive(t, same_side=True)),
    Sibling("contrastive, both, same side", lambda t: Contrastive(t, both=True, same_side=True)),
    Sibling("KL", lambda t: KL(t, 0.3)),
    Sibling("margin", lambda t: MarginMSE(0.1 / t)),
    Sibling("regression", lambda t: Regression(), D, frozenset({"sizes", "masks"})),
    Sibling("regression, head", lambda t: Regression(head()), cannot=frozenset({"masks"})),
    Sibling("sum", lambda t: Sum(((0.7, Contrastive(t)), (2.0, KL(t, 0.3)), (0.1, MarginMSE())))),
    Sibling("Matryoshka", lambda t: Matryoshka(Contrastive(t), (1, D), (0.3, 1.0)), cannot=frozenset({"sizes"})),
)


def those_that_can(ability: str = "") -> pytest.MarkDecorator:
    able = [sibling for sibling in SIBLINGS if ability not in sibling.cannot]
    return pytest.mark.parametrize("sibling", able, ids=lambda sibling: sibling.name)


def those_that_cannot(ability: str) -> pytest.MarkDecorator:
    unable = [sibling for sibling in SIBLINGS if ability in sibling.cannot]
    return pytest.mark.parametrize("sibling", unable, ids=lambda sibling: sibling.name)


def batch(sibling: Sibling, masked: bool = True, corrected: bool = True, dtype: torch.dtype = torch.float64) -> Views:
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def mask(columns: int) -> Tensor:
        kept = torch.rand(N, columns, generator=generator) < 0.7
        if columns == M:
            kept[:, MASKED] = False
        return kept

    queries, documents, matrix = drawn(N, D), drawn(M, D), torch.eye(D, dtype=dtype) + 0.2 * drawn(D, D)
    teacher, targets = drawn(N, M), (drawn(N, sibling.targets), drawn(M, sibling.targets))
    teacher[torch.rand(N, M, generator=generator) < 0.2] = -torch.inf
    return Views(
        queries,
        documents,
        mask(M) if masked else None,
        mask(N) if masked else None,
        mask(M) if masked else None,
        teacher,
        targets,
        (lambda size: matrix[:size, :size]) if corrected else None,
    )


def gradients(loss: Loss, views: Views) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and its gradients with respect to queries and documents."""
    queries, documents = (raw.clone().requires_grad_() for raw in (views.queries, views.documents))
    value = loss(dataclasses.replace(views, queries=queries, documents=documents))
    return value.detach(), *torch.autograd.grad(value, (queries, documents))


def same(one: tuple[Tensor, ...], two: tuple[Tensor, ...], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=tolerance)


def in_order(views: Views, queries: list[int], documents: list[int]) -> Views:
    """The same batch with its queries and documents in another order."""

    def ordered(table: Tensor | None, columns: list[int]) -> Tensor | None:
        return None if table is None else table[queries][:, columns]

    assert views.targets is not None
    return dataclasses.replace(
        views,
        queries=views.queries[queries],
        documents=views.documents[documents],
        allowed=ordered(views.allowed, documents),
        allowed_queries=ordered(views.allowed_queries, queries),
        allowed_documents=ordered(views.allowed_documents, documents),
        teacher=ordered(views.teacher, documents),
        targets=(views.targets[0][queries], views.targets[1][documents]),
    )


@those_that_can()
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_finite_differences(sibling: Sibling, masked: bool, corrected: bool) -> None:
    views, loss = batch(sibling, masked, corrected), sibling.loss(0.2)
    matrix = views.correct(D) if views.correct else None

    def value(queries: Tensor, documents: Tensor, matrix: Tensor | None = None) -> Tensor:
        correct = None if matrix is None else lambda size: matrix[:size, :size]
        return loss(dataclasses.replace(views, queries=queries, documents=documents, correct=correct))

    given = [views.queries, views.documents, *([] if matrix is None else [matrix])]
    assert torch.autograd.gradcheck(value, [tensor.clone().requires_grad_() for tensor in given])


@those_that_can()
def test_the_order_of_hard_negatives_changes_nothing(sibling: Sibling) -> None:
    views, order = batch(sibling), [0, 1, 2, 3, 6, 4, 5]
    value, queries, documents = gradients(sibling.loss(0.2), views)
    same((value, queries, documents[order]), gradients(sibling.loss(0.2), in_order(views, [0, 1, 2, 3], order)))


@those_that_can()
def test_the_order_of_pairs_changes_nothing(sibling: Sibling) -> None:
    views, pairs = batch(sibling), [2, 0, 3, 1]
    order = [*pairs, 4, 5, 6]
    value, queries, documents = gradients(sibling.loss(0.2), views)
    same((value, queries[pairs], documents[order]), gradients(sibling.loss(0.2), in_order(views, pairs, order)))


@those_that_can("masks")
def test_what_nobody_is_allowed_changes_nothing_whatever_it_is_and_gets_no_gradient(sibling: Sibling) -> None:
    views = batch(sibling)
    before = gradients(sibling.loss(0.2), views)
    assert (before[2][MASKED] == 0).all() and (before[2][MASKED - 1] != 0).any()
    for other in (1e6 * views.queries[0], torch.zeros(D, dtype=torch.float64), views.documents[0]):
        documents = views.documents.clone()
        documents[MASKED] = other
        after = gradients(sibling.loss(0.2), dataclasses.replace(views, documents=documents))
        assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


@those_that_cannot("masks")
def test_what_compares_no_two_texts_has_no_use_for_a_mask(sibling: Sibling) -> None:
    views = batch(sibling)
    found = gradients(sibling.loss(0.2), views)
    assert found[2][MASKED].any()
    same(found, gradients(sibling.loss(0.2), dataclasses.replace(views, allowed=None)), 0)


@those_that_can()
@pytest.mark.parametrize("length", [1e-6, 1e6])
def test_the_length_of_raw_vectors_changes_nothing(sibling: Sibling, length: float) -> None:
    views = batch(sibling)
    value, queries, documents = gradients(sibling.loss(0.2), views)
    lengths = length * torch.linspace(0.5, 2, M, dtype=torch.float64)[:, None]
    longer = dataclasses.replace(views, queries=length * views.queries, documents=lengths * views.documents)
    found = gradients(sibling.loss(0.2), longer)
    same((value, queries, documents), (found[0], found[1] * length, found[2] * lengths), 1e-9)


@those_that_can()
@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
def test_extreme_values_give_a_finite_loss_and_finite_gradients_in_32_bit(sibling: Sibling, length: float) -> None:
    views = batch(sibling, dtype=torch.float32)
    documents = length * views.documents
    documents[1] = documents[4] = documents[0]  # twins of which one is right
    documents[2] = 0
    queries = length * views.queries
    queries[1], queries[3] = -documents[1], documents[3]
    found = gradients(sibling.loss(1e-3), dataclasses.replace(views, queries=queries, documents=documents))
    assert all(torch.isfinite(tensor).all() for tensor in found)
    assert found[0] > 0


@those_that_can()
def test_where_only_a_querys_own_is_left_there_is_nothing_to_learn_from_others(sibling: Sibling) -> None:
    nothing = torch.zeros(N, M, dtype=torch.bool)
    views = dataclasses.replace(
        batch(sibling), allowed=nothing, allowed_queries=nothing[:, :N], allowed_documents=nothing
    )
    value, queries, documents = gradients(sibling.loss(0.2), views)
    if "masks" in sibling.cannot:
        assert value > 0 and torch.isfinite(queries).all() and torch.isfinite(documents).all()
    else:
        assert value == 0 and not queries.any() and not documents.any()


@those_that_can()
def test_a_row_of_which_only_its_own_is_left_adds_nothing_to_the_others(sibling: Sibling) -> None:
    views = batch(sibling)
    assert views.allowed is not None and views.allowed_queries is not None and views.allowed_documents is not None
    tables = [views.allowed.clone(), views.allowed_queries.clone(), views.allowed_documents.clone()]
    for table in tables:
        table[0] = False
    tables[0][:, 0] = False  # and its document is asked by nobody else
    tables[1][:, 0] = tables[2][:, 0] = False
    alone = dataclasses.replace(views, allowed=tables[0], allowed_queries=tables[1], allowed_documents=tables[2])
    value, queries, documents = gradients(sibling.loss(0.2), alone)
    assert torch.isfinite(value) and value > 0
    if "masks" not in sibling.cannot:
        assert not queries[0].any() and not documents[0].any()


@those_that_can()
def test_32_bit_agrees_with_64(sibling: Sibling) -> None:
    double, single = (sibling.loss(0.2)(batch(sibling, dtype=kind)) for kind in (torch.float64, torch.float32))
    assert single.item() == pytest.approx(double.item(), rel=1e-5)


@those_that_can()
def test_a_sum_of_one_and_matryoshka_of_the_full_size_are_the_loss_itself(sibling: Sibling) -> None:
    views, loss = batch(sibling), sibling.loss(0.2)
    plain = gradients(loss, views)
    assert plain[0] > 0
    same(plain, gradients(Sum(((1.0, loss),)), views))
    same(plain, gradients(Matryoshka(loss, (D,)), views))


@those_that_can("sizes")
def test_matryoshka_is_the_sum_over_sizes_and_its_gradient_reaches_leading_dimensions_only(sibling: Sibling) -> None:
    views, loss = batch(sibling), sibling.loss(0.2)
    value, queries, documents = gradients(Matryoshka(loss, LEADING), views)
    assert value.item() == pytest.approx(sum(loss(views, size).item() for size in LEADING), abs=1e-12)
    for gradient in (queries, documents):
        assert not gradient[:, max(LEADING) :].any()
        assert gradient[:, : max(LEADING)].any(dim=0).all()


@those_that_can("sizes")
def test_a_size_is_the_loss_of_truncated_vectors(sibling: Sibling) -> None:
    views, loss = batch(sibling), sibling.loss(0.2)
    short = dataclasses.replace(views, queries=views.queries[:, :3], documents=views.documents[:, :3])
    assert loss(views, 3) == loss(short)


@those_that_cannot("sizes")
def test_a_loss_that_has_no_smaller_size_says_so(sibling: Sibling) -> None:
    with pytest.raises(InputError, match=r"dimensions|sizes of its own"):
        Matryoshka(sibling.loss(0.2), LEADING)(batch(sibling))


@those_that_can()
def test_a_teacher_and_a_batch_are_left_as_they_were(sibling: Sibling) -> None:
    views, untouched = batch(sibling), batch(sibling)
    for name in ("queries", "documents", "allowed", "allowed_queries", "allowed_documents", "teacher"):
        getattr(views, name).requires_grad_(getattr(views, name).is_floating_point())
    assert views.targets is not None and untouched.targets is not None
    for target in views.targets:
        target.requires_grad_()
    sibling.loss(0.2)(views).backward()
    for name in ("queries", "documents", "allowed", "allowed_queries", "allowed_documents", "teacher"):
        assert torch.equal(getattr(views, name), getattr(untouched, name))
    for fixed, before in zip(views.targets, untouched.targets, strict=True):
        assert fixed.grad is None and torch.equal(fixed, before)
    assert views.teacher is not None and views.teacher.grad is None
