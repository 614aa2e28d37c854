"""Attention for texts that lie end to end, without padding.

transformers' models ask a registry for their attention function; the one registered here as "vicinal_packed" takes
one sequence of shape (1, heads, tokens, width) that holds many texts, and attends within each. `runs` says where they
are: `[(count, length), ...]`, neighbours of equal length together, which are one call without a mask. The models stay
untouched, and every linear layer sees the tokens of the batch and nothing else.

>>> register()
'vicinal_packed'
>>> runs_of([3, 3, 2])
[(2, 3), (1, 2)]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

PACKED = "vicinal_packed"
SCORES_AT_ONCE = 1 << 19  # in bf16 they are 1 MiB, which stays in a core's own cache (measured: 2^18 to 2^20 are alike)
Runs = list[tuple[int, int]]


def runs_of(lengths: Sequence[int]) -> Runs:
    """Neighbours of equal length, together: (how many, how long)."""
    return [(len(list(group)), length) for length, group in groupby(lengths)]


def register() -> str:
    """Make packed attention known to transformers, and return its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(PACKED, packed)
    return PACKED


def packed(
    module: torch.nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    runs: Runs,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within each text: (1, heads, tokens, width) -> (1, tokens, heads, width).

    `query` may hold one token per text instead of all: then only those are answered.
    """
    heads, width = query.shape[1], query.shape[3]
    one = query.shape[2] != key.shape[2]
    output = torch.empty(1, query.shape[2], heads, width, dtype=query.dtype, device=query.device)
    row = token = 0
    for count, length in runs:
        asked = 1 if one else length
        answer = attention(
            texts_of(query, row, count, asked),
            texts_of(key, token, count, length),
            texts_of(value, token, count, length),
            band(length, sliding_window, query.device),
            scaling,
        )  # (count, heads, asked, width)
        output[0, row : row + count * asked].view(count, asked, heads, width).copy_(answer.transpose(1, 2))
        row, token = row + count * asked, token + count * length
    return output, None


def texts_of(states: Tensor, start: int, count: int, length: int) -> Tensor:
    """(1, heads, tokens, width) -> a view of `count` texts of `length` tokens, (count, heads, length, width)."""
    heads, width = states.shape[1], states.shape[3]
    return states[0, :, start : start + count * length].view(heads, count, length, width).transpose(0, 1)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """softmax(scaling * query key') value, by the faster of two ways.

    torch's fused attention computes bf16 at the speed of fp32 on CPUs without AMX; three calls of oneDNN, on as many
    scores as a cache holds, take half of its time (measured: 16 to 2048 tokens, width 32 and 64).
    """
    if query.dtype != torch.bfloat16 or query.device.type != "cpu" or torch.is_grad_enabled():
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    q, k, v = (states.flatten(0, 1) for states in (query, key, value))  # (texts * heads, length, width)
    bias = q.new_zeros(1, 1, 1) if mask is None else q.new_zeros(1, *mask.shape).masked_fill_(~mask, -torch.inf)
    output = torch.empty_like(q)
    step = max(1, SCORES_AT_ONCE // (q.shape[1] * k.shape[1]))
    for start in range(0, len(q), step):
        part = slice(start, start + step)
        scores = torch.baddbmm(bias, q[part], k[part].transpose(1, 2), beta=mask is not None, alpha=scaling)
        torch.bmm(scores.softmax(dim=-1), v[part], out=output[part])
    return output.view(query.shape)


def band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Who sees whom in a layer of local attention; None where everyone sees everyone.

    transformers passes the half-width plus one, as flash attention counts it.
    """
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    return (place[:, None] - place[None, :]).abs() < window
