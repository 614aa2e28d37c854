"""The report on pairs: numbers worked by hand, and what becomes of them in words."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from vicinal.errors import CorpusError
from vicinal.pairs import Pair, Pairs, check, findings, report, store, texts_of

LEAK = "the old ship was found last week below the harbour"  # 10 words, 3 grams
PAIRS = [
    Pair("what is it", "a ship", domain="a"),
    Pair("what is it", "a ship", domain="a"),  # the same pair
    Pair("what is it", "an old ship", domain="a"),  # the same query, another document
    Pair("where was the ship", "an old ship", domain="a"),  # the same document, another query
    Pair("one two three four five six seven eight", f"I read that {LEAK}", ("no", "nor that"), (1, 0, 0), "b"),
    Pair(
        "What? Is it!", "a ship", ("a ship", "no"), (), "b"
    ),  # not the same word for word; a negative like its document
    Pair("é" * 40, " ".join(["word"] * 20), (), (2.5,), "b"),
]


def told(pairs: Iterable[Any] = PAIRS, *collections: list[str], **asked: Any) -> dict[str, Any]:
    return check(Pairs.read(pairs), {f"c{n}": texts for n, texts in enumerate(collections)}, **asked)


def test_every_pair_is_counted_in_its_domain_and_in_all() -> None:
    empty = [{"query": "", "document": "d", "domain": "a"}, {"query": "q", "document": "", "domain": "gone"}]
    found = told([*PAIRS, *empty])
    assert [(name, part["pairs"], part["empty"]) for name, part in found["domains"].items()] == [
        ("a", 4, 1),
        ("b", 3, 0),
    ]
    assert (found["all"]["pairs"], found["all"]["empty"]) == (7, 2)
    assert found["counts"]["empty"] == {"a": 1, "gone": 1}


def test_lengths_are_percentiles_of_characters_and_of_words() -> None:
    found = told([Pair("x" * n, "word " * n) for n in range(1, 21)])["all"]
    ranks = {"p5": 1, "p25": 5, "p50": 10, "p75": 15, "p95": 19, "max": 20}
    assert found["queries"] == {"characters": ranks, "words": dict.fromkeys(ranks, 1)}
    assert found["documents"] == {"characters": {rank: 5 * n for rank, n in ranks.items()}, "words": ranks}
    a, b = told()["domains"].values()
    assert a["queries"]["characters"] == {"p5": 10, "p25": 10, "p50": 10, "p75": 10, "p95": 18, "max": 18}
    assert (b["documents"]["words"]["max"], b["queries"]["characters"]["max"]) == (20, 40)


def test_duplicates_are_those_of_a_domain_and_in_all_those_across_domains() -> None:
    found = told([*PAIRS, Pair("what is it", "a ship", domain="c"), Pair("a new one", "a ship", domain="c")])
    keys = "pairs", "queries_with_several_documents", "documents_with_several_queries"
    duplicates = {name: part["duplicates"] for name, part in (found["domains"] | {"all": found["all"]}).items()}
    assert {name: tuple(counts[key] for key in keys) for name, counts in duplicates.items()} == {
        "a": (1, 1, 1),  # "what is it" has two documents, "an old ship" two queries
        "b": (0, 0, 0),
        "c": (0, 0, 1),
        "all": (2, 1, 2),
    }


def test_negatives_and_scores_are_counted_where_they_are_used() -> None:
    found = told()
    assert found["all"]["negatives"] == {"pairs": 2, "texts": 4, "pairs_with_own_document": 1}
    assert [part["scores"]["pairs"] for part in found["domains"].values()] == [0, 2]


def test_leaks_are_counted_by_side_by_domain_and_by_collection() -> None:
    found = told(PAIRS, [LEAK, "Where was the ship?"], ["six words are not here now"], ["an old", LEAK])
    clear = {"pairs": 0, "query": 0, "document": 0, "most": 0}
    by_query = {"pairs": 1, "query": 1, "document": 0, "most": 1}  # all of its only gram
    by_document = {"pairs": 1, "query": 0, "document": 1, "most": 1}  # 3 of the 6 grams of 13 words
    a, b = found["domains"].values()
    assert a["leaks"] == by_query | {"collections": {"c0": by_query, "c1": clear, "c2": clear}}
    assert b["leaks"] == by_document | {"collections": {"c0": by_document, "c1": clear, "c2": by_document}}
    both = {"pairs": 2, "query": 1, "document": 1, "most": 2}
    assert found["all"]["leaks"] == both | {"collections": {"c0": both, "c1": clear, "c2": by_document}}
    assert found["against"] == {
        "c0": {"texts": 2, "grams": 4},
        "c1": {"texts": 1, "grams": 1},
        "c2": {"texts": 2, "grams": 3},
    }
    longer = told([Pair("q", f"I read in a paper that {LEAK}")], [LEAK])["all"]["leaks"]
    assert (longer["pairs"], longer["most"]) == (1, 0), "3 grams of 9"


def test_a_pair_that_leaks_on_both_sides_is_one_pair() -> None:
    leaks = told([Pair(LEAK, LEAK)], [LEAK])["all"]["leaks"]
    assert (leaks["pairs"], leaks["query"], leaks["document"], leaks["most"]) == (1, 1, 1, 1)


def test_examples_are_those_that_share_most_with_their_place_and_words() -> None:
    pairs = [Pair("q", f"{n} words before it come before {LEAK} and the rest", domain="a") for n in range(8)]
    (kept, *others) = told([*pairs, Pair(LEAK, "d", domain="b")], [LEAK])["examples"]["c0"]
    assert kept == {
        "row": 8,
        "domain": "b",
        "side": "query",
        "grams": 3,
        "share": 1.0,
        "shared": "the old ship was found last week below",
        "text": LEAK,
    }
    assert [(found["row"], found["grams"]) for found in others] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert told([Pair(LEAK, "x" * 1000 + " " + LEAK)], [LEAK])["examples"]["c0"][1]["text"] == "x" * 160


def test_languages_are_shares_of_rows_and_of_all_by_the_size_of_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LANGUAGE_ROWS", 4)
    asked = []

    def language_of(text: str) -> str | None:
        asked.append(text)
        return {"q": "german", "f": "french"}.get(text[0])

    pairs = [Pair("qf"[n % 2], "d", domain="a") for n in range(30)] + [Pair("?", str(n), domain="b") for n in range(10)]
    found = told(pairs, language_of=language_of)
    a, b = found["domains"].values()
    assert len(asked) == 8 and asked[4:] == ["?\n0", "?\n2", "?\n5", "?\n7"], "evenly spaced"
    assert (a["languages"], b["languages"]) == ({"french": 0.5, "german": 0.5}, {"unknown": 1.0})
    assert found["all"]["languages"] == {"french": 0.375, "german": 0.375, "unknown": 0.25}
    assert told()["all"]["languages"] == {}


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = told(PAIRS, [LEAK, "what is it now"], ["where was the ship"])
    monkeypatch.setattr(report, "BLOCK_ROWS", 1)
    monkeypatch.setattr(store, "BATCH_CHARACTERS", 1)
    assert told(PAIRS, [LEAK, "what is it now"], ["where was the ship"]) == whole
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_findings_say_leaks_first_and_leave_out_what_is_not_there() -> None:
    said = findings(told(PAIRS, [LEAK], ["nothing of it at all"]))
    assert said[0] == (
        "leaks: 1 pair (14.29 %) share words with c0, 0 by the query and 1 by the document, "
        "of which 1 share half of a text or more: 1 in b"
    )
    assert said[1:4] == [
        "  row 4, document: the old ship was found last week below",
        "leaks: no pair shares words with c1",
        "(words: 8 in a row, or a whole text of 4 to 7)",
    ]
    assert said[4:] == [
        "duplicates: 1 pair (14.29 %) repeat another, word for word: 1 in a",
        "duplicates: queries with several documents: 1",
        "duplicates: documents with several queries: 2",
        "negatives: 1 pair with the pair's own document among them: 1 in b",
        "negatives: 2 pairs (28.57 %)",
        "scores: 2 pairs (28.57 %)",
    ]
    clean = findings(told([Pair("q", "d")]))
    assert clean[0].startswith("leaks: not looked for") and "duplicates" not in " ".join(clean)


def test_findings_name_the_worst_domains() -> None:
    pairs = [
        Pair(f"{n}", LEAK, domain=domain)
        for domain, count in zip("abcde", (1, 5, 2, 4, 3), strict=True)
        for n in range(count)
    ]
    assert findings(told(pairs, [LEAK]))[0].endswith(": 5 in b, 4 in d, 3 in e, and 2 domains more")
    across = [Pair("q", "d", domain="a"), Pair("q", "d", domain="b")]
    assert "repeat another, word for word: each in another domain" in " ".join(findings(told(across)))


def test_the_texts_of_a_collection_are_its_documents_and_all_its_queries(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "a title", "text": "and a text"}', encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "never judged"}', encoding="utf-8")
    assert list(texts_of(tmp_path)) == ["a title and a text", "never judged"]
    assert list(texts_of(tmp_path / "corpus.jsonl")) == ["a title and a text"]
    with pytest.raises(CorpusError, match="there is no"):
        texts_of(tmp_path / "gone")  # before anything is read


def test_memory_does_not_grow_with_the_texts() -> None:
    noise = random.Random(0)
    pairs = Pairs.read({"query": str(n), "document": f"{noise.getrandbits(10_000):x}"} for n in range(8_000))  # 20 MB
    tracemalloc.start()
    check(pairs, {"test": [LEAK]})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
