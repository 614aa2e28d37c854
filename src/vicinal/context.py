"""A corpus -> its context: the few documents that an encoder is shown of it, and what was read off them.

Documents enter, and an `embed` callable that turns their texts into raw vectors; a `Context` leaves. The one idea:
which documents are drawn depends on their ids and the seed alone, so that the same corpus in another order, or a few
documents more, gives the same context, or nearly. What is frozen with it is the truth (documents, vectors); what an
encoder derives from that (statistics at some size, attention's caches) is derived anew wherever it is needed.

>>> from vicinal.documents import Document
>>> corpus = [Document(str(n), text=f"text {n}") for n in range(100)]
>>> def embed(texts):
...     return torch.tensor([[1.0, float(text.split()[1])] for text in texts])
>>> context = Context.of(corpus, embed, encoder="an encoder", size=8)
>>> len(context), context == Context.of(corpus[::-1], embed, encoder="an encoder", size=8)
(8, True)
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from . import files
from .corpus import Corpus
from .documents import Document
from .errors import InputError
from .vectors import unit

CHOICES = ("random", "medoids", "coverage", "density")
SIZE = 128
POOL = 2048  # documents that are embedded so that some can be chosen: k-means and greedy choice take seconds
MOST = 2**31 - 1  # of what is counted, and of seeds
FORMAT = 1
SUFFIX = ".safetensors"  # of a saved context

Embed = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True)
class Request:
    """How documents were asked for."""

    size: int = SIZE
    choice: str = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise InputError(f"there is no way {self.choice!r} to choose a context: take one of {', '.join(CHOICES)}")
        if not 1 <= self.size <= MOST:
            raise InputError(
                f"a context of {self.size} documents was asked for: expected 1 to {MOST:,}, or --context null"
            )
        if not 0 <= self.seed <= MOST:
            raise InputError(f"the seed {self.seed} was asked for: expected 0 to {MOST:,}")


@dataclass(frozen=True, eq=False)
class Context:
    """The context of one encoder: what was chosen, and the raw vectors of that under this encoder."""

    encoder: str  # the encoder's fingerprint
    request: Request
    ids: tuple[str, ...]
    texts: str  # the hash of the chosen documents' ids and texts
    vectors: Tensor  # (documents, dim), raw, 32 bit; (documents, 0) where an encoder attends to `stage` instead
    stage: Tensor | None = None  # stage one's vectors, (documents, vectors of each, dim), for an encoder that attends
    max_tokens: int | None = None  # of a document that were read
    made: Mapping[str, str] = field(default_factory=dict)  # by what: precision, device, version; not what went in

    @classmethod
    def of(
        cls,
        corpus: Iterable[Document],
        embed: Embed | None,
        *,
        encoder: str,
        size: int = SIZE,
        choice: str = "random",
        seed: int = 0,
        stage: Embed | None = None,
        within: Callable[[Tensor], Embed] | None = None,
        max_tokens: int | None = None,
        made: Mapping[str, str] | None = None,
    ) -> Context:
        """Choose documents of a corpus, and embed them; a corpus of fewer gives all that it has.

        `stage` gives stage one's vectors where an encoder attends to those. One that has a lane beside attention has
        raw vectors only once it is behind them: `within` then takes the place of `embed`.
        """
        request = Request(size, choice, seed)
        drawn = draw(corpus, size if choice == "random" else max(POOL, 2 * size), seed)
        vector_of: dict[str, Tensor] = {}
        if choice != "random" and len(drawn) > size:
            texts = [document.content for document in drawn]
            known = embed(texts) if embed else stage(texts).mean(dim=1) if stage else None
            if known is None:
                raise InputError(f"documents cannot be chosen by {choice} without vectors: give embed, or stage")
            chosen = choose(unit(known), size, choice)
            drawn = [drawn[i] for i in chosen]
            vector_of = {document.id: known[i] for document, i in zip(drawn, chosen, strict=True) if embed}
        drawn.sort(key=lambda document: document.id)  # a set: in which order it was found must not be seen in any sum
        contents = [document.content for document in drawn]
        shown = stage(contents).float() if drawn and stage else None
        embed = within(shown) if within and shown is not None else embed
        vectors = torch.zeros(len(drawn), 0)
        if vector_of:
            vectors = torch.stack([vector_of[document.id] for document in drawn]).float()
        elif drawn and embed:
            vectors = embed(contents).float()
        digest = hashlib.sha256()
        for document in drawn:
            digest.update(f"{len(document.id)} {len(document.content)} {document.id}{document.content}\n".encode())
        ids = tuple(document.id for document in drawn)
        return cls(encoder, request, ids, digest.hexdigest(), vectors, shown, max_tokens, made or {})

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what went in, never of what floating-point arithmetic made of it."""
        return files.fingerprint_of(self._record())

    def describe(self) -> dict[str, Any]:
        """What indexes and results keep of a context, as JSON."""
        told = {"fingerprint": self.fingerprint, "documents": len(self), **asdict(self.request)}
        return told | ({"made": dict(self.made)} if self.made else {})

    def save(self, path: str | Path) -> None:
        """Write the context as one .safetensors file."""
        tensors = {name: tensor.contiguous() for name, tensor in self._tensors().items()}
        record = self._record() | {name: _hash(tensor) for name, tensor in tensors.items()} | {"made": dict(self.made)}
        record["sha256"] = files.fingerprint_of(record)
        # Under one key: safetensors writes several in an order of its own, another each time.
        data = save(tensors, metadata={"context": files.canonical_json(record)})
        with files.writing(Path(path)) as partial:
            partial.write_bytes(data)

    @classmethod
    def load(cls, path: str | Path) -> Context:
        """Read what `save` wrote; a file that was changed is refused."""
        try:
            with safe_open(path, framework="pt") as opened:
                metadata, vectors = opened.metadata() or {}, opened.get_tensor("vectors")
                stage = opened.get_tensor("stage") if "stage" in opened.keys() else None  # noqa: SIM118
            record = json.loads(metadata["context"])
            intact = record.pop("sha256") == files.fingerprint_of(record)
            request = Request(**record["request"])
            context = cls(
                record["encoder"],
                request,
                tuple(record["ids"]),
                record["texts"],
                vectors,
                stage,
                record["max_tokens"],
                record["made"],
            )
            intact &= all(record.get(name) == _hash(tensor) for name, tensor in context._tensors().items())
            intact &= (len(vectors), vectors.ndim) == (len(context), 2) and (stage is None) == ("stage" not in record)
            intact &= stage is None or (len(stage), stage.ndim) == (len(context), 3)
            intact &= all(bool(tensor.isfinite().all()) for tensor in context._tensors().values())
        except FileNotFoundError:
            raise InputError(f"there is no file {path}: expected a context that was saved, or a corpus") from None
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} is not a saved context ({error}): save it again with context.save") from None
        if record.get("format") != FORMAT or not intact:
            raise InputError(f"{path} is not as it was saved, or of a newer format: make the context again")
        return context

    @cached_property
    def contents(self) -> str:
        """A hash of the tensors themselves, which no fingerprint has."""
        return files.fingerprint_of({name: _hash(tensor) for name, tensor in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors} | ({} if self.stage is None else {"stage": self.stage})

    def _record(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "encoder": self.encoder,
            "request": asdict(self.request),
            "ids": list(self.ids),
            "texts": self.texts,
            "max_tokens": self.max_tokens,
        }


def source_of(asked: str) -> Context | Corpus:
    """What a PATH stands for where a context is asked for: a saved one, or a corpus to choose one from."""
    return Context.load(asked) if asked.endswith(SUFFIX) else Corpus.read(asked)


def draw(corpus: Iterable[Document], size: int, seed: int = 0) -> list[Document]:
    """A random sample of the documents that are not empty, whatever order they come in.

    Each document has a place in line that its id and the seed decide, and the first `size` in line are drawn.

    >>> corpus = [Document(str(n), text="x") for n in range(1000)]
    >>> one, two = draw(corpus, 100), draw(corpus[:-1], 100)
    >>> len({d.id for d in one} - {d.id for d in two}) <= 1
    True
    """

    def line() -> Iterable[tuple[bytes, str, Document]]:
        for document in corpus:
            if document.content:
                place = hashlib.blake2b(f"{seed} {document.id}".encode(), digest_size=16).digest()
                yield place, document.id, document

    return [document for _, _, document in heapq.nsmallest(size, line(), key=lambda entry: entry[:2])]


def choose(vectors: Tensor, size: int, choice: str) -> list[int]:
    """Choose `size` of the rows of unit vectors: medoids, coverage or density.

    >>> rows = unit(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.05], [0.0, 1.0]]))
    >>> choose(rows, 2, "coverage"), choose(rows, 2, "density"), sorted(choose(rows, 2, "medoids"))
    ([1, 3], [1, 2], [2, 3])
    """
    return {"medoids": medoids, "coverage": coverage, "density": density}[choice](vectors, size)


def medoids(vectors: Tensor, size: int, steps: int = 20) -> list[int]:
    """The row nearest to each centre of spherical k-means.

    Better than random with 16 or 32 documents, and no better from 64 on (measured, docs/log.md, "Ways of choosing").
    """
    centres = vectors[coverage(vectors, size)]  # a start that needs no luck
    for _ in range(steps):
        nearest = (vectors @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, vectors)
        moved = torch.where(sums.norm(dim=1, keepdim=True) > 0, unit(sums), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    scores = vectors @ centres.T  # (rows, centres)
    chosen: list[int] = []
    for centre in range(size):
        scores[chosen, centre] = -torch.inf  # one row may be nearest to two centres
        chosen.append(int(scores[:, centre].argmax()))
    return chosen


def coverage(vectors: Tensor, size: int) -> list[int]:
    """Greedy facility location: each next row adds most to the sum of all rows' best similarities to a chosen one.

    Better than random with 16 or 32 documents, and no better from 64 on (measured, docs/log.md, "Ways of choosing").
    """
    similar = vectors @ vectors.T
    best = torch.full((len(vectors),), -1.0)
    chosen: list[int] = []
    for _ in range(size):
        gain = (similar - best[:, None]).clamp_(min=0).sum(dim=0)
        gain[chosen] = -torch.inf
        chosen.append(int(gain.argmax()))
        best = torch.maximum(best, similar[:, chosen[-1]])
    return chosen


def density(vectors: Tensor, size: int) -> list[int]:
    """Herding: each next row brings the mean of the chosen nearest to that of all, so that dense regions get more.

    No better than random at any size, as far as measured (docs/log.md, "Ways of choosing").
    """
    wanted, held = vectors @ vectors.mean(dim=0), torch.zeros(len(vectors))
    chosen: list[int] = []
    for count in range(size):
        worth = wanted - held / (count + 1)
        worth[chosen] = -torch.inf
        chosen.append(int(worth.argmax()))
        held += vectors @ vectors[chosen[-1]]
    return chosen


def _hash(vectors: Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(vectors.numpy()).tobytes()).hexdigest()
