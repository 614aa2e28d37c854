"""What a context is worth on the choosing collections: `python benchmarks/choosing.py [NAME...] [--size N]...`.

Prints one JSON line per collection: nDCG@10 x 100 without context, and own minus null for every way of choosing and
every size, as the mean over `--seeds` draws and the lowest and the highest of them. Vectors are encoded once, and kept
on disk as `vicinal evaluate` keeps them.

The collections are those that constants may be chosen on (docs/log.md), and no others. Three are judged search, and
read as they are. Ten are domains of training pairs, and are made into collections here: rows in the file's order,
strings compared exactly.

    documents   every distinct document, in the order in which they first appear
    queries     300 of the distinct queries, drawn by numpy.random.default_rng(0), without replacement
    judgments   every document that stands beside a query in any row answers it
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from pyarrow import parquet

import vicinal
from vicinal.context import CHOICES, SIZE
from vicinal.evaluation import MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS, NULL, Collection, Shown, evaluate, nDCG
from vicinal.pairs import KEPT_FOR_CHOOSING as DOMAINS

JUDGED = ("scitldr", "tatqa-test", "mediqa2019-qa")
QUERIES, SEED = 300, 0  # of a domain
MODEL = "granite-embedding-30m-english"
SHARED = Path(os.environ.get("VICINAL_TEST_DATA", Path(__file__).resolve().parents[2] / "shared")) / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(JUDGED + DOMAINS)}; all of them")
    parser.add_argument("--size", type=int, action="append", help=f"documents in a context, repeatable; {SIZE}")
    parser.add_argument("--choice", choices=CHOICES, action="append", help="how they are chosen, repeatable; random")
    parser.add_argument("--seeds", type=int, default=3, help="draws of every context; 3")
    parser.add_argument("--dim", type=int, help="leading dimensions to compare; all")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {*JUDGED, *DOMAINS}:
        parser.error(f"no choosing collection is called {', '.join(sorted(unknown))}")
    if not SHARED.is_dir():
        parser.error(f"there is no folder {SHARED}: set VICINAL_TEST_DATA (CONTRIBUTING.md)")
    encoder = vicinal.load(
        asked.model,
        precision=asked.precision,
        max_document_tokens=MAX_DOCUMENT_TOKENS,
        max_query_tokens=MAX_QUERY_TOKENS,
    )
    choices, sizes = asked.choice or ["random"], asked.size or [SIZE]
    contexts = [Shown("own", None, size, choice) for choice in choices for size in sizes]
    with tempfile.TemporaryDirectory() as scratch:
        for name in asked.names or [*JUDGED, *DOMAINS]:
            folder = SHARED / "collections" / name
            if name in DOMAINS:
                folder = write_domain(SHARED / "pairs" / f"{name}.parquet", Path(scratch) / name)
            print(json.dumps(measured(Collection.read(folder), encoder, contexts, asked.seeds, asked.dim)), flush=True)


def measured(
    collection: Collection, encoder: vicinal.Encoder, contexts: list[Shown], seeds: int, dim: int | None
) -> dict[str, object]:
    """Own minus null in every context, x 100."""
    result = evaluate(collection, encoder, contexts=[NULL, *contexts], seeds=seeds, dim=dim, measures=[nDCG @ 10])
    null, *owns = result.contexts.values()
    base = null.modes["dense"].measures["nDCG@10"]
    gains = []
    for context, own in zip(contexts, owns, strict=True):
        reached = own.modes["dense"]
        mean = reached.measures["nDCG@10"]
        low, high = (reached.spread or {}).get("nDCG@10", (mean, mean))
        told = {"gain": mean - base, "low": low - base, "high": high - base}
        shown = own.draws[0]
        gains.append(
            {"choice": context.choice, "size": context.size, "documents": shown["documents"] if shown else 0}
            | {what: round(100 * value, 2) for what, value in told.items()}
        )
    return {
        "benchmark": "choosing",
        "collection": collection.name,
        "documents": result.counts["documents"],
        "queries": result.counts["queries"],
        "null": round(100 * base, 2),
        "own_minus_null": gains,
        "seeds": seeds,
        "dim": dim or encoder.dim,
        "model": encoder.name,
        "precision": encoder.precision,
        "max_tokens": [encoder.max_document_tokens, encoder.max_query_tokens],
    }


def write_domain(pairs: Path, folder: Path) -> Path:
    """A domain of pairs as a BEIR folder."""
    documents: dict[str, int] = {}
    queries: dict[str, int] = {}
    answers: dict[int, set[int]] = {}
    for query, document in rows(pairs):
        number = queries.setdefault(query, len(queries))
        answers.setdefault(number, set()).add(documents.setdefault(document, len(documents)))
    drawn = sorted(np.random.default_rng(SEED).choice(len(queries), QUERIES, replace=False).tolist())
    texts = list(queries)
    judgments = [(q, d) for q in drawn for d in sorted(answers[q])]
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", (json.dumps({"_id": f"d{d}", "text": text}) for text, d in documents.items()))
    write_lines(folder / "queries.jsonl", (json.dumps({"_id": f"q{q}", "text": texts[q]}) for q in drawn))
    table = (f"q{q}\td{d}\t1" for q, d in judgments)
    write_lines(folder / "qrels" / "test.tsv", ("query-id\tcorpus-id\tscore", *table))
    return folder


def rows(pairs: Path) -> Iterator[tuple[str, str]]:
    table = parquet.read_table(pairs, columns=["query", "document"])
    yield from zip(table["query"].to_pylist(), table["document"].to_pylist(), strict=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
