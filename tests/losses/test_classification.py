"""Nested heads: the formula by hand, tied and not."""

from __future__ import annotations

import math

import pytest
import torch

from vicinal.errors import InputError
from vicinal.losses import NestedClassifier

VECTORS = [[1.0, -2.0, 0.5], [0.0, 3.0, 1.0], [2.0, 2.0, -1.0]]
LABELS = [0, 2, 1]


def made(tied: bool) -> NestedClassifier:
    torch.manual_seed(0)
    return NestedClassifier(3, 3, (1, 3), tied=tied, weights=(0.5, 2.0)).double()


def cross_entropy(matrix: list[list[float]], size: int) -> float:
    total = 0.0
    for vector, label in zip(VECTORS, LABELS, strict=True):
        powers = [math.exp(sum(w * z for w, z in zip(row, vector[:size], strict=False))) for row in matrix]
        total -= math.log(powers[label] / sum(powers))
    return total / 3


@pytest.mark.parametrize("tied", [False, True])
def test_it_is_the_formula_by_hand(tied: bool) -> None:
    heads = made(tied)
    matrices = [parameter.tolist() for parameter in heads.parameters()]
    assert [len(matrix[0]) for matrix in matrices] == ([3] if tied else [1, 3])
    expected = 0.5 * cross_entropy(matrices[0], 1) + 2.0 * cross_entropy(matrices[-1], 3)
    loss = heads(torch.tensor(VECTORS, dtype=torch.float64), torch.tensor(LABELS))
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_those_of_finite_differences(tied: bool) -> None:
    heads = made(tied)
    vectors = torch.tensor(VECTORS, dtype=torch.float64, requires_grad=True)
    names, values = zip(*heads.named_parameters(), strict=True)

    def loss(given: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(heads, named, (given, torch.tensor(LABELS)))

    assert torch.autograd.gradcheck(loss, (vectors, *values))


def test_a_tied_head_at_a_size_is_its_first_columns() -> None:
    heads = made(tied=True)
    vectors = torch.tensor(VECTORS, dtype=torch.float64)
    (matrix,) = heads.parameters()
    assert torch.equal(heads.scores(vectors, 1), vectors[:, :1] @ matrix[:, :1].T)


def test_gradients_reach_the_leading_dimensions_only() -> None:
    vectors = torch.tensor(VECTORS, requires_grad=True)
    NestedClassifier(3, 3, (1, 2))(vectors, torch.tensor(LABELS)).backward()
    assert vectors.grad is not None
    assert (vectors.grad[:, 2] == 0).all() and (vectors.grad[:, :2] != 0).all()


def test_what_does_not_fit_is_refused() -> None:
    for dim, classes, sizes in ((3, 3, (2, 4)), (3, 1, (2,)), (3, 3, ())):
        with pytest.raises(InputError):
            NestedClassifier(dim, classes, sizes)
    with pytest.raises(InputError, match="size 2"):
        made(False).scores(torch.ones(1, 3), 2)
    with pytest.raises(InputError, match="4 dimensions"):
        made(False)(torch.ones(1, 4), torch.zeros(1, dtype=torch.long))
