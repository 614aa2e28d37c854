"""Texts become token ids: as the tokenizer alone would read them, up to the limit, whatever the text holds."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.errors import InputError, ModelError, VicinalError
from vicinal.tokens import CHARACTERS_PER_TOKEN, Tokenizer

TINY = Path(__file__).parent.parent / "src" / "vicinal" / "weights" / "tiny"
FIRST, LAST = 1, 2  # the tiny tokenizer's [CLS] and [SEP]

STRANGE = {
    "empty": "",
    "spaces": " \t\n\r  ",
    "NUL": "be\0fore and after",
    "emoji": "😀 👩‍👩‍👧‍👦 🇩🇪",
    "right to left": "שלום עולם مرحبا بالعالم",
    "combining": "e\u0301\u0301\u0301 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "byte order mark": "\ufeffafter the mark",
    "not characters": "\ufffe \uffff \U0010ffff",
    "tokens by name": "[CLS] [SEP] [PAD] </s> <pad>",
    "one long word": "x" * 5_000,
    "no spaces": "不" * 3_000,
}


def whole(max_tokens: int) -> tokenizers.Tokenizer:
    """The same tokenizer, without any of what `Tokenizer` adds."""
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    backend.enable_truncation(max_tokens)
    return backend


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("prompt", ["", "query: "])
def test_strange_texts_are_read_as_the_tokenizer_alone_reads_them(name: str, prompt: str) -> None:
    tokens = Tokenizer.load(TINY, max_tokens=40, prompt=prompt).read([STRANGE[name]])
    expected = whole(40).encode(prompt + STRANGE[name])
    assert tokens.ids == [expected.ids]
    assert tokens.cut.tolist() == [bool(expected.overflowing)]
    assert tokens.ids[0][0] == FIRST
    assert tokens.ids[0][-1] == LAST


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), max_size=4), st.integers(3, 30))
def test_any_texts_are_read_as_the_tokenizer_alone_reads_them(texts: list[str], max_tokens: int) -> None:
    tokens = Tokenizer.load(TINY, max_tokens=max_tokens).read(texts)
    assert tokens.ids == [encoding.ids for encoding in whole(max_tokens).encode_batch(texts)]
    for text, ids, end, cut in zip(texts, tokens.ids, tokens.ends.tolist(), tokens.cut.tolist(), strict=True):
        assert len(ids) <= max_tokens
        assert 0 <= end <= len(text)
        assert cut or end == len(text)


@pytest.mark.parametrize("length", [12 * 20 - 1, 12 * 20, 12 * 20 + 1, 64 * 20, 64 * 20 + 1, 10_000])
@pytest.mark.parametrize("filling", ["a bc def ", "internationalisation", "    ", "word" + " " * 60])
def test_looking_at_the_beginning_alone_changes_no_token(length: int, filling: str) -> None:
    text = (filling * length)[:length]
    tokens = Tokenizer.load(TINY, max_tokens=20).read([text])
    expected = whole(20).encode(text)
    assert tokens.ids == [expected.ids]
    assert tokens.ends.tolist() == [max(end for _, end in expected.offsets) if expected.overflowing else length]


def test_a_text_that_fills_few_tokens_is_looked_at_further(tmp_path: Path) -> None:
    """BERT drops spaces: after the first look there is room left, and words come later."""
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, tokenizer["pre_tokenizer"]],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    reader = Tokenizer.load(tmp_path, max_tokens=10)
    near, far = CHARACTERS_PER_TOKEN[0] * 10, CHARACTERS_PER_TOKEN[1] * 10
    text = "the" + " " * near + "terms" + " " * far + "of the service"
    tokens = reader.read([text, "the terms"])
    assert tokens.ids[0] == tokens.ids[1]
    assert tokens.cut.tolist() == [True, False]
    assert tokens.ends.tolist() == [3 + near + 5, 9]


def test_a_line_of_ten_megabytes_costs_what_its_beginning_costs() -> None:
    class Counting(str):
        longest = 0

        def __add__(self, other: str) -> str:
            Counting.longest = max(Counting.longest, len(other))
            return str(self) + other

    reader = Tokenizer.load(TINY, max_tokens=20, prompt=Counting(""))
    tokens = reader.read(["the terms " * 1_000_000])
    assert (len(tokens.ids[0]), tokens.cut.tolist()) == (20, [True])
    assert Counting.longest == 12 * 20


def test_a_prompt_counts_as_tokens_and_not_as_characters() -> None:
    plain, prompted = Tokenizer.load(TINY, max_tokens=20), Tokenizer.load(TINY, max_tokens=20, prompt="the terms of ")
    texts = ["the service", "the service may change at any time " * 9]
    alone, behind = plain.read(texts), prompted.read(texts)
    assert behind.ids[0] == plain.read(["the terms of the service"]).ids[0]
    assert alone.ends[0] == behind.ends[0] == len(texts[0])
    assert behind.ends[1] < alone.ends[1]
    assert texts[1][: behind.ends[1]].startswith("the service may change")


def test_ends_say_where_a_cut_text_stops() -> None:
    tokens = Tokenizer.load(TINY, max_tokens=6).read(["the terms of the service may change"])
    assert "the terms of the service may change"[: tokens.ends[0]] == "the terms of the"


def test_lower_puts_texts_into_lower_case_before_all_else(tmp_path: Path) -> None:
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    cased, lowered = (Tokenizer.load(tmp_path, max_tokens=20, lower=lower) for lower in (False, True))
    assert lowered.read(["THE Terms"]).ids == cased.read(["the terms"]).ids != cased.read(["THE Terms"]).ids


def test_no_texts_give_no_tokens() -> None:
    tokens = Tokenizer.load(TINY, max_tokens=20).read([])
    assert (tokens.ids, tokens.ends.tolist(), tokens.cut.tolist()) == ([], [], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "text 1 is of type NoneType; expected str"),
        (7, "text 1 is of type int; expected str"),
        (b"bytes", "text 1 is of type bytes; expected str"),
        (["list"], "text 1 is of type list; expected str"),
        ("half \ud800", "text 1 has half of a surrogate pair at character 5"),
        ("\udfff", "text 1 has half of a surrogate pair at character 0"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(text: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Tokenizer.load(TINY, max_tokens=20).read(["a text", text])  # type: ignore[list-item]


@pytest.mark.parametrize("max_tokens", [-1, 0, 1, 2])
def test_a_limit_without_room_for_text_is_refused(max_tokens: int) -> None:
    with pytest.raises(InputError, match=f"a limit of {max_tokens} tokens leaves no room .* take 2; give at least 3"):
        Tokenizer.load(TINY, max_tokens=max_tokens)


def test_the_least_limit_leaves_room_for_one_token() -> None:
    assert len(Tokenizer.load(TINY, max_tokens=3).read(["the terms"]).ids[0]) == 3


def test_settings_for_padding_and_truncation_inside_the_file_are_not_used(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    backend.enable_padding(length=30)
    backend.enable_truncation(5, stride=2)
    backend.save(str(tmp_path / "tokenizer.json"))
    texts = ["the terms", "the terms of the service may change at any time"]
    assert Tokenizer.load(tmp_path, max_tokens=8).read(texts).ids == Tokenizer.load(TINY, max_tokens=8).read(texts).ids


def test_a_tokenizer_without_special_tokens_reads_an_empty_text_as_nothing(tmp_path: Path) -> None:
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    tokens = Tokenizer.load(tmp_path, max_tokens=1).read(["", "the terms"])
    assert [len(ids) for ids in tokens.ids] == [0, 1]


def test_a_word_that_no_token_can_stand_for_is_refused(tmp_path: Path) -> None:
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"] = {"type": "WordLevel", "vocab": {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ModelError, match="the model's tokenizer cannot read a text"):
        Tokenizer.load(tmp_path, max_tokens=8).read(["the terms"])


@pytest.mark.parametrize("place", ["post_processor", "model", "added_tokens", "pre_tokenizer", "normalizer"])
@pytest.mark.parametrize("value", [7, "x", {"type": "Unheard"}, [{}]])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, place: str, value: object) -> None:
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, place: value}), encoding="utf-8")
    with pytest.raises(VicinalError, match=r"tokenizer.json is damaged or not a tokenizer's file"):
        Tokenizer.load(tmp_path, max_tokens=8)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(
        ModelError, match=r"has no tokenizer.json; expected a fast tokenizer's file: load the tokenizer"
    ):
        Tokenizer.load(tmp_path, max_tokens=8)


def test_the_highest_id_counts_added_tokens(tmp_path: Path) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    assert Tokenizer.load(tmp_path, max_tokens=8).highest_id == 1023
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.add_tokens(["<added>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path, max_tokens=8).highest_id == 1024


def test_threads_share_a_tokenizer() -> None:
    reader = Tokenizer.load(TINY, max_tokens=20)
    texts = [f"clause {n} of the terms " * (n % 7) for n in range(200)]
    expected = reader.read(texts).ids
    found: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: found.append(reader.read(texts).ids)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8
