"""BM25: equal to bm25s on the same tokens, whatever the language; the laws of engines are in test_engines.py."""

from __future__ import annotations

import itertools
import json
import tempfile
import unicodedata
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer
from bm25s import stopwords
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.errors import DamagedIndex, IndexRefused, InputError
from vicinal.index import lexical
from vicinal.index.lexical import BM25, K1, B, Pooled
from vicinal.index.words import check_language, detect, stop_words, term_by, words

WORDS = ["rent", "roof", "tenants", "the", "court's", "東京都", "café", "naïve", "x", "1889", "Straße"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=12)
TEXTS = st.lists(TEXT.map(" ".join), min_size=1, max_size=14)
LAW = [
    "The tenant pays the rent on the first day of every month.",
    "The landlord repairs the roof, the walls and the pipes.",
    "Rent that is not paid when due may end the lease; the tenant then leaves.",
    "",
    "Pipes, pipes, pipes and more pipes for every tenant and his tenants.",
]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def theirs(texts: list[str], language: str) -> tuple[bm25s.BM25, list[list[str]]]:
    """bm25s' own index of the same tokens."""
    term_of = term_by(language, stop_words(language))
    tokens = [[term for term in map(term_of, words(text)) if term] for text in texts]
    engine = bm25s.BM25(k1=K1, b=B, method="lucene")
    engine.index(tokens, show_progress=False)
    return engine, tokens


@settings(deadline=None, max_examples=40)
@given(TEXTS, st.sampled_from(["english", "german", "none"]))
def test_scores_are_those_of_bm25s_on_the_same_tokens(texts: list[str], language: str) -> None:
    texts = [*texts, "a lease"]  # bm25s cannot index no tokens at all
    engine, tokens = theirs(texts, language)
    with tempfile.TemporaryDirectory() as folder:
        ours = BM25.build(Path(folder), texts, language=language)
        for query, terms in zip(texts, tokens, strict=True):
            if terms:
                np.testing.assert_allclose(ours.scores([query])[0], engine.get_scores(terms), rtol=1e-5, atol=1e-6)
            else:
                assert not ours.scores([query]).any()


def test_bm25s_reads_the_files_and_scores_the_same_to_the_last_bit(tmp_path: Path) -> None:
    ours = BM25.build(tmp_path, LAW, language="english")
    engine = bm25s.BM25.load(tmp_path, mmap=True)
    for query in LAW[:3]:
        terms = [term for term in ours.terms(words(query)) if term]
        assert engine.get_scores(terms).tobytes() == ours.scores([query])[0].tobytes()


def test_what_is_opened_is_what_was_built(tmp_path: Path) -> None:
    built = BM25.build(tmp_path, LAW, language="auto")
    opened = BM25.open(tmp_path)
    assert opened.scores(LAW).tobytes() == built.scores(LAW).tobytes()
    assert opened.settings == built.settings and len(opened) == len(LAW) and opened.language == "english"
    assert opened.lengths.tolist() == [7, 5, 9, 0, 9]
    rows, frequencies = opened.postings("pipe")
    assert rows.tolist() == [1, 4] and frequencies.tolist() == [1, 4]


@pytest.mark.parametrize("chunk", [1, 3, 10, 1 << 21])
def test_how_many_words_are_sorted_together_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    BM25.build(tmp_path / "a", LAW)
    monkeypatch.setattr(lexical, "CHUNK_TOKENS", chunk)
    monkeypatch.setattr(lexical, "WORDS_REMEMBERED", chunk)
    BM25.build(tmp_path / "b", iter(LAW))
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_frequencies_take_as_few_bytes_as_the_largest_needs(tmp_path: Path) -> None:
    for most, kind in ((255, np.uint8), (256, np.uint16), (70_000, np.uint32)):
        folder = tmp_path / str(most)
        folder.mkdir()
        BM25.build(folder, ["rent " * most], language="none")
        opened = BM25.open(folder)
        assert opened.frequencies.dtype == kind and opened.postings("rent")[1].tolist() == [most]


def test_a_term_that_is_asked_twice_counts_twice(tmp_path: Path) -> None:
    engine = BM25.build(tmp_path, LAW)
    assert (engine.scores(["rent renting"]) == 2 * engine.scores(["rent"])).all()


def test_stop_words_and_words_that_nobody_wrote_find_nothing(tmp_path: Path) -> None:
    engine = BM25.build(tmp_path, LAW)
    for query in ("the", "zebra", "?!", "", "x"):
        assert not engine.scores([query]).any() and engine.top([query], 3).rows.tolist() == [[-1, -1, -1]]


