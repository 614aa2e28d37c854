"""What pairs are like, and what may be wrong with them, before anything is trained on them.

`Pairs` and the texts of test collections enter; a report leaves, JSON per domain and of all: lengths, duplicates,
languages, negatives, and leaks, which are pairs that share words in a row with a test collection (overlap.py). The one
idea: pairs are read once, in blocks, and 32 bytes are kept of each (lengths and hashes), so that percentiles and
duplicates are exact.

>>> pairs = Pairs.read([{"query": "do cats purr", "document": "Cats purr when they are content."}] * 2)
>>> for sentence in findings(check(pairs, {"pets": ["When do cats purr?", "Cats purr when they are content"]})):
...     print(sentence)
leaks: 2 pairs (100.00 %) share words with pets, 0 by the query and 2 by the document, of which 2 share half of a text
or more: 2 in ''
  row 0, document: cats purr when they are content
(words: 8 in a row, or a whole text of 4 to 7)
duplicates: 1 pair (50.00 %) repeat another, word for word: 1 in ''
negatives: 0 pairs (0.00 %)
scores: 0 pairs (0.00 %)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..corpus import COMPRESSIONS, Corpus
from ..documents import plural
from ..progress import Progress, silent
from .overlap import GRAM_WORDS, SHORT_WORDS, Overlap, Shared, hash64, words_of
from .store import BLOCK_ROWS, Pair, Pairs

PERCENTILES = (5, 25, 50, 75, 95)
LANGUAGE_ROWS = 200  # of a domain, evenly spaced, whose language is told
EXAMPLES = 5  # of leaks, for each collection: those that share most
SNIPPET_CHARACTERS = 160
WORST = 3  # domains that a finding names

Side = Literal["query", "document"]
SIDES: tuple[Side, ...] = ("query", "document")
LEAKS = ("pairs", "query", "document", "most")  # pairs that share a gram; by which side; half of a side's grams or more
Example = tuple[float, int, int, Side]  # minus what share of a text's grams, minus how many, the row, where


def texts_of(collection: str | Path) -> Iterator[str]:
    """The texts of a test collection: of its documents, and of its queries.jsonl where it is a BEIR folder."""
    queries = (Path(collection) / f"queries.jsonl{ending}" for ending in ("", *COMPRESSIONS))
    # Not in a generator: what cannot be read is refused before hours of work.
    corpora = [Corpus.read(collection), *(Corpus.read(path) for path in queries if path.is_file())]
    return (document.content for corpus in corpora for document in corpus)


def check(
    pairs: Pairs,
    against: Mapping[str, Iterable[str]] | None = None,
    *,
    language_of: Callable[[str], str | None] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What pairs are like and what may be wrong with them, as JSON: per domain, and of all.

    `against` are the texts of test collections by name, which are looked for in the pairs (overlap.py); `language_of`
    tells the language of a text, or None. It takes 32 bytes a pair, beside the collections' grams.

    >>> pairs = Pairs.read([{"query": "do cats purr", "document": f"Cats purr. {n % 2}"} for n in range(3)])
    >>> report = check(pairs, {"test": ["cats purr"]})
    >>> report["all"]["duplicates"]
    {'pairs': 1, 'queries_with_several_documents': 1, 'documents_with_several_queries': 0}
    """
    known = Overlap.of(against or {}, progress)
    seen = {domain: _Seen(len(known.names)) for domain in pairs.domains}
    lengths = np.empty((4, len(pairs)), dtype=np.int32)  # characters and words of the query, then of the document
    hashes = np.empty((2, len(pairs)), dtype=np.uint64)
    examples: dict[str, list[Example]] = {name: [] for name in known.names}
    with progress("check", len(pairs)) as advance:
        for domain, rows in pairs.domains.items():
            for start in range(rows.start, rows.stop, BLOCK_ROWS):
                block = range(start, min(start + BLOCK_ROWS, rows.stop))
                taken = pairs.take(block)
                shared = []
                for number, side in enumerate(SIDES):
                    texts = [getattr(pair, side) for pair in taken]
                    words = [words_of(text) for text in texts]
                    lengths[2 * number, start : block.stop] = [len(text) for text in texts]
                    lengths[2 * number + 1, start : block.stop] = [len(found) for found in words]
                    hashes[number, start : block.stop] = [hash64(text) for text in texts]
                    shared.append(known.shared(words))
                    _note_examples(examples, shared[-1], start, side)
                seen[domain].add(taken, *shared)
                advance(len(block))
    told = {domain: _languages(pairs, rows, language_of) for domain, rows in pairs.domains.items()}
    parts = {
        domain: _part(rows, lengths, hashes, seen[domain], told[domain], pairs.counts.empty.get(domain, 0), known)
        for domain, rows in pairs.domains.items()
    }
    whole = range(len(pairs))
    languages = {name: 0.0 for shares in told.values() for name in shares}
    for domain, shares in told.items():
        for name, share in shares.items():
            languages[name] += share * len(pairs.domains[domain]) / len(pairs)
    everything = sum(seen.values(), _Seen(len(known.names)))
    empty = sum(pairs.counts.empty.values())
    return {
        "name": pairs.name,
        "fingerprint": pairs.fingerprint,
        "counts": pairs.counts.as_dict(),
        "all": _part(whole, lengths, hashes, everything, languages, empty, known),
        "domains": parts,
        "against": {name: {"texts": known.texts[name], "grams": known.sizes[name]} for name in known.names},
        "examples": {
            name: [_example(pairs, known, name, example) for example in kept] for name, kept in examples.items()
        },
    }


