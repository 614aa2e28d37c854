"""How far a context moves vectors and rankings: against none, or against another one.

Two readings of one model enter, with some documents; out come how near the two vectors of a text are, and how much of
the ten best documents they have in common. A context that changes next to nothing is inert: it costs, and does not pay.

>>> from vicinal.encoder import load
>>> encoder = load("tiny")
>>> documents = [Document(str(n), text=f"{word} {n}") for n, word in enumerate(["cats", "dogs", "stars"] * 20)]
>>> reader = encoder.with_context(encoder.context(documents))
>>> found = effect(reader, documents=documents)
>>> found["documents"], found["top10"] < INERT
(60, True)
>>> effect(reader, reader, documents=documents)["top10"]
1.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..context import draw
from ..documents import Document
from ..progress import Progress, silent
from ..vectors import final
from . import Encoder

DOCUMENTS = 256
QUERY_WORDS = 16
DEPTH = 10
INERT = 0.98  # of the ten best in common; measured: docs/log.md, "When a context is inert"

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s*")


def effect(
    reader: Encoder, other: Encoder | None = None, *, documents: Iterable[Document], progress: Progress = silent
) -> dict[str, Any]:
    """Compare two readings of one model, `other` being the one without context unless it is given.

    `cosine` is the mean over documents and queries between a text's two vectors, `top10` the mean share of a
    pseudo-query's best documents that both readings find: the ten best, or the better half of fewer than twenty.
    """
    other = reader.without_context() if other is None else other
    drawn = draw(documents, DOCUMENTS)
    texts = {
        "document": [document.content for document in drawn],
        "query": [pseudo_query(document) for document in drawn],
    }

    def encoded(reading: Encoder) -> dict[str, torch.Tensor]:
        return {
            role: torch.from_numpy(reading.encode_raw(part, role, progress).vectors) for role, part in texts.items()
        }

    raw = encoded(reader)
    # Without attention, raw vectors do not depend on the context, so that one encoding serves both readings.
    both = ((reader, raw), (other, encoded(other) if reader.attends else raw))
    mine, theirs = (
        {role: final(part, None, reading.correction()) for role, part in known.items()} for reading, known in both
    )
    depth = depth_of(len(drawn))
    common = [len(set(a) & set(b)) / depth for a, b in zip(_best(mine, depth), _best(theirs, depth), strict=True)]
    cosines = torch.cat([(mine[role] * theirs[role]).sum(dim=1) for role in texts])
    return {
        "documents": len(drawn),
        "cosine": round(float(cosines.mean()), 4) if drawn else 1.0,
        "top10": round(sum(common) / len(common), 4) if common else 1.0,
    }


def depth_of(documents: int) -> int:
    """How many of so many documents are counted as the best: among ten, the ten best are always the same.

    >>> depth_of(256), depth_of(7), depth_of(1)
    (10, 4, 1)
    """
    return min(DEPTH, (documents + 1) // 2)


def pseudo_query(document: Document) -> str:
    """What somebody might ask who looks for a document: its title, or the beginning of its first sentence.

    >>> pseudo_query(Document("a", text="Cats purr. Dogs bark.")), pseudo_query(Document("b", "On bats", "They sleep."))
    ('Cats purr.', 'On bats')
    """
    first = document.title.strip() or _SENTENCE.split(document.content, maxsplit=1)[0]
    return " ".join(first.split()[:QUERY_WORDS])


def _best(vectors: Mapping[str, torch.Tensor], depth: int) -> list[list[int]]:
    found: list[list[int]] = (vectors["query"] @ vectors["document"].T).topk(depth, dim=1).indices.tolist()
    return found
