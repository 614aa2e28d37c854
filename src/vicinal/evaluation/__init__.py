"""How good is it, and is the difference real: collections and rankings in, measures and their significance out.

    collections.py    a corpus with queries and judgments
    measures.py       nDCG @ 10 and its kin as values
    cache.py          raw vectors that were computed once
    run.py            evaluate: a collection and an encoder -> every measure of every query
    significance.py   compare: results -> differences, intervals, p values

>>> str(nDCG @ 10)
'nDCG@10'
"""

from __future__ import annotations

from .collections import Collection
from .measures import MAP, MRR, Measure, P, Recall, nDCG, score
from .run import MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS, MEASURES, NULL, OWN, ModeResult, Result, Shown, evaluate
from .significance import compare

__all__ = [
    "MAP",
    "MAX_DOCUMENT_TOKENS",
    "MAX_QUERY_TOKENS",
    "MEASURES",
    "MRR",
    "NULL",
    "OWN",
    "Collection",
    "Measure",
    "ModeResult",
    "P",
    "Recall",
    "Result",
    "Shown",
    "compare",
    "evaluate",
    "nDCG",
    "score",
]