class _Seen:
    """What is counted of pairs while they pass."""

    def __init__(self, collections: int) -> None:
        self.with_negatives = self.negatives = self.negatives_equal = self.with_scores = 0
        self.leaks = np.zeros((len(LEAKS), collections + 1), dtype=np.int64)  # the last column: of any collection

    def add(self, pairs: Sequence[Pair], queries: Shared, documents: Shared) -> None:
        self.with_negatives += sum(bool(pair.negatives) for pair in pairs)
        self.negatives += sum(len(pair.negatives) for pair in pairs)
        self.negatives_equal += sum(pair.document in pair.negatives for pair in pairs)
        self.with_scores += sum(bool(pair.scores) for pair in pairs)
        by_query, by_document = queries.counts > 0, documents.counts > 0
        found = (by_query | by_document, by_query, by_document, queries.most | documents.most)  # as LEAKS names them
        self.leaks += np.stack([which.sum(axis=0) for which in found])

    def __add__(self, other: _Seen) -> _Seen:
        both = _Seen(0)
        for name, value in vars(self).items():
            setattr(both, name, value + getattr(other, name))
        return both


def _part(
    rows: range,
    lengths: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    seen: _Seen,
    languages: Mapping[str, float],
    empty: int,
    known: Overlap,
) -> dict[str, Any]:
    """The report on these rows."""
    inside = lengths[:, rows.start : rows.stop]
    by_share = sorted(languages.items(), key=lambda entry: (-entry[1], entry[0]))
    leaks = [dict(zip(LEAKS, column, strict=True)) for column in seen.leaks.T.tolist()]
    return {
        "pairs": len(rows),
        "empty": empty,
        "queries": {"characters": _percentiles(inside[0]), "words": _percentiles(inside[1])},
        "documents": {"characters": _percentiles(inside[2]), "words": _percentiles(inside[3])},
        "duplicates": _duplicates(hashes[:, rows.start : rows.stop]),
        "languages": {name: round(share, 4) for name, share in by_share},
        "negatives": {
            "pairs": seen.with_negatives,
            "texts": seen.negatives,
            "pairs_with_own_document": seen.negatives_equal,
        },
        "scores": {"pairs": seen.with_scores},
        "leaks": leaks[-1] | {"collections": dict(zip(known.names, leaks[:-1], strict=True))},
    }


def _percentiles(lengths: NDArray[np.int32]) -> dict[str, int]:
    """Lengths that are there: the least one that so many per cent do not exceed."""
    values = np.percentile(lengths, [*PERCENTILES, 100], method="inverted_cdf")
    return dict(zip([*(f"p{rank}" for rank in PERCENTILES), "max"], map(int, values), strict=True))


