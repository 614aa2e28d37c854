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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .. import files
from ..errors import InputError, ModelError
from ..progress import Progress, silent
from ..tokens import Tokenizer
from ..vectors import Floats, checked_dim, final
from .backbone import Backbone, weight_files
from .folder import Recipe, Shipped, find, read_recipe, shipped
from .pooling import POOLINGS
from .projection import Projection

__all__ = ["Encoded", "Encoder", "Raw", "Shipped", "load", "shipped"]

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}  # cpu: measured, benchmarks/encoding.py; others: assumption
TEXTS_AT_ONCE = 4096  # tokenised and sorted together: enough to find neighbours of like length
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROLES = ("document", "query")


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
    """A model that is ready to encode; `settings` is everything that shapes its vectors, as JSON."""

    def __init__(
        self,
        name: str,
        source: str,
        tokenizers: Mapping[str, Tokenizer],  # one for each of ROLES
        backbone: Backbone,
        pooling: str,
        projections: Sequence[Projection],
        fingerprint: str,
        precision: str,
    ) -> None:
        self.name, self.source, self.fingerprint, self.precision = name, source, fingerprint, precision
        self.pooling, self.dim = pooling, backbone.dim
        self.max_document_tokens = tokenizers["document"].max_tokens
        self.max_query_tokens = tokenizers["query"].max_tokens
        self._tokenizers, self._backbone, self._projections = tokenizers, backbone, projections
        if (highest := tokenizers["query"].highest_id) >= backbone.vocabulary:
            raise ModelError(
                f"the tokenizer of {name} gives ids up to {highest}, but its weights {backbone.vocabulary} tokens: "
                "one of the two is another model's, so fetch it again"
            )
        for projection in projections:
            if projection.takes != self.dim:
                raise ModelError(f"{name} projects {projection.takes} dimensions, but has {self.dim}: fetch it again")
            self.dim = projection.width

    @property
    def device(self) -> str:
        return self._backbone.device.type

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "dim": self.dim,
            "pooling": self.pooling,
            "precision": self.precision,
            "max_document_tokens": self.max_document_tokens,
            "max_query_tokens": self.max_query_tokens,
        }

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
        texts = _listed(texts)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        ends = np.empty(len(texts), dtype=np.int64)
        cut = 0
        with progress(f"encoding {role}s", len(texts)) as advance:
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                tokens = self._tokenizers[role].read(texts[start : start + TEXTS_AT_ONCE])
                ends[start : start + len(tokens.ids)] = tokens.ends
                cut += int(tokens.cut.sum())
                for batch in batches([len(ids) for ids in tokens.ids], BATCH_TOKENS.get(self.device, 4096)):
                    vectors[start + batch] = self._vectors([tokens.ids[i] for i in batch])
                    advance(len(batch))
                advance(sum(not ids for ids in tokens.ids))
        return Raw(vectors, ends, cut)

    def _encode(self, texts: Iterable[str], role: str, dim: int | None, progress: Progress) -> Encoded:
        dim = checked_dim(dim, self.dim)
        return Encoded(final(torch.from_numpy(self.encode_raw(texts, role, progress).vectors), dim).numpy())

    def _vectors(self, texts: Sequence[Sequence[int]]) -> Floats:
        with torch.inference_mode():
            states, lengths = self._backbone.states(texts, only_first=self.pooling == "cls")
            pooled = POOLINGS[self.pooling](states, lengths)
            for projection in self._projections:
                pooled = projection(pooled)
            vectors: Floats = pooled.float().cpu().numpy()
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"{self.name} gives NaN or infinity in {self.precision}: try --precision fp32, or fetch the model again"
            )
        return vectors


def load(
    model: str | Path,
    *,
    precision: str = "auto",
    device: str = "auto",
    pooling: str | None = None,
    max_document_tokens: int | None = None,
    max_query_tokens: int | None = None,
) -> Encoder:
    """Load a model: a shipped name, a folder, or owner/name on the Hugging Face hub.

    >>> load("tiny", max_query_tokens=32).settings["max_query_tokens"]
    32

    `precision` is auto, fp32 or bf16; auto is bf16 where the device computes in it natively. `pooling` (cls, mean,
    lasttoken) overrides what the folder says. Token limits default to the model's own.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise InputError(f"there is no pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")
    place = find(model)
    recipe = read_recipe(place.folder).with_pooling(pooling)
    on = _device(device)
    chosen = _precision(precision, on)
    backbone = Backbone(recipe.backbone, device=on, dtype=PRECISIONS[chosen])
    asked = {"document": max_document_tokens, "query": max_query_tokens}
    limits = {role: _limit(role, asked[role], recipe.max_tokens[role], backbone.max_tokens) for role in ROLES}
    tokenizers = {
        role: Tokenizer.load(recipe.backbone, prompt=recipe.prompts[role], max_tokens=limit, lower=recipe.lower)
        for role, limit in limits.items()
    }
    projections = [Projection.load(part, on) for part in recipe.dense]
    fingerprint = _fingerprint(recipe)
    return Encoder(place.name, place.source, tokenizers, backbone, recipe.pooling, projections, fingerprint, chosen)


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
    except (RuntimeError, AssertionError, NotImplementedError) as error:
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
