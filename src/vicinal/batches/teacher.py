"""A teacher whose scores depend on the corpus at hand: the batch itself.

Texts of one batch and vectors of any encoder enter, scores leave: cosines of vectors minus the mean of the batch's
documents, plus BM25 with the batch's own document frequencies, each standardised per query. The same pair has other
scores in another batch, so that a student which does not read its context cannot fit them.

>>> queries, documents = ["red cats", "dogs"], ["cats are red", "cats chase dogs", "red dogs"]
>>> vectors = torch.zeros(2, 1), torch.zeros(3, 1)  # which know nothing
>>> fused(queries, documents, *vectors, words=1.0).argmax(dim=1).tolist()
[0, 2]
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..index.words import detect, stop_words, term_by
from ..index.words import words as words_of
from ..vectors import unit

K1, B = 1.2, 0.75  # as the project's BM25 has them


def fused(
    queries: Sequence[str],
    documents: Sequence[str],
    query_vectors: Tensor,
    document_vectors: Tensor,
    words: float = 0.5,
) -> Tensor:
    """Scores of every query with every document, (queries, documents); `words` is the weight of BM25."""
    q, d = unit(query_vectors), unit(document_vectors)
    mean = d.mean(dim=0)
    dense = unit(q - mean) @ unit(d - mean).T  # (queries, documents)
    return standardised(dense) + words * standardised(bm25(queries, documents))


def standardised(scores: Tensor) -> Tensor:
    """Scores minus their mean over their deviation, per query; all alike become 0."""
    deviation = scores.std(dim=1, correction=0, keepdim=True)
    return (scores - scores.mean(dim=1, keepdim=True)) / torch.where(deviation > 1e-6, deviation, torch.inf)


def bm25(queries: Sequence[str], documents: Sequence[str]) -> Tensor:
    """Lucene's BM25 within these documents, (queries, documents).

    >>> bm25(["cats"], ["cats purr", "cats", "stars shine"]).argsort(descending=True).tolist()
    [[1, 0, 2]]
    """
    language = detect(documents)
    term_of = term_by(language, stop_words(language))
    counts = [Counter(term for word in words_of(text) if (term := term_of(word))) for text in documents]
    lengths = np.array([sum(count.values()) for count in counts], dtype=np.float32)
    norms = K1 * (1 - B + B * lengths / max(float(lengths.mean()), 1.0))
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for place, count in enumerate(counts):
        for term, times in count.items():
            postings[term].append((place, times))
    scores = np.zeros((len(queries), len(documents)), dtype=np.float32)
    weights: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for row, query in enumerate(queries):
        for term in [term_of(word) for word in words_of(query)]:
            if term in postings and term not in weights:
                places, times = np.array(postings[term], dtype=np.int64).T
                idf = np.log1p((len(documents) - len(places) + 0.5) / (len(places) + 0.5))
                weights[term] = places, (idf * times / (times + norms[places])).astype(np.float32)
            if term in weights:
                places, weight = weights[term]
                scores[row, places] += weight
    return torch.from_numpy(scores)
