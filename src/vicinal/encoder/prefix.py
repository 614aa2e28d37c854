"""Attention behind a context: text sees the context's keys and values in front of its own.

transformers' models ask a registry for their attention function. The one registered here as "vicinal_context" serves
all that the two-stage encoder (contextual.py) does with a backbone, by keyword arguments of `model(...)`:

    record=[]          a context runs through the model; each layer leaves its keys and values there, after rotation
    context=cache      texts run behind that context: keys = [context ; text]; the context never sees them (one-way)
    joined=n           the first n tokens of the sequence are a context, and everyone sees everyone (two-way)
    padding_counts     states of padding are pooled, as published checkpoints with several vectors a document do
    runs=...           texts lie end to end (attention.py); without it they are padded, and a mask says where

The one idea: a context has no positions, so its keys and values are the same for every text and every place in it. They
are computed once, and a layer with a local window (ModernBERT) has the window among text tokens only: the whole context
is next to every token. Without any of the arguments a model is what it was.

>>> keys = torch.zeros(1, 2, 3, 4)                        # (1, heads, slots, width)
>>> cache = ContextCache.of([(keys, keys), (keys, keys)])
>>> cache.slots, cache.bytes                              # 2 layers x (keys, values) x 2 x (3 + room) x 4 x 4 bytes
(3, 4480)
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from .attention import Runs, attention, band, packed, texts_of

CONTEXT = "vicinal_context"
IN_CACHE = 1 << 18  # numbers: keys of a few texts, or their scores, that fit into a processor's second cache
ROOM = 32  # tokens: of a query that is encoded alone, if it is not long


@dataclass(frozen=True, eq=False)
class ContextCache:
    """What text needs of a context: per layer its keys and values, soft prompt included, with room behind them.

    Nobody ever writes to the keys and values, so any number of threads may read one cache, and a process may hold many.
    The room takes the keys and values of one text at a time, that of whoever holds `lock`. A cache is derived from the
    context's vectors for one device and precision; those, not it, are what is saved.
    """

    states: tuple[Tensor, ...]  # per layer (keys and values, heads, slots + ROOM, width)
    slots: int
    lock: Any = field(default_factory=Lock, repr=False)

    @classmethod
    def of(cls, recorded: Iterable[tuple[Tensor, Tensor]]) -> ContextCache:
        """From what the layers recorded; the graph is kept, so that gradients reach the context through it."""
        states = tuple(torch.cat([key, value]) for key, value in recorded)
        return cls(tuple(pad(both, (0, 0, 0, ROOM)) for both in states), states[0].shape[2])

    @property
    def bytes(self) -> int:
        return sum(states.numel() * states.element_size() for states in self.states)

    def layer(self, attention: Any) -> tuple[Tensor, Tensor]:
        """Keys and values for one layer's attention module, each (1, heads, slots, width)."""
        key, value = self.states[attention.layer_idx][:, None, :, : self.slots]
        return key, value

    def with_text(self, attention: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The same with one text's own behind them, put into the room: only for who holds the lock, and while so."""
        both = self.states[attention.layer_idx][:, None, :, : self.slots + key.shape[2]]
        for place, states in zip(both, (key, value), strict=True):
            place[:, :, self.slots :] = states
        return both[0], both[1]


def register() -> str:
    """Make attention behind a context known to transformers, with its mask, and return its name."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(CONTEXT, attend)
    AttentionMaskInterface.register(CONTEXT, _padding)
    return CONTEXT


def adopt(model: Any) -> Any:
    """Let a transformers model attend by `attend`; its weights and its class stay what they are."""
    model.set_attn_implementation(register())
    for index, layer in enumerate(layers_of(model)):
        if model.config.model_type == "nomic_bert":  # the only family whose attention does not know its layer
            layer.self_attn.layer_idx = index
    return model


def layers_of(model: Any) -> Any:
    """The list of layers of any of the families."""
    return model.encoder.layer if hasattr(model, "encoder") else model.layers


def _padding(*, attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
    """transformers' mask for this attention: who is real, (texts, 1, 1, tokens). Windows are `attend`'s own affair."""
    return None if attention_mask is None else attention_mask[:, None, None, :].bool()


def attend(
    module: torch.nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    runs: Runs | None = None,
    context: ContextCache | None = None,
    record: list[tuple[Tensor, Tensor]] | None = None,
    joined: int = 0,
    padding_counts: bool = False,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """(texts, heads, tokens, width) -> (texts, tokens, heads, width), as transformers wants it."""
    if record is not None:
        record.append((key, value))
    if runs is not None and not dropout:
        if context is None:
            return packed(module, query, key, value, runs=runs, scaling=scaling, sliding_window=sliding_window)
        if runs[0][0] * len(runs) == 1 and sliding_window is None:
            return _alone(module, query, key, value, context, scaling), None
    prefix = None if context is None else context.layer(module)
    if runs is not None:
        return _end_to_end(query, key, value, prefix, runs, sliding_window, dropout, scaling), None
    length = query.shape[2]
    slots = 0
    if prefix is not None:
        slots = prefix[0].shape[2]
        key, value = _behind(prefix, key, value)
    visible = _visible(attention_mask, length, slots, joined, sliding_window, query.device)
    # Padding in a window of padding alone sees all alike, and of that torch's fused kernels give a wrong gradient
    # (measured on a CPU, torch 2.13: the weights of the sum count as 1 each).
    with sdpa_kernel(SDPBackend.MATH) if padding_counts else nullcontext():
        answer = scaled_dot_product_attention(
            query, key, value, attn_mask=_additive(visible, query.dtype), dropout_p=dropout, scale=scaling
        )
    return answer.transpose(1, 2), None


def _behind(prefix: tuple[Tensor, Tensor], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of texts, (texts, heads, tokens, width), with the context's in front."""
    texts = key.shape[0]
    context_key, context_value = (states.expand(texts, -1, -1, -1) for states in prefix)
    return torch.cat([context_key, key], dim=2), torch.cat([context_value, value], dim=2)


def _visible(
    padding: Tensor | None, length: int, slots: int, joined: int, window: int | None, device: torch.device
) -> Tensor | None:
    """Who sees whom: (texts or 1, 1, tokens or 1, slots + tokens), None where everyone sees everyone."""
    visible = padding
    if window is not None and length > window:
        place = torch.arange(length, device=device)
        near = (place[:, None] - place[None, :]).abs() < window
        near |= (place[:, None] < joined) | (place[None, :] < joined)
        visible = near[None, None] if visible is None else visible & near
    if visible is not None and slots:
        visible = pad(visible, (slots, 0), value=True)
    return visible


def _additive(visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as a summand: the least number, not minus infinity, lest padding that sees nobody becomes NaN."""
    if visible is None:
        return None
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def _alone(
    module: torch.nn.Module | None, query: Tensor, key: Tensor, value: Tensor, context: ContextCache, scaling: float
) -> Tensor:
    """One text behind a context: (1, heads, tokens, width) -> (1, tokens, heads, width).

    A query asked alone copies nothing but its own keys and values: behind 512 slots that saves a sixth of its
    attention's time (measured, 12 heads of 32, 16 tokens, fp32). Where the room is too small, or another thread's, or
    must not be written to because gradients flow, the context is copied.
    """
    fits = key.shape[2] <= ROOM and torch.is_inference_mode_enabled()
    if fits and context.lock.acquire(blocking=False):
        try:
            answer = attention(query, *context.with_text(module, key, value), None, scaling)
        finally:
            context.lock.release()
    else:
        answer = attention(query, *_behind(context.layer(module), key, value), None, scaling)
    return answer.transpose(1, 2)


def _end_to_end(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
    runs: Runs,
    window: int | None,
    dropout: float,
    scaling: float,
) -> Tensor:
    """`attention.packed` behind a context: (1, heads, tokens, width) -> (1, tokens, heads, width).

    Few texts at a time get their copy of the context's keys and values, so that copies and scores stay in the
    processor's cache: measured (12 heads of 32, 128 texts of 16 tokens, 128 slots, fp32), 11 ms against 27 at once.
    """
    one = query.shape[2] != key.shape[2]
    heads, width = query.shape[1], query.shape[3]
    slots = 0 if prefix is None else prefix[0].shape[2]
    answers = []
    row = token = 0
    for count, length in runs:
        asked = 1 if one else length
        visible = band(length, window, query.device)
        if visible is not None and slots:
            visible = pad(visible, (slots, 0), value=True)
        at_once = max(1, IN_CACHE // (heads * (slots + length) * max(asked, width)))
        for start in range(0, count, at_once):
            some = min(at_once, count - start)
            q = texts_of(query, row, some, asked)
            k, v = texts_of(key, token, some, length), texts_of(value, token, some, length)
            if prefix is not None:
                k, v = _behind(prefix, k, v)
            if dropout:
                answer = scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout, scale=scaling)
            else:
                answer = attention(q, k, v, visible, scaling)
            answers.append(answer.transpose(1, 2).flatten(0, 1))  # (some x asked, heads, width)
            row, token = row + some * asked, token + some * length
    return (torch.cat(answers) if len(answers) > 1 else answers[0])[None]
