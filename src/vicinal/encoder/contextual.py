"""The two-stage encoder of Contextual Document Embeddings (arXiv 2410.02525): text -> vector, behind a corpus.

    stage one   M1: token ids of J context documents -> T vectors each, mean-pooled, through a small network
    stage two   M2: [context | soft prompt | text] -> the mean of the text's states, through a head where there is one

The one idea is where attention may go. `one-way`, our default: context attends to context, text to context and text.
The context then never depends on a text: its keys and values per layer (`prefix.ContextCache`) are computed once per
corpus, in training once per batch, with gradients. `two-way`, the paper's: everyone attends to everyone, and every text
pays for the whole context. The null context is no prefix at all in one-way mode, that is exactly the model without
context; in two-way mode it is a learned embedding in every slot, still attended to. `none` is stage two alone, the
context-free twin. Beside attention, `lane` gives the model constants of its own for the lane (lane.py), to be trained.

Position-free: every slot of the context, and of the soft prompt, stands at position 0; text starts at position 0 as if
it were alone. For rotary models (NomicBERT, ModernBERT) position 0 is no rotation; for models with absolute positions
(BERT, RoBERTa, XLM-R) it adds the same vector to every slot, which stage one's last bias can take back. The local
windows of ModernBERT hold among text tokens only. So permuting the context changes nothing. `published` is the other
layout, for checkpoints of others (published.py): what their code does to embeddings and positions is done here too.

>>> config = ContextualConfig(first_layers=1, soft_tokens=2)
>>> ContextualConfig.from_dict(config.to_dict()) == config
True
>>> model = TwoStage.start(toy_backbone(), config).eval()
>>> ids, real = torch.tensor([[1, 5, 7, 2], [1, 9, 2, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
>>> vectors = model.embed_context(ids, real)        # once per corpus; here two documents
>>> cache = model.prepare(vectors)
>>> cache.slots, model(ids, real, cache).shape
(4, torch.Size([2, 8]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..errors import InputError, ModelError
from .backbone import FAMILIES, Backbone, uncounted
from .lane import Lane
from .linear import use_onednn
from .prefix import ContextCache, adopt, layers_of

ROTARY = ("nomic_bert", "modernbert")  # no table of positions that could be too short
Prefix = ContextCache | Tensor | None  # what texts are encoded behind: a cache (one-way), slots (two-way), nothing
CHOICES = {
    "attention": ("one-way", "two-way", "none"),
    "pooling": ("mean", "cls"),
    "head": ("none", "plain", "residual"),
}


@dataclass(frozen=True)
class ContextualConfig:
    """How two backbones become one contextual encoder; what is about attention to a context is idle without it.

    >>> ContextualConfig(documents=128, tokens_per_document=2).slots
    256

    `first_layers`: how many of its layers stage one keeps, None all; `share_tokens`: both stages use one token table.
    `tokens_per_document`: vectors per context document (T), one per segment of its text. `soft_tokens`: learned tokens
    between context and text. `sequence_dropout`: how often, in training, a slot is replaced by the null embedding (per
    text and slot in two-way mode; per slot in one-way mode, where all texts of a batch share one cache);
    `context_dropout`: how often a batch gets the null context. `null_embedding` is False where a checkpoint has none.
    `pool_context`: context and soft prompt are pooled too; `instruction_end`: the token id that closes an instruction
    (":"), which is then left out of pooling. `head`: what follows pooling, `plain` P(x) or `residual` x + P(x).
    `published`: embeddings and positions as in published code, where `documents` (C) context documents are expected and
    `position_free` says whether their slots go without positions; in our own layout they always do.
    """

    attention: Literal["one-way", "two-way", "none"] = "one-way"
    lane: bool = False
    first_layers: int | None = None
    share_tokens: bool = False
    tokens_per_document: int = 1
    soft_tokens: int = 0
    sequence_dropout: float = 0.005  # the paper's
    context_dropout: float = 0.05  # assumption
    null_embedding: bool = True
    pooling: Literal["mean", "cls"] = "mean"
    pool_context: bool = False
    instruction_end: int | None = None
    head: Literal["none", "plain", "residual"] = "none"
    published: bool = False
    position_free: bool = True
    documents: int | None = None

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(choices)}")
        for name in ("sequence_dropout", "context_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)!r}: expected a probability, 0 to 1")
        least = {"tokens_per_document": 1, "soft_tokens": 0, "first_layers": 1, "documents": 1}
        for name, number in least.items():
            if getattr(self, name) is not None and getattr(self, name) < number:
                raise InputError(f"{name} is {getattr(self, name)!r}: expected at least {number}")
        if self.attention == "none" and (self.soft_tokens or self.documents or self.head != "none"):
            raise InputError("soft_tokens, documents and head belong to attention to a context: leave them out")
        if self.sequence_dropout and not self.null_embedding:
            raise InputError("sequence_dropout needs a null embedding: set it to 0, or null_embedding to True")
        if self.published and (self.attention != "two-way" or self.documents is None):
            raise InputError(
                "the published layout is two-way and made for a number of documents: give both, or leave it"
            )
        if not self.published and not self.position_free:
            raise InputError(
                "context has positions in the published layout only: set published, or position_free to True"
            )
        if self.pool_context and (self.attention != "two-way" or self.pooling == "cls"):
            raise InputError(
                "pool_context needs two-way attention and mean pooling: elsewhere context says nothing of the text"
            )

    @property
    def slots(self) -> int | None:
        """How many context vectors are expected; None where any number is."""
        return None if self.documents is None else self.documents * self.tokens_per_document

    @property
    def order_matters(self) -> bool:
        """Whether another order of the context is another context: only where its slots have positions."""
        return not self.position_free

    def to_dict(self) -> dict[str, Any]:
        """Every field, as JSON knows it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ContextualConfig:
        """The inverse of `to_dict`; a field that is not known is refused with the nearest one that is.

        >>> ContextualConfig.from_dict({"soft_token": 8})
        Traceback (most recent call last):
        vicinal.errors.InputError: the contextual encoder has no field 'soft_token': did you mean 'soft_tokens'?
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
                raise InputError(f"the contextual encoder has no field {name!r}: {hint}")
        return cls(**given)


class TwoStage(nn.Module):
    """Two transformers models, which stay untouched, and what joins them; `config` says how.

    Without attention there is no `first` one, nor what joins them.
    """

    def __init__(self, first: Any | None, second: Any, config: ContextualConfig) -> None:
        super().__init__()
        self.config = config
        self.second = adopt(second)
        use_onednn(self.second)
        self._held: Backbone | None = None
        self.dim = dim = int(second.config.hidden_size)
        self.lane = Lane() if config.lane else None
        attends = config.attention != "none"
        self.first = self.to_context = None
        if first is not None and attends:
            self.first = _shallow(adopt(first), config.first_layers)
            use_onednn(self.first)
            if config.share_tokens:
                _share(self.first, self.second)
            inner = int(first.config.hidden_size)
            self.to_context = nn.Sequential(nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, dim))
        elif attends:
            raise InputError(f"{config.attention} attention to a context needs a first stage: give one")
        self.null = nn.Parameter(torch.randn(dim) * 0.02) if config.null_embedding and attends else None
        self.soft = _network(dim, config.soft_tokens * dim) if config.soft_tokens else None
        self.head = _network(dim, dim) if config.head != "none" else None
        if self.head is not None and config.head == "residual":
            for weight in self.head[2].parameters():  # step 0 is the backbone itself
                nn.init.zeros_(weight)

    @classmethod
    def start(cls, backbone: Any, config: ContextualConfig, weights: Mapping[str, Tensor] | None = None) -> TwoStage:
        """The stages, of one geometry, a transformers configuration; from `weights`, else random ones."""
        import transformers

        models = []
        for _ in range(1 if config.attention == "none" else 2):
            no_pooler = {"add_pooling_layer": False} if backbone.model_type != "modernbert" else {}
            model = getattr(transformers, FAMILIES[backbone.model_type])(deepcopy(backbone), **no_pooler)
            if weights is not None and (missing := model.load_state_dict(dict(weights), strict=False).missing_keys):
                raise ModelError(
                    f"{len(missing)} weights are missing, the first is {missing[0]}: give a whole backbone's"
                )
            models.append(model)
        return cls(models[0] if len(models) > 1 else None, models[-1], config)

    # -- stage one ---------------------------------------------------------------------------------------------------

    def embed_context(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Context documents, padded, to their vectors: (documents, tokens) -> (documents, tokens_per_document, dim)."""
        parts = self.config.tokens_per_document
        pooled = segment_means(self.first_states(ids, mask), mask, parts, of_padded=self.config.published)
        assert self.to_context is not None  # as `first_states` has seen to
        out: Tensor = self.to_context(_like(pooled, self.to_context))
        return out

    def first_states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Stage one's last states, (documents, tokens, dim)."""
        if self.first is None:
            raise InputError("this encoder attends to no context: it has no first stage to embed one")
        counts = self.config.published and self.config.tokens_per_document > 1
        states: Tensor = self.first(input_ids=ids, attention_mask=mask, padding_counts=counts).last_hidden_state
        return states

    # -- between the stages ------------------------------------------------------------------------------------------

    def prepare(self, vectors: Tensor | None, *, surplus: Literal["refuse", "drop"] = "refuse") -> Prefix:
        """Context vectors -> what texts are encoded behind, once per corpus or batch; None is the null context.

        Where a model is made for a number of documents, fewer are an error, and more are too unless `surplus="drop"`
        asks for the first of them. In training the dropouts that a whole batch shares are drawn here.
        """
        if self.config.attention == "none":
            return None
        slots = None if vectors is None or not vectors.numel() else self._checked(vectors, surplus)
        if slots is not None and self.training and _drawn(self.config.context_dropout):
            slots = None if self.config.attention == "one-way" else self._null_slots(len(slots))
        if self.config.attention == "two-way":
            return self._null_slots(self.config.slots) if slots is None else slots
        if slots is None:
            return None
        return self._cache(torch.cat([self._with_nulls(slots[None]), *self._soft(1)], dim=1))

    def _checked(self, vectors: Tensor, surplus: str) -> Tensor:
        slots = vectors.reshape(-1, vectors.shape[-1])
        expected = self.config.slots
        if slots.shape[1] != self.dim:
            raise InputError(f"context vectors have {slots.shape[1]} dimensions, this encoder's have {self.dim}")
        if expected is None or len(slots) == expected or (len(slots) > expected and surplus == "drop"):
            return slots[:expected]
        more = " or ask for the first ones, surplus='drop'" if len(slots) > expected else ""
        raise InputError(
            f"{len(slots)} context vectors were given, this encoder is made for {expected} ({self.config.documents} "
            f"documents x {self.config.tokens_per_document}): choose as many documents{more}"
        )

    def _null_slots(self, slots: int | None) -> Tensor:
        if self.null is None:
            raise InputError(
                "this checkpoint has no null embedding, so it cannot be asked without context: give it one"
            )
        if slots is None:
            raise InputError(
                "the null context of two-way attention has as many slots as the context: use null_slots(n)"
            )
        return self.null.expand(slots, -1)

    def null_slots(self, slots: int) -> Prefix:
        """The null context in the place of `slots` context vectors: nothing in one-way mode."""
        return self._null_slots(slots) if self.config.attention == "two-way" else None

    def _with_nulls(self, slots: Tensor) -> Tensor:
        """Sequence dropout: each slot of (texts, slots, dim) for itself."""
        if not (self.training and self.config.sequence_dropout) or self.null is None:
            return slots
        dropped = torch.rand(slots.shape[:2], device=slots.device) < self.config.sequence_dropout
        return torch.where(dropped[..., None], self.null.to(slots.dtype), slots)

    def _soft(self, texts: int) -> list[Tensor]:
        """The soft prompt for each text, (texts, soft_tokens, dim), or nothing to join."""
        if self.soft is None:
            return []
        prompt = self.soft(torch.ones(self.dim, device=self.second.device, dtype=self.second.dtype))
        return [prompt.view(1, -1, self.dim).expand(texts, -1, -1)]

    def _cache(self, joined: Tensor) -> ContextCache:
        """Let the context run through stage two alone, (1, slots, dim), and keep each layer's keys and values."""
        recorded: list[tuple[Tensor, Tensor]] = []
        places = torch.full(joined.shape[:2], uncounted(self.second.config) + 1, device=joined.device)
        self.second(
            inputs_embeds=joined.to(self.second.dtype), position_ids=places, record=recorded, joined=joined.shape[1]
        )
        return ContextCache.of(recorded)

    # -- stage two ---------------------------------------------------------------------------------------------------

    def forward(self, ids: Tensor, mask: Tensor, prefix: Prefix) -> Tensor:
        """Texts, padded, behind what `prepare` gave: (texts, tokens) -> (texts, dim), not normalised."""
        states, real = self.states(ids, mask, prefix)
        if self.config.pooling == "cls":
            return self._headed(states[:, 0])
        if self.config.instruction_end is not None:
            text = real[:, -ids.shape[1] :].bool() & ~instructions(ids, self.config.instruction_end)
            real = torch.cat([real[:, : -ids.shape[1]], text.to(real.dtype)], dim=1)
        return self._headed(masked_mean(states, real))

    def encode(self, texts: Sequence[Sequence[int]], prefix: Prefix) -> Tensor:
        """Token ids of texts of any lengths -> (texts, dim); on a CPU, in one-way mode, without padding."""
        if self.config.attention == "two-way":
            ids, mask = padded(texts, self.second.device)
            return self.forward(ids, mask, prefix)
        if isinstance(prefix, Tensor):
            raise InputError("one-way attention takes what prepare() gave, not vectors")
        first, end = self.config.pooling == "cls", self.config.instruction_end
        backbone = self._backbone()
        states, lengths = backbone.states(texts, only_first=first and not self.training, context=prefix)
        parts = torch.split(states.to(_wide(states)), lengths)
        if first:
            return self._headed(torch.stack([part[0] for part in parts]))
        if end is not None:
            parts = tuple(part[_text_of(ids, end)] for part, ids in zip(parts, texts, strict=True))
        return self._headed(torch.stack([part.sum(dim=0) / max(1, len(part)) for part in parts]))

    def _backbone(self) -> Backbone:
        """Stage two, ready to run texts end to end."""
        held = self._held
        if held is None or held.model is not self.second or held.device != self.second.device:
            held = self._held = Backbone.around(self.second)
        return held

    def states(self, ids: Tensor, mask: Tensor, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """Stage two's last states and which of them are real: text's, and context's too where it is pooled."""
        if self.config.attention != "two-way":
            if isinstance(prefix, Tensor):
                raise InputError("one-way attention takes what prepare() gave, not vectors")
            output = self.second(input_ids=ids, attention_mask=mask, context=prefix)
            return output.last_hidden_state, mask
        if not isinstance(prefix, Tensor):
            raise InputError(
                "two-way attention needs slots: ask for the null context with null_slots(n), or prepare one"
            )
        slots = self._with_nulls(prefix.expand(len(ids), -1, -1))
        front = torch.cat([slots, *self._soft(len(ids))], dim=1)
        width = front.shape[1]
        embedded, places = self._joined(front.to(self.second.dtype), ids)
        real = pad(mask, (width, 0), value=1)
        free = 0 if self.config.published else width
        states = self.second(
            inputs_embeds=embedded, attention_mask=real, position_ids=places, joined=free
        ).last_hidden_state
        return (states, real) if self.config.pool_context else (states[:, width:], mask)

    def _joined(self, front: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """[context | soft prompt | text] as stage two's embeddings take it, and everyone's position."""
        width, length = front.shape[1], ids.shape[1]
        config, embeddings, skipped = self.second.config, self.second.embeddings, uncounted(self.second.config)
        if not self.config.published:
            text = self.second.get_input_embeddings()(ids)
            counted = (ids != skipped).long()
            start = torch.zeros(len(ids), width, dtype=torch.long, device=ids.device)
            places = torch.cat([start, (counted.cumsum(dim=1) - 1).where(counted.bool(), -1)], dim=1)
        else:
            places = torch.arange(width + length, device=ids.device)[None]
            if self.config.position_free:
                places[:, : self.config.slots] = 0
            if config.model_type == "nomic_bert":
                text = embeddings.word_embeddings(ids)  # type 0 is added to everyone below, but the context has none
                front = front - embeddings.token_type_embeddings.weight[0]
            else:
                text = embeddings(input_ids=ids)  # normalised here, and again below with the context
        needed = length if not self.config.published else width + length
        most = config.max_position_embeddings - (skipped + 1)
        if needed > most and config.model_type not in ROTARY:
            raise InputError(f"context and text take {needed} positions, the model has {most}: use fewer of them")
        return torch.cat([front, text], dim=1), places + (skipped + 1)

    def _headed(self, pooled: Tensor) -> Tensor:
        if self.head is None:
            return pooled
        out: Tensor = self.head(_like(pooled, self.head))
        return out + pooled if self.config.head == "residual" else out


def masked_mean(states: Tensor, real: Tensor) -> Tensor:
    """The mean of real states, (texts, tokens, dim) -> (texts, dim), summed in fp32 at least; of none it is zero."""
    weight = real.to(_wide(states))
    total = torch.einsum("tn,tnd->td", weight, states.to(weight.dtype))
    return total / weight.sum(dim=1, keepdim=True).clamp(min=1)


def segment_means(states: Tensor, mask: Tensor, parts: int, *, of_padded: bool = False) -> Tensor:
    """Means of `parts` equal segments of each text, (texts, tokens, dim) -> (texts, parts, dim).

    A segment without tokens takes the mean of the whole. Published checkpoints cut the padded sequence, padding to a
    multiple of `parts` first, and their whole is the padded one; ours (padding must not change vectors) cuts the text.

    >>> states, mask = torch.tensor([[[1.0], [3.0], [5.0], [9.0]]]), torch.tensor([[1, 1, 1, 0]])
    >>> segment_means(states, mask, 2).flatten().tolist()
    [2.0, 5.0]
    >>> segment_means(states, torch.tensor([[1, 1, 0, 0]]), 2, of_padded=True).flatten().tolist()
    [2.0, 4.5]
    """
    if parts == 1:
        return masked_mean(states, mask)[:, None]
    tokens = states.shape[1]
    length = torch.full_like(mask[:, :1], -(-tokens // parts) * parts) if of_padded else mask.sum(dim=1, keepdim=True)
    segment = torch.arange(tokens, device=mask.device)[None] * parts // length.clamp(min=1)  # (texts, tokens)
    member = (segment[..., None] == torch.arange(parts, device=mask.device)) & mask[..., None].bool()
    weight = member.to(_wide(states))  # (texts, tokens, parts)
    count = weight.sum(dim=1)[..., None]
    means = torch.einsum("tnp,tnd->tpd", weight, states.to(weight.dtype)) / count.clamp(min=1)
    whole = states.to(weight.dtype).sum(dim=1) / length if of_padded else masked_mean(states, mask)
    return torch.where(count > 0, means, whole[:, None])


def instructions(ids: Tensor, end: int) -> Tensor:
    """Where an instruction stands: up to the first token `end` after the first token, if there is one.

    >>> instructions(torch.tensor([[1, 5, 7, 3, 7], [7, 5, 3, 3, 3]]), end=7).int().tolist()
    [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    ends = ids == end
    ends[:, 0] = False
    return (ends.flip(1).cumsum(dim=1).flip(1) > 0) & (ends.cumsum(dim=1) - ends.int() == 0)


def padded(texts: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Token ids and mask, (texts, tokens) each.

    >>> [tensor.tolist() for tensor in padded([[1, 2], [3]])]
    [[[1, 2], [3, 0]], [[1, 1], [1, 0]]]
    """
    longest = max(map(len, texts))
    ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in texts], device=device)
    lengths = torch.tensor([len(ids) for ids in texts], device=device)
    return ids, (torch.arange(longest, device=device)[None] < lengths[:, None]).long()


def toy_backbone(family: str = "bert", **other: Any) -> Any:
    """A transformers configuration of a few thousand weights, for tests and examples."""
    from transformers import AutoConfig

    sizes = {
        "vocab_size": 40,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    return AutoConfig.for_model(family, max_position_embeddings=64, **{**sizes, **special, **other})


def _network(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, outer))


def _wide(states: Tensor) -> torch.dtype:
    """The precision to sum in: 32 bit at least."""
    return torch.promote_types(states.dtype, torch.float32)


def _like(states: Tensor, network: nn.Module) -> Tensor:
    return states.to(next(network.parameters()).dtype)


def _drawn(probability: float) -> bool:
    return probability > 0 and bool(torch.rand(()) < probability)


def _shallow(model: Any, layers: int | None) -> Any:
    """The model with its first layers only."""
    held = layers_of(model)
    if layers is None or layers == len(held):
        return model
    if layers > len(held):
        raise InputError(f"first_layers is {layers}, but the backbone has {len(held)}: choose 1 to {len(held)}")
    del held[layers:]
    model.config = deepcopy(model.config)  # which may be stage two's, too
    model.config.num_hidden_layers = layers
    if getattr(model.config, "layer_types", None):  # ModernBERT's, one for each layer
        model.config.layer_types = model.config.layer_types[:layers]
    return model


def _share(first: Any, second: Any) -> None:
    tables = [model.get_input_embeddings() for model in (first, second)]
    if tables[0].weight.shape != tables[1].weight.shape:
        raise InputError(
            f"the token tables are {' and '.join(str(tuple(t.weight.shape)) for t in tables)}: expected equal shapes"
        )
    first.set_input_embeddings(tables[1])


def _text_of(ids: Sequence[int], end: int) -> slice:
    """The tokens behind a text's instruction, as `instructions` has it."""
    return slice(ids.index(end, 1) + 1 if end in ids[1:] else 0, None)
