"""The two shortcuts of a CPU, attention without padding and linear layers by oneDNN, against torch's plain way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity, linear, scaled_dot_product_attention

from vicinal.encoder import attention
from vicinal.encoder.attention import packed, runs_of
from vicinal.encoder.linear import OneDnnLinear, use_onednn, works

LENGTHS = [70, 70, 70, 33, 33, 5, 1]
HEADS, WIDTH = 3, 16
SCALING = 0.3  # not the default, which would hide that it is passed


def states(tokens: int, seed: int) -> torch.Tensor:
    """As a model gives them: (1, heads, tokens, width), not contiguous."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(1, tokens, HEADS, WIDTH, generator=random).transpose(1, 2)


def plainly(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """Attention over everything, with a mask that lets each text see itself and no other."""
    seen = torch.block_diag(*[torch.ones(length, length) for length in LENGTHS]).bool()
    if window is not None:
        place = torch.arange(sum(LENGTHS))
        seen &= (place[:, None] - place).abs() < window
    return scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=SCALING).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("at_once", [1, 10_000, 1 << 19])
def test_packed_attention_equals_masked_attention(
    window: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    query, key, value = (states(sum(LENGTHS), seed) for seed in range(3))
    expected = plainly(query, key, value, window)
    given = {"runs": runs_of(LENGTHS), "scaling": SCALING, "sliding_window": window}
    with torch.inference_mode():
        full, _ = packed(None, query, key, value, **given)
        short, _ = packed(None, query.bfloat16(), key.bfloat16(), value.bfloat16(), **given)
    torch.testing.assert_close(full, expected, atol=1e-5, rtol=0)
    assert short.dtype == torch.bfloat16
    assert cosine_similarity(short.float().flatten(2), expected.flatten(2), dim=-1).min() > 0.9995


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_one_query_for_each_text_gives_the_answer_of_that_token(kind: torch.dtype) -> None:
    query, key, value = (states(sum(LENGTHS), seed).to(kind) for seed in range(3))
    firsts = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0)
    with torch.inference_mode():
        every, _ = packed(None, query, key, value, runs=runs_of(LENGTHS), scaling=SCALING)
        chosen, _ = packed(None, query[:, :, firsts], key, value, runs=runs_of(LENGTHS), scaling=SCALING)
    torch.testing.assert_close(chosen, every[:, firsts])


def test_in_16_bit_a_gradient_takes_torchs_own_way() -> None:
    query, key, value = (states(sum(LENGTHS), seed).bfloat16() for seed in range(3))
    query.requires_grad_()
    answer, _ = packed(None, query, key, value, runs=runs_of(LENGTHS), scaling=SCALING)
    answer.float().sum().backward()
    assert query.grad is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_by_onednn_gives_what_a_plain_one_gives(kind: torch.dtype, bias: bool) -> None:
    layer = torch.nn.Linear(40, 24, bias=bias).to(kind)
    x = torch.randn(1, 7, 40, generator=torch.Generator().manual_seed(0)).to(kind)
    use_onednn(layer)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), linear(x, layer.weight, layer.bias))
    assert isinstance(layer, OneDnnLinear) == works()


def test_a_layer_by_onednn_still_has_a_gradient() -> None:
    layer = torch.nn.Linear(4, 3)
    use_onednn(layer)
    layer(torch.ones(2, 4)).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.full((3, 4), 2.0))


@pytest.mark.parametrize(
    "operator",
    [
        None,
        lambda x, weight, bias, *_: linear(x, weight, bias) + 1,
        lambda x, weight: linear(x, weight),
    ],
    ids=["absent", "computes otherwise", "takes other arguments"],
)
def test_without_the_operator_that_it_knows_a_layer_stays_plain(
    operator: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    class Operators:
        if operator is not None:
            _linear_pointwise = staticmethod(operator)

    works.cache_clear()
    request.addfinalizer(works.cache_clear)
    monkeypatch.setattr(torch.ops, "mkldnn", Operators)
    layer = torch.nn.Linear(4, 3)
    use_onednn(layer)
    assert type(layer) is torch.nn.Linear
