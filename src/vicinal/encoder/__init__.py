"""Texts -> vectors.

A model's folder becomes an `Encoder` (`load`), texts and their role become raw vectors (`encode_raw`), or final
ones: truncated and normalised (`encode_documents`, `encode_queries`). The one idea: texts are sorted by length and
laid end to end in batches of about `BATCH_TOKENS` tokens, so that a batch costs the same whatever it holds, and a
text's vector does not depend on its neighbours.

>>> encoder = load("tiny")
>>> vectors = encoder.encode_documents(["cats purr", "stars shine"]).dense
>>> vectors.shape, float((vectors[0] ** 2).sum().round(3))
((2, 64), 1.0)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .. import __version__, files
from ..context import SIZE, Context, Embed, Request, source_of
from ..documents import Document
from ..errors import IndexRefused, InputError, ModelError
from ..progress import Progress, silent
from ..tokens import Tokenizer
from ..vectors import Floats, checked_dim, final, unit, vanished
from . import own, published
from .backbone import Backbone, weight_files
from .folder import Recipe, Shipped, find, read_json, read_recipe, shipped
from .pooling import POOLINGS
from .projection import Projection
from .reader import Attending, Plain, Reader

__all__ = ["Encoded", "Encoder", "Raw", "Shipped", "load", "shipped"]

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}  # cpu: measured, benchmarks/encoding.py; others: assumption
TEXTS_AT_ONCE = 4096  # tokenised and sorted together: enough to find neighbours of like length
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROLES = ("document", "query")
OVERFLOWS = ("truncate", "error")  # what becomes of a text that is longer than the limit


@dataclass(frozen=True)
class Raw:
    """Vectors as the model gives them, not truncated; `ends` says how many characters of each text were read."""

    vectors: Floats  # (texts, dim)
    ends: npt.NDArray[np.int64]  # (texts,)
    cut: int  # texts that were longer than the limit


@dataclass(frozen=True)
class Encoded:
    """Final representations of texts: `dense` vectors of length 1."""

    dense: Floats  # (texts, dim)


class Encoder:
    """A model that is ready to encode; `settings` is everything that shapes its raw vectors, as JSON.

    `with_context` gives the same model bound to a context, `bound`: its final vectors know the corpus, by attention
    where the model was trained with it (reader.py), else by the lane (lane.py). A model that attends to its context
    refuses to encode unbound; none is asked for by name, `without_context`.
    """

    bound: Context | None = None

    def __init__(
        self,
        name: str,
        source: str,
        tokenizers: Mapping[str, Tokenizer],  # one for each of ROLES
        reader: Reader,
        fingerprint: str,
        precision: str,
        overflow: str = "truncate",
    ) -> None:
        self.name, self.source, self.fingerprint, self.precision = name, source, fingerprint, precision
        self.max_document_tokens = tokenizers["document"].max_tokens
        self.max_query_tokens = tokenizers["query"].max_tokens
        self.overflow = overflow  # shapes no vector, so it is not among the settings
        self._tokenizers, self._reader = tokenizers, reader
        self.pooling, self.dim, self.attends = reader.pooling, reader.dim, reader.attends
        if (highest := tokenizers["query"].highest_id) >= reader.vocabulary:
            raise ModelError(
                f"the tokenizer of {name} gives ids up to {highest}, but its weights {reader.vocabulary} tokens: "
                "one of the two is another model's, so fetch it again"
            )
        self.lane = reader.lane
        self._correction = lru_cache(maxsize=8)(self._corrected_at)  # one per size, of a few hundred kilobytes each

    @property
    def device(self) -> str:
        kind: str = self._reader.device.type
        return kind

    @property
    def settings(self) -> dict[str, Any]:
        settings = {
            "name": self.name,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "dim": self.dim,
            "pooling": self.pooling,
            "precision": self.precision,
            "max_document_tokens": self.max_document_tokens,
            "max_query_tokens": self.max_query_tokens,
        }
        if self.lane is not None:
            settings["lane"] = self.lane.constants
        if isinstance(self._reader, Attending):
            config = self._reader.config
            settings["attention"] = config.attention
            settings["context_documents"] = config.documents  # None: any number
            settings["order_matters"] = config.order_matters
        return settings

    def tokenizer(self, role: str) -> Tokenizer:
        """What reads texts as `role`, with its prompt and up to its limit."""
        return self._tokenizers[role]

    @property
    def has_null(self) -> bool:
        """Whether the model can be asked without context."""
        return not isinstance(self._reader, Attending) or self._reader.has_null

    @property
    def cache_bytes(self) -> int:
        """The memory that attention to the bound context takes; derived for this device and precision, never saved."""
        return self._reader.cache_bytes

    def context(
        self,
        corpus: Iterable[Document],
        size: int | None = None,
        choice: str = "random",
        seed: int = 0,
        progress: Progress = silent,
        embed: Embed | None = None,
    ) -> Context:
        """Choose documents of a corpus as its context (context.py says how), and encode them, once.

        >>> encoder = load("tiny")
        >>> context = encoder.context([Document(str(n), text=f"cat {n}") for n in range(9)], size=4)
        >>> len(context), encoder.with_context(context).encode_queries(["a cat"]).dense.shape
        (4, (1, 64))

        `size` is 128 unless the model is made for another number. `embed` gives raw vectors of texts that are known
        already; a model that attends to its context has no use for them.
        """
        size = self._size(size)
        if isinstance(self._reader, Attending):
            request: dict[str, Any] = {"size": size, "choice": choice, "seed": seed, "stage": self._stage(progress)}
            if self.lane is not None:  # which reads vectors that know the context already
                request["within"] = lambda stage: self._bound_to(None, stage)._embedded(progress)
            made = Context.of(corpus, None, **request, **self._maker)
            expected = self._reader.config.documents
            if expected is not None and 0 < len(made) < expected:
                raise InputError(
                    f"{self.name} is made for contexts of {expected} documents, and the corpus has {len(made)} that "
                    "are not empty: show it another, larger corpus (--context CORPUS)"
                    + (", or none (--context null)" if self.has_null else "")
                )
            return made

        embed = embed or self._embedded(progress)
        return Context.of(corpus, embed, size=size, choice=choice, seed=seed, **self._maker)

    @property
    def _maker(self) -> dict[str, Any]:
        """What a context keeps of the encoder that made it."""
        made = {"precision": self.precision, "device": self.device, "vicinal": __version__, "torch": torch.__version__}
        return {"encoder": self.fingerprint, "max_tokens": self.max_document_tokens, "made": made}

    def _embedded(self, progress: Progress) -> Embed:
        """Documents' texts -> their raw vectors."""
        return lambda texts: torch.from_numpy(self.encode_raw(texts, "document", progress).vectors)

    def _size(self, asked: int | None) -> int:
        """How many documents a context is to have; another number than the model is made for is refused."""
        expected = self._reader.config.documents if isinstance(self._reader, Attending) else None
        if asked is not None and expected is not None and asked != expected:
            raise InputError(
                f"a context of {asked} documents was asked for, and {self.name} is made for {expected}: leave the size "
                "out, or ask for as many"
            )
        return asked if asked is not None else expected or SIZE

    def _stage(self, progress: Progress) -> Embed:
        """Texts -> the vectors of stage one, (texts, tokens_per_document, dim)."""

        def embed(texts: Sequence[str]) -> torch.Tensor:
            reader = self._reader
            assert isinstance(reader, Attending)
            ids = self._tokenizers["document"].read(texts).ids
            vectors = torch.zeros(len(ids), reader.config.tokens_per_document, self.dim)
            with progress("encoding context", len(ids)) as advance:
                for batch in batches([len(part) for part in ids], self._batch_tokens):
                    vectors[batch] = reader.embed([ids[i] for i in batch])
                    advance(len(batch))
                advance(sum(not part for part in ids))
            if not vectors.isfinite().all():
                raise self._not_finite()
            return vectors

        return embed

    def in_context(
        self,
        asked: str,
        corpus: Iterable[Document],
        size: int | None = None,
        choice: str = "random",
        seed: int = 0,
        progress: Progress = silent,
    ) -> Encoder:
        """The same model in the context that a word asks for: own (chosen from the corpus), null (none), or a PATH."""
        Request(SIZE if size is None else size, choice, seed)  # refused at the door, whatever the word
        source = corpus if asked == "own" else None if asked == "null" else source_of(asked)
        if size is not None and not isinstance(source, Iterable):
            raise InputError(f"--context-size {size} was asked for, but --context {asked} is what it is: leave one out")
        if source is None:
            return self.without_context()
        made = source if isinstance(source, Context) else self.context(source, size, choice, seed, progress)
        return self.with_context(made)

    def with_context(self, context: Context) -> Encoder:
        """The same model, bound to a context that it made; one of no documents is none."""
        if self.bound is not None and (self.bound, self.bound.contents) == (context, context.contents):
            return self  # with what it has derived from it
        if context.encoder != self.fingerprint:
            raise IndexRefused(
                f"the context was made by another encoder ({context.encoder[:12]}) than {self.name} "
                f"({self.fingerprint[:12]}): make it anew with encoder.context"
            )
        if len(context) and self.lane is not None and context.vectors.shape[1] != self.dim:
            raise InputError(
                f"the context's vectors have {context.vectors.shape[1]} dimensions, {self.name}'s {self.dim}: make it "
                "anew with encoder.context"
            )
        return self._bound_to(context if len(context) else None)

    def without_context(self) -> Encoder:
        """The same model, bound to no context; a published checkpoint without a null embedding refuses."""
        if not self.has_null:
            raise InputError(
                f"{self.name} has no null embedding, so it cannot be asked without context: give it one of "
                f"{self._size(None)} documents"
            )
        return self._bound_to(None)

    def _bound_to(self, context: Context | None, stage: torch.Tensor | None = None) -> Encoder:
        """Bound to a context; or, while one is made, behind what stage one says of it."""
        other = copy.copy(self)
        other.bound = context
        if isinstance(self._reader, Attending):
            if context is not None and context.stage is None:
                raise InputError(f"the context has no vectors that {self.name} attends to: make it with this encoder")
            other._reader = self._reader.behind(stage if context is None else context.stage)
        other._correction = lru_cache(maxsize=8)(other._corrected_at)
        return other

    def correction(self, dim: int | None = None) -> torch.Tensor | None:
        """The lane's map of the bound context for vectors of a size, (dim, dim).

        None where there is no context, and where attention is the only way to it that the model was trained with.
        """
        return self._correction(checked_dim(dim, self.dim))

    def _corrected_at(self, dim: int) -> torch.Tensor | None:
        if self.bound is None or self.lane is None:
            return None
        with torch.inference_mode():
            return self.lane.matrix(final(self.bound.vectors, dim))

    def encode_documents(self, texts: Iterable[str], dim: int | None = None, progress: Progress = silent) -> Encoded:
        """Encode documents, each `(title + " " + text).strip()`.

        >>> load("tiny").encode_documents(["cats purr"], dim=16).dense.shape
        (1, 16)
        """
        return self._encode(texts, "document", dim, progress)

    def encode_queries(self, texts: Iterable[str], dim: int | None = None, progress: Progress = silent) -> Encoded:
        """Encode queries."""
        return self._encode(texts, "query", dim, progress)

    def encode_raw(self, texts: Iterable[str], role: str, progress: Progress = silent) -> Raw:
        """Encode texts as `role`, "document" or "query"; what the model gives, not normalised.

        A text without any token, where a tokenizer adds none of its own, gives a vector of zeros.
        """
        if role not in ROLES:
            raise InputError(f"there is no role {role!r}: texts are encoded as {' or as '.join(ROLES)}")
        self.check_bound()
        texts = _listed(texts)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        ends = np.empty(len(texts), dtype=np.int64)
        cut = 0
        with progress(f"encoding {role}s", len(texts)) as advance:
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                tokens = self._tokenizers[role].read(texts[start : start + TEXTS_AT_ONCE])
                ends[start : start + len(tokens.ids)] = tokens.ends
                cut += int(tokens.cut.sum())
                if cut and self.overflow == "error":
                    raise self._too_long(start + int(tokens.cut.argmax()), texts, role)
                lengths = [len(ids) and len(ids) + self._reader.front for ids in tokens.ids]
                for batch in batches(lengths, self._batch_tokens):
                    vectors[start + batch] = self._vectors([tokens.ids[i] for i in batch])
                    advance(len(batch))
                advance(sum(not ids for ids in tokens.ids))
        return Raw(vectors, ends, cut)

    def _too_long(self, row: int, texts: Sequence[str], role: str) -> InputError:
        limit = self._tokenizers[role].max_tokens
        return InputError(
            f"text {row} ({texts[row][:40]!a}...) has more than the {limit} tokens that {self.name} is to read of a "
            f"{role}: shorten it, allow more (--max-{role}-tokens), or have its beginning read (--overflow truncate)"
        )

    def uncorrected(self, raw: Floats, dim: int | None = None) -> int:
        """Of how many raw vectors the bound context would leave next to nothing; they are kept as they are."""
        correction = self.correction(dim)
        if correction is None:
            return 0
        vectors = unit(torch.from_numpy(raw)[:, :dim])
        has_length = vectors.any(dim=1, keepdim=True)
        return int((vanished(vectors @ correction) & has_length).sum())

    def _encode(self, texts: Iterable[str], role: str, dim: int | None, progress: Progress) -> Encoded:
        correction = self.correction(dim)
        return Encoded(final(torch.from_numpy(self.encode_raw(texts, role, progress).vectors), dim, correction).numpy())

    def check_bound(self) -> None:
        """Refuse to encode by accident without the context that a model was trained with."""
        if isinstance(self._reader, Attending) and not self._reader.is_bound:
            raise InputError(
                f"{self.name} was trained with context: bind one, encoder.with_context(encoder.context(corpus)), or "
                "ask for none by name, encoder.without_context()"
            )

    @property
    def _batch_tokens(self) -> int:
        return BATCH_TOKENS.get(self.device, 4096)

    def _vectors(self, texts: Sequence[Sequence[int]]) -> Floats:
        with torch.inference_mode():
            vectors: Floats = self._reader(texts).float().cpu().numpy()
        if not np.isfinite(vectors).all():
            raise self._not_finite()
        return vectors

    def _not_finite(self) -> ModelError:
        return ModelError(
            f"{self.name} gives NaN or infinity in {self.precision}: try --precision fp32, or fetch the model again"
        )


