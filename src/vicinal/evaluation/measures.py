"""Measures as values: judgments and rankings in, one number per measure and query out.

    nDCG @ k    what the first k hits gain, grade / log2(place + 1) each, over the most that k hits could gain
    MRR @ k     1 / place of the first relevant hit; 0 where it lies beyond k
    Recall @ k  the share of all relevant documents that stands among the first k
    MAP, MAP @ k  the mean over all relevant documents of the precision at their place; 0 for those not found (by k)
    P @ k       the share of the first k places that is relevant, empty places included

Relevant is a grade of 1 or more. Gains are linear in the grade, as trec_eval and BEIR have them (not 2^grade - 1). The
formulas are trec_eval's own, by ir-measures; what is done here is to hand it the order that we found: trec_eval sorts
by score in 32 bit and lets ids break ties, so it gets places as scores, and numbers as ids.

>>> score({"q": {"a": 2, "b": 1}}, {"q": ["b", "x", "a"]}, [nDCG @ 10, MRR @ 10, P @ 2])
{'nDCG@10': {'q': 0.760...}, 'MRR@10': {'q': 1.0}, 'P@2': {'q': 0.5}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import ir_measures

from ..errors import InputError

MAX_GRADE = 1_000_000  # trec_eval keeps a counter for every grade up to the highest: 2^31 would take 16 GB (measured)

_FORMULAS = {
    "nDCG": ir_measures.nDCG,
    "MRR": ir_measures.RR,
    "Recall": ir_measures.R,
    "MAP": ir_measures.AP,
    "P": ir_measures.P,
}
_NEED_CUTOFF = ("Recall", "P")
_WRITTEN = re.compile(r"(\w+)(?:@([1-9][0-9]{0,8}))?")


@dataclass(frozen=True)
class Measure:
    """A formula and how many hits it looks at, None for all of them.

    >>> str(nDCG @ 10), Measure.parse("nDCG@10") == nDCG @ 10
    ('nDCG@10', True)
    """

    name: str
    cutoff: int | None = None

    def __matmul__(self, cutoff: int) -> Measure:
        return replace(self, cutoff=cutoff)

    def __str__(self) -> str:
        return self.name if self.cutoff is None else f"{self.name}@{self.cutoff}"

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Read a measure as it is written, in small or capital letters; one that is not there is refused."""
        written = _WRITTEN.fullmatch(text.strip())
        spelt = {name.lower(): name for name in _FORMULAS}
        if written is None or written[1].lower() not in spelt:
            near = get_close_matches(text.split("@")[0].strip().lower(), spelt, n=1)
            hint = f"did you mean {spelt[near[0]]}? " if near else ""
            raise InputError(
                f"there is no measure {text!r}: {hint}expected {', '.join(_FORMULAS)}, with a cutoff as in nDCG@10"
            )
        return cls(spelt[written[1].lower()], int(written[2]) if written[2] else None)

    def formula(self) -> ir_measures.Measure:
        """The same measure as ir-measures has it."""
        if self.cutoff is None and self.name in _NEED_CUTOFF:
            raise InputError(f"{self.name} needs a number of hits to look at: write {self.name}@10, or another number")
        if self.cutoff is not None and self.cutoff < 1:
            raise InputError(f"{self} looks at no hits: expected a cutoff of 1 or more")
        formula: ir_measures.Measure = _FORMULAS[self.name]
        return formula if self.cutoff is None else formula @ self.cutoff


nDCG = Measure("nDCG")
MRR = Measure("MRR")
Recall = Measure("Recall")
MAP = Measure("MAP")
P = Measure("P")


def score(
    judgments: Mapping[str, Mapping[str, int]], run: Mapping[str, Sequence[str]], measures: Sequence[Measure]
) -> dict[str, dict[str, float]]:
    """The value of every measure for every judged query; a query without hits scores 0.

    >>> score({"q": {"a": 1}, "other": {"a": 1}}, {"q": ["b", "a"], "unjudged": ["a"]}, [MAP])
    {'MAP': {'q': 0.5, 'other': 0.0}}

    `run` has each query's documents, best first; one that stands there twice counts where it stands first.
    """
    formulas = {measure.formula(): str(measure) for measure in measures}
    queries = list(judgments)
    graded: dict[str, dict[str, int]] = {}
    ranked: dict[str, dict[str, float]] = {}
    for number, query in enumerate(queries):
        hits, grades = list(dict.fromkeys(run.get(query, ()))), judgments[query]
        # Ids become numbers: trec_eval reads them as C strings, and dies of half a surrogate pair.
        numbers = {id: str(place) for place, id in enumerate(dict.fromkeys([*hits, *grades]))}
        graded[str(number)] = {numbers[id]: _checked(grade, id, query) for id, grade in grades.items()}
        ranked[str(number)] = {numbers[id]: float(-place) for place, id in enumerate(hits)}  # exact up to 2^24 places
    values = {str(measure): dict.fromkeys(queries, 0.0) for measure in measures}
    for value in ir_measures.iter_calc(list(formulas), graded, ranked):
        values[formulas[value.measure]][queries[int(value.query_id)]] = float(value.value)
    return values


def _checked(grade: int, id: str, query: str) -> int:
    if grade > MAX_GRADE:
        raise InputError(f"document {id!r} has the grade {grade} for query {query!r}: expected at most {MAX_GRADE:,}")
    return max(grade, 0)
