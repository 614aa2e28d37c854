"""Token ids -> raw vectors: the part of an encoder in which models differ, two siblings with one face.

`Plain` runs a backbone, pools its states and projects them. `Attending` runs a two-stage encoder behind a context:
`embed` is stage one, texts -> the vectors that a context keeps of its documents; `behind` binds to such vectors, or by
name to none, and derives what every text then needs of them (keys and values, or slots), once, in the model's own
precision and on its device. What it derives is never saved, and any number of threads may read it.

>>> from .contextual import ContextualConfig, toy_backbone
>>> reader = Attending(TwoStage.start(toy_backbone(), ContextualConfig()).eval(), max_tokens=None)
>>> bound = reader.behind(reader.embed([[1, 5, 2], [1, 7, 8, 2]]))
>>> bound([[1, 9, 2]]).shape, bound.cache_bytes         # 2 layers x (keys, values) x (2 slots + room) x 8 x 4 bytes
(torch.Size([1, 8]), 4352)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..context import SIZE
from ..errors import InputError
from .backbone import Backbone, uncounted
from .contextual import ROTARY, Prefix, TwoStage, padded
from .lane import Lane
from .pooling import POOLINGS
from .prefix import ContextCache
from .projection import Projection

Texts = Sequence[Sequence[int]]


class Plain:
    """A backbone, its pooling and its projections: vectors that no context changes."""

    attends = False
    front = 0  # tokens that every text is read behind
    cache_bytes = 0

    def __init__(
        self, backbone: Backbone, pooling: str, projections: Sequence[Projection] = (), lane: Lane | None = None
    ) -> None:
        self._backbone, self.pooling, self._projections = backbone, pooling, list(projections)
        self.lane: Lane | None = lane or Lane()  # the untrained one serves any model
        self.device, self.vocabulary = backbone.device, backbone.vocabulary
        self.max_tokens, self.own_tokens = backbone.max_tokens, backbone.max_tokens
        self.dim = backbone.dim
        for projection in self._projections:
            if projection.takes != self.dim:
                raise InputError(f"it projects {projection.takes} dimensions, but has {self.dim}")
            self.dim = projection.width

    def __call__(self, texts: Texts) -> Tensor:
        states, lengths = self._backbone.states(texts, only_first=self.pooling == "cls")
        pooled = POOLINGS[self.pooling](states, lengths)
        for projection in self._projections:
            pooled = projection(pooled)
        return pooled


class Attending:
    """A two-stage encoder; `prefix` is what texts are read behind, once `behind` has bound it.

    `lane` is None where the model was trained without one: attention is then its only way to a context.
    """

    attends = True

    def __init__(self, model: TwoStage, max_tokens: int | None) -> None:
        self.model, self.config, self.lane = model, model.config, model.lane
        self.pooling = model.config.pooling
        self.device, self.dim = model.second.device, model.dim
        configs = [stage.config for stage in (model.first, model.second) if stage is not None]
        self.vocabulary = min(config.vocab_size for config in configs)
        self.max_tokens = min(map(self._positions, configs))
        self.own_tokens = min(self.max_tokens, max_tokens or self.max_tokens)
        self.is_bound = False
        self._prefix: Prefix = None

    def _positions(self, config: object) -> int:
        """How many tokens of a text have a position; a published layout puts the context in front of them."""
        most: int = config.max_position_embeddings - (uncounted(config) + 1)  # type: ignore[attr-defined]
        if self.config.published and config.model_type not in ROTARY:  # type: ignore[attr-defined]
            most -= (self.config.slots or 0) + self.config.soft_tokens
        if most < 1:
            raise InputError(f"its context leaves positions for {most} tokens of text")
        return most

    @property
    def has_null(self) -> bool:
        """Whether it can be asked without context."""
        return self.config.attention == "one-way" or self.config.null_embedding

    @property
    def front(self) -> int:
        """Tokens that every text is read with, each at its own cost: none where the context is cached."""
        return self.config.soft_tokens + len(self._prefix) if isinstance(self._prefix, Tensor) else 0

    @property
    def cache_bytes(self) -> int:
        """What is kept in memory for the bound context."""
        if isinstance(self._prefix, ContextCache):
            return self._prefix.bytes
        return 0 if self._prefix is None else self._prefix.numel() * self._prefix.element_size()

    def embed(self, texts: Texts) -> Tensor:
        """Stage one on the texts of a batch: (texts, tokens_per_document, dim), in 32 bit, on the CPU."""
        with torch.inference_mode():
            return self.model.embed_context(*padded(texts, self.device)).float().cpu()

    def behind(self, stage: Tensor | None) -> Attending:
        """The same, bound to the stage-one vectors of a context; None asks for none, by name.

        In two-way attention, where null slots are attended to, none is as many of them as the model expects, else as a
        context has that nobody gave a size.
        """
        other = copy.copy(self)
        other.is_bound = True
        with torch.inference_mode():
            if stage is None:
                other._prefix = self.model.null_slots(self.config.slots or SIZE * self.config.tokens_per_document)
            else:
                other._prefix = self.model.prepare(stage.to(self.device))
            if isinstance(other._prefix, Tensor):
                other._prefix = other._prefix.to(self.model.second.dtype)
        return other

    def __call__(self, texts: Texts) -> Tensor:
        return self.model.encode(texts, self._prefix)


Reader = Plain | Attending