def load(
    model: str | Path,
    *,
    precision: str = "auto",
    device: str = "auto",
    pooling: str | None = None,
    max_document_tokens: int | None = None,
    max_query_tokens: int | None = None,
    overflow: str = "truncate",
) -> Encoder:
    """Load a model: a shipped name, a folder, or owner/name on the Hugging Face hub.

    >>> load("tiny", max_query_tokens=32).settings["max_query_tokens"]
    32

    `precision` is auto, fp32 or bf16; auto is bf16 where the device computes in it natively. `pooling` (cls, mean,
    lasttoken) overrides what the folder says. Token limits default to the model's own; of a longer text the beginning
    is read (and counted), unless `overflow` is "error".
    """
    if overflow not in OVERFLOWS:
        raise InputError(f"there is no overflow {overflow!r}: texts that are too long {' or '.join(OVERFLOWS)}")
    if pooling is not None and pooling not in POOLINGS:
        raise InputError(f"there is no pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")
    place = find(model)
    on = _device(device)
    chosen = _precision(precision, on)
    try:
        recipe, reader = _read(place.folder, pooling, on, PRECISIONS[chosen])
    except ModelError:
        raise
    except InputError as error:
        raise ModelError(f"{place.name} cannot be used ({error}): fetch it again, or take another model") from None
    asked = {"document": max_document_tokens, "query": max_query_tokens}
    own_tokens = {role: min(recipe.max_tokens[role] or reader.own_tokens, reader.own_tokens) for role in ROLES}
    limits = {role: _limit(role, asked[role], own_tokens[role], reader.max_tokens) for role in ROLES}
    tokenizers = {
        role: Tokenizer.load(recipe.backbone, prompt=recipe.prompts[role], max_tokens=limit, lower=recipe.lower)
        for role, limit in limits.items()
    }
    return Encoder(place.name, place.source, tokenizers, reader, _fingerprint(recipe), chosen, overflow)


