"""What counts as words in a row that two texts share, and what does not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.pairs import overlap
from vicinal.pairs.overlap import GRAM_WORDS, SHORT_WORDS, Overlap, words_of

TEST = "A large wooden ship was found last week below the old harbour by two divers"
WORDS = words_of(TEST)


def grams(text: str) -> list[tuple[str, ...]]:
    """The rule, written out."""
    words = words_of(text)
    if len(words) < GRAM_WORDS:
        return [tuple(words)] if len(words) >= SHORT_WORDS else []
    return [tuple(words[i : i + GRAM_WORDS]) for i in range(len(words) - GRAM_WORDS + 1)]


def shared(known: Sequence[str], asked: Sequence[str]) -> list[int]:
    found = Overlap.of({"test": known}).shared([words_of(text) for text in asked])
    assert found.counts[:, 0].tolist() == found.counts[:, 1].tolist()
    return list(found.counts[:, 0])


@pytest.mark.parametrize(
    "text",
    [
        TEST,
        TEST.upper(),
        f"Before it. {TEST}. And after it.",
        "a  LARGE,\nwooden-ship (was) 'found' last week!",
        "ａ ｌａｒｇｅ wooden ship was found last week",  # full-width letters
        "Last week below the old harbour by two",
    ],
)
def test_a_planted_leak_is_found(text: str) -> None:
    assert shared([TEST], [text])[0] >= 1


@pytest.mark.parametrize(
    "text",
    [
        " ".join(WORDS[:7]),  # seven words in a row of a text that has more
        " ".join([*WORDS[:7], "not", *WORDS[8:15]]),  # seven, another word, seven
        " ".join(WORDS[::-1]),
        " ".join([*WORDS[1:8], WORDS[0]]),
        " ".join(sorted(WORDS)),
        "",
        "...",
    ],
)
def test_a_near_miss_is_not(text: str) -> None:
    assert shared([TEST], [text]) == [0]


def test_a_short_text_is_one_gram_as_a_whole_and_a_very_short_one_is_none() -> None:
    known = ["who pays the rent", "a b c d e f g", "pays the rent"]
    asked = [
        "Who pays the rent?",
        "who pays the rent now",
        "A B C D E F G",
        "a b c d e f",
        "pays the rent",
        "a b c d e f g h",
    ]
    assert shared(known, asked) == [1, 0, 1, 0, 0, 0]


def test_a_gram_never_runs_from_one_text_into_the_next() -> None:
    halves = [" ".join(WORDS[:7]), " ".join(WORDS[7:14])]
    assert shared([TEST], [" ".join(WORDS[:14])]) == [7]
    assert shared([TEST], halves) == [0, 0]
    assert shared(halves, [" ".join(WORDS[:14])]) == [0]


def test_a_script_without_spaces_is_read_by_characters() -> None:
    assert words_of("東京の hotel") == ["東", "京", "の", "hotel"]
    assert shared(["我们昨天在北京大学图书馆看书"], ["他说我们昨天在北京大学", "我们昨天在上海"]) == [2, 0]


def test_each_collection_is_told_apart_and_the_last_column_is_any_of_them() -> None:
    known = Overlap.of({"one": [TEST], "two": [" ".join(WORDS[:9])], "none": []})
    found = known.shared([words_of(TEST), words_of("nothing of it is here but words, eight of them")])
    assert found.counts.tolist() == [[8, 2, 0, 8], [0, 0, 0, 0]]
    assert found.grams.tolist() == [8, 3]
    assert found.most.tolist() == [[True, False, False, True], [False] * 4]
    assert (known.texts, known.sizes) == ({"one": 1, "two": 1, "none": 0}, {"one": 8, "two": 2, "none": 0})


def test_the_first_words_that_are_shared_are_told() -> None:
    known = Overlap.of({"other": ["nothing that is here at all, eight words"], "test": [TEST]})
    assert known.first_shared("test", words_of(f"so {TEST}")) == " ".join(WORDS[:8])
    assert (
        Overlap.of({"q": ["who pays the rent"]}).first_shared("q", words_of("Who pays the RENT")) == "who pays the rent"
    )


def test_no_collections_and_no_texts_share_nothing() -> None:
    assert Overlap.of({}).shared([WORDS]).counts.tolist() == [[0]]
    assert Overlap.of({"test": [TEST]}).shared([]).counts.shape == (0, 2)


SMALL = st.lists(st.sampled_from("abc"), max_size=14).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(SMALL, max_size=4), st.lists(SMALL, max_size=4))
def test_counts_are_those_of_the_rule_written_out(known: list[str], asked: list[str]) -> None:
    there = {gram for text in known for gram in grams(text)}
    assert shared(known, asked) == [sum(gram in there for gram in grams(text)) for text in asked]


def test_forgetting_words_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "CACHED_WORDS", 3)
    monkeypatch.setattr(overlap, "BLOCK_TEXTS", 1)
    assert shared([TEST, "who pays the rent"], ["who pays the rent", TEST]) == [1, 8]


def test_numbers_of_many_grams_do_not_meet() -> None:
    noise = random.Random(0)
    texts = [" ".join(noise.choices("abcd", k=200)) for _ in range(300)]
    written_out = {gram for text in texts for gram in grams(text)}
    assert Overlap.of({"test": texts}).sizes["test"] == len(written_out) > 30_000
    assert np.unique(np.array([overlap.hash64(str(n)) for n in range(1000)], dtype=np.uint64)).size == 1000
