"""Attention behind a context: text sees the context's keys and values in front of its own.

transformers' models ask a registry for their attention function. The one registered here as "vicinal_context" serves
all that the two-stage encoder (contextual.py) does with a backbone, by keyword arguments of `model(...)`:

    record=[]          a context runs through the model; each layer leaves its keys and values there, after rotation
    context=cache      texts run behind that context: keys = [context ; text]; the context never sees them (one-way)
    joined=n           the first n tokens of the sequence are a context, and everyone sees everyone (two-way)
    runs=...           texts lie end to end (attention.py); without it they are padded, and a mask says where

The one idea: a context has no positions, so its keys and values are the same for every text and every place in it. They
are computed once, and a layer with a local window (ModernBERT) has the window among text tokens only: the whole context
is next to every token. Without any of the arguments a model is what it was.

>>> keys = torch.zeros(1, 2, 3, 4)                        # (1, heads, slots, width)
>>> cache = ContextCache.of([(keys, keys), (keys, keys)])
>>> cache.slots, cache.bytes                              # 2 layers x (keys, values) x 2 x 3 x 4 x 4 bytes
(3, 384)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from .attention import Runs, attention, band, packed, texts_of

CONTEXT = "vicinal_context"
IN_CACHE = 1 << 18  # numbers: keys of a few texts, or their scores, that fit into a processor's second cache


@dataclass(frozen=True)
class ContextCache:
    """What text needs of a context: per layer its keys and values, (heads, slots, width), soft prompt included.

    Nothing ever writes to it, so any number of threads may read one cache, and a process may hold many. It is derived
    from the context's vectors for one device and precision; those, not it, are what is saved.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, recorded: Iterable[tuple[Tensor, Tensor]]) -> ContextCache:
        """From what the layers recorded; the graph is kept, so that gradients reach the context through it."""
        keys, values = zip(*recorded, strict=True)
        return cls(*(tuple(states[0].contiguous() for states in side) for side in (keys, values)))

    @property
    def slots(self) -> int:
        return self.keys[0].shape[1]

    @property
    def bytes(self) -> int:
        return sum(states.numel() * states.element_size() for states in (*self.keys, *self.values))

    def to(self, *device_or_dtype: Any) -> ContextCache:
        """The same on another device, or in another precision."""
        return ContextCache(
            *(tuple(states.to(*device_or_dtype) for states in side) for side in (self.keys, self.values))
        )

    def layer(self, attention: Any) -> tuple[Tensor, Tensor]:
        """Keys and values for one layer's attention module, each (1, heads, slots, width)."""
        return self.keys[attention.layer_idx][None], self.values[attention.layer_idx][None]


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
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """(texts, heads, tokens, width) -> (texts, tokens, heads, width), as transformers wants it."""
    if record is not None:
        record.append((key, value))
    prefix = None if context is None else context.layer(module)
    if runs is not None:
        if prefix is None and not dropout:
            return packed(module, query, key, value, runs=runs, scaling=scaling, sliding_window=sliding_window)
        return _end_to_end(query, key, value, prefix, runs, sliding_window, dropout, scaling), None
    length = query.shape[2]
    slots = 0
    if prefix is not None:
        slots = prefix[0].shape[2]
        key, value = _behind(prefix, key, value)
    visible = _visible(attention_mask, length, slots, joined, sliding_window, query.device)
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
    processor's cache: measured (12 heads of 32, 128 texts of 16 tokens, 128 slots, fp32), 11 ms against 27 at once. Two
    ways without a copy were no faster for one query behind 512 slots, where reading the cache from memory is the cost:
    attention in two parts joined by their sums of exponentials, and buffers with room for the text behind the context.
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