def _read(folder: Path, pooling: str | None, on: torch.device, dtype: torch.dtype) -> tuple[Recipe, Reader]:
    """The recipe and the reader of a folder: our own two-stage encoder's, a published one's, or a plain model's."""
    fields = read_json(folder / "config.json", dict, optional=True)
    if fields.get("model_type") == own.KIND:
        model, most = own.load(folder), None
    elif published.MARK in fields:
        model = published.load(folder, instruction_end=_colon(folder, fields))
        most = fields.get("max_seq_length")
        most = most if type(most) is int and most > 0 else None
    else:
        recipe = read_recipe(folder).with_pooling(pooling)
        backbone = Backbone(recipe.backbone, device=on, dtype=dtype)
        return recipe, Plain(backbone, recipe.pooling, [Projection.load(part, on) for part in recipe.dense])
    if pooling not in (None, model.config.pooling):
        raise ModelError(f"{folder} pools by {model.config.pooling}, as it was trained: leave the pooling out")
    recipe = read_recipe(folder, is_chained=False).with_pooling(model.config.pooling)
    lane, model.lane = model.lane, None  # which stays in 64 bit
    reader: Reader
    if model.config.attention == "none":
        reader = Plain(Backbone.around(model.second.to(on, dtype)), model.config.pooling, lane=lane)
    else:
        reader = Attending(model.to(on, dtype), most)
        reader.lane = lane
    return recipe, reader