@pytest.mark.parametrize("texts", [[""], ["?"], ["the"], []])
def test_texts_without_a_word_are_an_index_without_hits(tmp_path: Path, texts: list[str]) -> None:
    BM25.build(tmp_path, texts, language="english")
    assert BM25.open(tmp_path).scores(["rent"]).tolist() == [[0.0] * len(texts)]


@settings(deadline=None, max_examples=40)
@given(TEXTS, st.data())
def test_parts_scored_together_are_the_whole(texts: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=3)))
    dead = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1), max_size=len(texts) - 1)))
    bounds = [0, *cuts, len(texts)]
    parts = [texts[a:b] for a, b in itertools.pairwise(bounds)]
    live = [row for row in range(len(texts)) if row not in dead]
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(n) for n in range(len(parts) + 1)]
        for each in folders:
            each.mkdir()
        whole = BM25.build(folders[0], [texts[row] for row in live], language="english")
        engines = [BM25.build(f, part, language="english") for f, part in zip(folders[1:], parts, strict=True)]
        pooled = Pooled(engines, list(map(len, parts)), np.array(dead, dtype=np.int64))
        together, alone = pooled.scores(texts), whole.scores(texts)
    assert together[:, live].tobytes() == alone.tobytes()
    assert (together[:, dead] == -np.inf).all()