def _duplicates(hashes: NDArray[np.uint64]) -> dict[str, int]:
    ordered = hashes[:, np.lexsort(hashes)]
    is_first = np.ones(ordered.shape[1], dtype=np.bool_)
    is_first[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    queries, documents = (np.unique(side, return_counts=True)[1] for side in ordered[:, is_first])
    return {
        "pairs": int((~is_first).sum()),
        "queries_with_several_documents": int((queries > 1).sum()),
        "documents_with_several_queries": int((documents > 1).sum()),
    }


def _languages(pairs: Pairs, rows: range, language_of: Callable[[str], str | None] | None) -> dict[str, float]:
    """The share of each language among some rows of a domain; nothing where nobody tells languages."""
    if language_of is None:
        return {}
    count = min(LANGUAGE_ROWS, len(rows))
    some = [rows[number * len(rows) // count] for number in range(count)]
    told = Counter(language_of(f"{pair.query}\n{pair.document}") or "unknown" for pair in pairs.take(some))
    return {name: times / count for name, times in told.items()}


def _note_examples(examples: dict[str, list[Example]], shared: Shared, start: int, side: Side) -> None:
    """Keep those texts of which most is shared with each collection, the longer ones of equals, then the first."""
    for column, (name, kept) in enumerate(examples.items()):
        for row in np.flatnonzero(shared.counts[:, column]).tolist():
            count = int(shared.counts[row, column])
            kept.append((-count / int(shared.grams[row]), -count, start + row, side))
        examples[name] = sorted(kept)[:EXAMPLES]


def _example(pairs: Pairs, known: Overlap, name: str, example: Example) -> dict[str, Any]:
    share, grams, row, side = example
    (pair,) = pairs.take([row])
    text: str = getattr(pair, side)
    return {
        "row": row,
        "domain": pair.domain,
        "side": side,
        "grams": -grams,
        "share": round(-share, 4),
        "shared": known.first_shared(name, words_of(text)),
        "text": text[:SNIPPET_CHARACTERS],
    }


def findings(report: Mapping[str, Any]) -> list[str]:
    """What a person should know of a report of `check`, a sentence each, leaks first."""
    whole, domains = report["all"], report["domains"]

    def where(*keys: str) -> str:
        """The domains that have most of something."""
        counts = {name or ascii(name): reduce(getitem, keys, part) for name, part in domains.items()}
        worst = sorted(filter(counts.get, counts), key=lambda name: (-counts[name], name))
        more = f", and {plural(len(worst) - WORST, 'domain')} more" if len(worst) > WORST else ""
        return ", ".join(f"{counts[name]:,} in {name}" for name in worst[:WORST]) + more or "each in another domain"

    told = []
    for name, leaks in whole["leaks"]["collections"].items():
        if not leaks["pairs"]:
            told.append(f"leaks: no pair shares words with {name}")
            continue
        told.append(
            f"leaks: {_share(leaks['pairs'], whole['pairs'])} share words with {name}, {leaks['query']:,} by the query "
            f"and {leaks['document']:,} by the document, of which {leaks['most']:,} share half of a text or more: "
            + where("leaks", "collections", name, "pairs")
        )
        told += [f"  row {found['row']}, {found['side']}: {found['shared']}" for found in report["examples"][name][:1]]
    if report["against"]:
        told.append(f"(words: {GRAM_WORDS} in a row, or a whole text of {SHORT_WORDS} to {GRAM_WORDS - 1})")
    else:
        told.append("leaks: not looked for, because no test collection was given")
    duplicates, negatives = whole["duplicates"], whole["negatives"]
    if duplicates["pairs"]:
        there = where("duplicates", "pairs")
        told.append(f"duplicates: {_share(duplicates['pairs'], whole['pairs'])} repeat another, word for word: {there}")
    for what in ("queries_with_several_documents", "documents_with_several_queries"):
        if duplicates[what]:
            told.append(f"duplicates: {what.replace('_', ' ')}: {duplicates[what]:,}")
    if negatives["pairs_with_own_document"]:
        there = where("negatives", "pairs_with_own_document")
        own = plural(negatives["pairs_with_own_document"], "pair")
        told.append(f"negatives: {own} with the pair's own document among them: {there}")
    for what in ("negatives", "scores"):
        told.append(f"{what}: {_share(whole[what]['pairs'], whole['pairs'])}")
    if whole["languages"]:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in whole["languages"].items())
        told.append(f"languages, by up to {LANGUAGE_ROWS} rows of each domain: {shares}")
    return told


def _share(count: int, of: int) -> str:
    return f"{plural(count, 'pair')} ({100 * count / of:.2f} %)"