def _colon(folder: Path, fields: Mapping[str, Any]) -> int | None:
    """The token that ends an instruction, where a published checkpoint leaves instructions out of pooling."""
    if not fields.get("pool_ignore_instruction_tokens"):
        return None
    ids: list[int] = Tokenizer.load(folder, max_tokens=1 << 20).backend.encode(": ", add_special_tokens=False).ids
    return ids[0] if ids else None


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[npt.NDArray[np.int64]]:
    """Positions sorted by length, longest first, cut where a batch holds `batch_tokens` tokens; none of length 0.

    >>> [batch.tolist() for batch in batches([3, 9, 0, 3, 5], batch_tokens=10)]
    [[1], [4, 0], [3]]
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")[: np.count_nonzero(lengths)]
    start, held = 0, 0
    for place, position in enumerate(order):
        if place > start and held + lengths[position] > batch_tokens:
            yield order[start:place]
            start, held = place, 0
        held += lengths[position]
    if start < len(order):
        yield order[start:]


def _device(asked: str) -> torch.device:
    if asked == "auto":
        best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device(best.type if best is not None else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(0, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"the device {asked!r} cannot be used here ({reason}): choose auto or cpu") from None
    return device


def _precision(asked: str, device: torch.device) -> str:
    if asked == "auto":
        return "bf16" if has_fast_bf16(device) else "fp32"
    if asked not in PRECISIONS:
        raise InputError(f"there is no precision {asked!r}: choose auto, {' or '.join(PRECISIONS)}")
    return asked


def has_fast_bf16(device: torch.device) -> bool:
    """Whether a device multiplies bf16 matrices natively.

    Others only emulate it, and are slower than in fp32. Among CPUs these are the ones with AVX512_BF16 (AMD from Zen 4,
    Intel from Cooper Lake) or AMX; ARM's bf16 instructions were not measured, so there it is asked for by name.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # Private in older torch, where the mapping is not yet there; absent means no.
    known = getattr(torch.cpu, "get_capabilities", dict[str, Any])()
    older = [getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(older) or any(known.get(name) for name in ("avx512_bf16", "amx_bf16"))


def _listed(texts: Iterable[str]) -> Sequence[str]:
    """Any iterable of texts, as what has a length and parts."""
    if isinstance(texts, str | bytes):
        raise InputError(f"one text was given ({texts[:40]!r}): expected a list of them, so put it into brackets")
    try:
        return texts if isinstance(texts, list | tuple) else list(texts)
    except TypeError:
        raise InputError(f"texts are of type {type(texts).__name__}; expected a list of str") from None


def _limit(role: str, asked: int | None, own: int | None, most: int) -> int:
    if asked is not None and asked > most:
        raise InputError(f"--max-{role}-tokens {asked} was asked for, but the model has {most} positions: choose less")
    if asked is not None and asked < 1:
        raise InputError(f"--max-{role}-tokens {asked} was asked for: expected 1 to {most}")
    return asked or min(own or most, most)


def _fingerprint(recipe: Recipe) -> str:
    """A hash of all that shapes a vector: weights, configuration and tokenizer as bytes, and what the recipe says."""
    parts = [recipe.backbone / "config.json", recipe.backbone / "tokenizer.json", *weight_files(recipe.backbone)]
    parts += [path for folder in recipe.dense for path in Projection.files(folder)]
    said = {"pooling": recipe.pooling, "prompts": dict(recipe.prompts), "lower": recipe.lower}
    return files.fingerprint_of({**said, "files": [files.sha256_of(path) for path in parts]})