def test_a_part_without_words_has_rows_of_no_length(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    part = BM25.build(tmp_path / "a", LAW[:2], language="english")
    whole = BM25.build(tmp_path / "b", [*LAW[:2], "", ""], language="english")
    assert Pooled([part, None], [2, 2]).scores(["rent"]).tolist() == whole.scores(["rent"]).tolist()


def test_each_part_is_read_in_its_own_language(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    german = BM25.build(tmp_path / "a", ["Die Mieter zahlen"], language="german")
    english = BM25.build(tmp_path / "b", ["The tenants pay"], language="english")
    scores = Pooled([german, english], [1, 1]).scores(["mietern tenant"])
    assert (scores > 0).all()


# --- Damage.


FILES = ("data.csc.index", "indices.csc.index", "indptr.csc.index", "frequencies", "lengths")


@pytest.mark.parametrize("name", [*(f"{name}.npy" for name in FILES), "vocab.index.json", "lexical.json"])
def test_a_file_that_is_missing_empty_or_another_ones_is_damage(tmp_path: Path, name: str) -> None:
    BM25.build(tmp_path, LAW)
    whole = (tmp_path / name).read_bytes()
    other = (tmp_path / ("lengths.npy" if name != "lengths.npy" else "data.csc.index.npy")).read_bytes()
    for content in (b"", whole[: len(whole) // 2], other, b"[1, 2]", b"{}", b"[" * 100_000, b"\x80\x04K\x01."):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DamagedIndex):
            BM25.open(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DamagedIndex):
        BM25.open(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 4),
        ("rows", -1),
        ("rows", "5"),
        ("language", "klingon"),
        ("language", ["english"]),
        ("k1", None),
        ("b", -1),
        ("stop_words", "the"),
        ("stop_words", [5]),
    ],
)
def test_settings_that_were_changed_are_damage(tmp_path: Path, field: str, value: object) -> None:
    BM25.build(tmp_path, LAW)
    settings = json.loads((tmp_path / "lexical.json").read_bytes())
    (tmp_path / "lexical.json").write_text(json.dumps(settings | {field: value}))
    with pytest.raises(DamagedIndex):
        BM25.open(tmp_path)


def test_words_told_apart_by_other_rules_are_refused_and_not_damage(tmp_path: Path) -> None:
    BM25.build(tmp_path, LAW)
    settings = json.loads((tmp_path / "lexical.json").read_bytes())
    (tmp_path / "lexical.json").write_text(json.dumps(settings | {"rules": 2}))
    with pytest.raises(IndexRefused, match="rules 2, this version knows 1") as refusal:
        BM25.open(tmp_path)
    assert not isinstance(refusal.value, DamagedIndex)


@pytest.mark.parametrize("number", [99, -3, 1.5, "7", None, [1], 1 << 40])
def test_terms_that_lead_nowhere_are_damage_or_find_nothing(tmp_path: Path, number: object) -> None:
    BM25.build(tmp_path, LAW)
    terms = json.loads((tmp_path / "vocab.index.json").read_bytes())
    (tmp_path / "vocab.index.json").write_text(json.dumps(terms | {"rent": number}))
    opened = BM25.open(tmp_path)
    for look in (lambda: opened.scores(["rent"]), lambda: Pooled([opened], [len(LAW)]).scores(["rent"])):
        try:
            assert look().shape == (1, len(LAW))
        except DamagedIndex as error:
            assert "not there" in str(error)


# --- Words and languages.


@pytest.mark.parametrize(
    ("language", "texts", "found_by"),
    [
        ("english", ["the running horses of the parish"], "a horse ran"),
        ("german", ["die Häuser der Stadt und des Landes"], "das Haus"),
        ("french", ["les chevaux dans la ville et dans les champs"], "la ville"),
        ("spanish", ["los caballos de la ciudad y de los campos"], "el caballo"),
        ("russian", ["дома в городе и на улице"], "город"),
        ("dutch", ["de huizen van de stad en van het land"], "het huizen"),
        ("swedish", ["husen i staden och på landet är gamla"], "huset"),
        ("turkish", ["bu evler ve şehirler için çok güzel"], "evlerin"),
        ("finnish", ["talot kaupungissa"], "talon"),
        ("none", ["東京都庁"], "東京"),
    ],
)
def test_each_language_is_stemmed_by_its_own_stemmer(
    tmp_path: Path, language: str, texts: list[str], found_by: str
) -> None:
    engine = BM25.build(tmp_path, texts, language=language)
    assert engine.language == language and engine.scores([found_by])[0, 0] > 0


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The landlord may enter the house at any time, but the tenant must be told of it.", "english"),
        ("Der Mieter zahlt die Miete, und der Vermieter repariert das Dach.", "german"),
        ("Le locataire paie le loyer et le propriétaire répare le toit de la maison.", "french"),
        ("El inquilino paga el alquiler y el dueño repara el techo de la casa.", "spanish"),
        ("def f(x): return x + 1", "english"),
        ("東京都庁は新宿区にある", "none"),
        ("वह घर में है और यह बड़ा है", "none"),
        ("", "none"),
    ],
)
def test_a_language_is_told_by_its_stop_words(text: str, language: str) -> None:
    assert detect([text]) == language


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It's 3 o'clock, state-of-the-art: x_y A1", ["it", "clock", "state", "of", "the", "art", "x_y", "a1"]),
        ("MÜLLER Mu\u0308ller", ["müller", "müller"]),
        ("ﬁne ２０２４", ["fine", "2024"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("한국어", ["한국", "국어"]),
        ("本", ["本"]),
        ("ภาษา", ["ภา", "าษ", "ษา"]),
        ("abc東京def", ["abc", "東京", "def"]),
        ("a\x00b \ufeffcd 🙂 ", ["cd"]),
    ],
)
def test_words_are_told_apart_in_every_script(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_a_mark_never_breaks_a_word() -> None:
    marks = [chr(code) for code in range(0x300, 0x1000) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    broken = [mark for mark in marks if len(words(f"אב{mark}גד")) != 1 and not "\u0e01" <= mark <= "\u0eff"]
    assert len(marks) > 600 and not broken


@settings(deadline=None, max_examples=40)
@given(st.text(st.characters(max_codepoint=127)))
def test_plain_text_takes_a_short_cut_to_the_same_words(text: str) -> None:
    assert words(text) == words(text + " \u00e9")  # a single letter is no word, but takes the long way


def test_the_stop_words_are_bm25s() -> None:
    assert set(stop_words("english")) == set(stopwords.STOPWORDS_EN) and len(stop_words("english")) == 33
    assert set(stop_words("german")) == set(stopwords.STOPWORDS_GERMAN)
    assert stop_words("finnish") == stop_words("none") == []


def test_an_index_keeps_the_stop_words_that_it_was_built_with(tmp_path: Path) -> None:
    BM25.build(tmp_path, LAW, language="english")
    settings = json.loads((tmp_path / "lexical.json").read_bytes())
    assert settings["stop_words"] == sorted(stopwords.STOPWORDS_EN) and Stemmer.version() in settings["stemmer"]
    (tmp_path / "lexical.json").write_text(json.dumps(settings | {"stop_words": [*settings["stop_words"], "rent"]}))
    assert not BM25.open(tmp_path).scores(["rent"]).any()


def test_a_language_that_is_not_known_is_refused_with_the_nearest_one_named() -> None:
    for known in ("auto", "none", "english", "tamil"):
        check_language(known)
    with pytest.raises(InputError, match="did you mean 'english'"):
        check_language("englisch")
    with pytest.raises(InputError, match=r"known are auto, none, .*turkish"):
        check_language("xx")
