"""Words in a row that two sets of texts share: how test data is found in training data.

Texts enter, and are known by the hashes of their grams; other texts are then asked how many grams they share with them.
The one idea: a gram is eight words in a row, lower-cased and in one way of writing (NFKC), which do not come together
twice by accident. A text of four to seven words is one gram as a whole, and a shorter one has none. A gram is kept as
a 64-bit number in a sorted array, so a collection of 100 MB takes about as much memory.

>>> known = Overlap.of({"a test": ["Does a cat purr?", "The tenant pays the rent on the first day of a month."]})
>>> asked = ["The Tenant PAYS (the rent) on the first day of May", "does a cat purr", "cat purr", "does a cat purr now"]
>>> known.shared([words_of(text) for text in asked]).counts[:, 0].tolist()
[3, 1, 0, 0]
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from ..progress import Progress, silent

GRAM_WORDS = 8
SHORT_WORDS = 4
BLOCK_TEXTS = 512
CACHED_WORDS = 1 << 18  # whose hashes are kept, some 40 MB
CACHED_CHARACTERS = 40  # of a word: what is longer is data, and does not come again

# Where a script puts no space between words, each character is one: Thai to Lao, Myanmar, Khmer, kana, Han.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
)
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word's bits are lost at any place of a gram

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def words_of(text: str) -> list[str]:
    """The words that grams are made of.

    >>> words_of("Ｗｉｄｅ or ﬁne, it's 東京")
    ['wide', 'or', 'fine', 'it', 's', '東', '京']
    """
    return _WORD.findall((text if text.isascii() else unicodedata.normalize("NFKC", text)).lower())


def hash64(text: str) -> int:
    """A text as a number of 64 bits, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _WordHashes(dict[str, int]):
    """Hashes of words, most of them computed once; forgotten when they are too many."""

    def __missing__(self, word: str) -> int:
        number = hash64(word)
        if len(word) <= CACHED_CHARACTERS:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = number
        return number


@dataclass(frozen=True, eq=False)
class Shared:
    """How many grams each of some texts has, and shares with each collection; the last column: with any of them."""

    counts: Integers  # (texts, collections + 1)
    grams: Integers  # (texts,)

    @property
    def most(self) -> NDArray[np.bool_]:
        """Which texts share at least half of their grams, (texts, collections + 1)."""
        return (self.counts > 0) & (2 * self.counts >= self.grams[:, None])


class Overlap:
    """The grams of some collections of texts; see `Overlap.of`."""

    def __init__(self, collections: Mapping[str, Hashes], texts: Mapping[str, int], hashes: _WordHashes) -> None:
        self.names = tuple(collections)
        self.texts = dict(texts)
        self._collections, self._hashes = list(collections.values()), hashes
        self._any = np.unique(np.concatenate(self._collections)) if collections else np.empty(0, dtype=np.uint64)

    @classmethod
    def of(cls, collections: Mapping[str, Iterable[str]], progress: Progress = silent) -> Overlap:
        """Read collections of texts, each once."""
        hashes, known, counts = _WordHashes(), dict[str, Hashes](), dict[str, int]()
        for name, texts in collections.items():
            found, counts[name] = [np.empty(0, dtype=np.uint64)], 0
            with progress(f"read {name}", None) as advance:
                left = iter(texts)
                while block := [words_of(text) for text in islice(left, BLOCK_TEXTS)]:
                    found.append(_grams(block, hashes)[0])
                    counts[name] += len(block)
                    advance(len(block))
            known[name] = np.unique(np.concatenate(found))
        return cls(known, counts, hashes)

    @property
    def sizes(self) -> dict[str, int]:
        """How many different grams each collection has."""
        return {name: len(grams) for name, grams in zip(self.names, self._collections, strict=True)}

    def shared(self, texts: Sequence[Sequence[str]]) -> Shared:
        """What texts, given as their words, share with the collections."""
        grams, owners = _grams(texts, self._hashes)
        met = _are_in(self._any, grams)
        hits, of = grams[met], owners[met]
        told = [np.bincount(of[_are_in(known, hits)], minlength=len(texts)) for known in self._collections]
        counts = np.stack([*told, np.bincount(of, minlength=len(texts))], axis=1)
        return Shared(counts, np.bincount(owners, minlength=len(texts)))

    def first_shared(self, name: str, words: Sequence[str]) -> str:
        """The first words of a text that it shares with a collection."""
        grams, _ = _grams([words], self._hashes)
        place = int(np.argmax(_are_in(self._collections[self.names.index(name)], grams)))
        return " ".join(words[place : place + GRAM_WORDS])


def _grams(texts: Sequence[Sequence[str]], hashes: _WordHashes) -> tuple[Hashes, Integers]:
    """The grams of texts, in order for each, and the text that each is of.

    A gram's number is sum_j h_j STEP^j modulo 2^64, of the hashes h_0, h_1, ... of its words.
    """
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    words = np.fromiter(map(hashes.__getitem__, chain.from_iterable(texts)), dtype=np.uint64, count=int(lengths.sum()))
    ends = np.cumsum(lengths)
    grams, owners = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.int64)]
    for size in range(SHORT_WORDS, GRAM_WORDS + 1):
        if size < GRAM_WORDS:
            of = np.flatnonzero(lengths == size)
            places = ends[of] - size
        else:
            inside = np.arange(len(words)) + size <= np.repeat(ends, lengths)
            of, places = np.repeat(np.arange(len(texts)), lengths)[inside], np.flatnonzero(inside)
        total, power = np.zeros(len(places), dtype=np.uint64), np.uint64(1)
        for word in range(size):
            total += words[places + word] * power
            with np.errstate(over="ignore"):  # of a scalar numpy says so, of an array it does not
                power *= _STEP
        grams.append(total)
        owners.append(of)
    return np.concatenate(grams), np.concatenate(owners)


def _are_in(known: Hashes, asked: Hashes) -> NDArray[np.bool_]:
    """Which numbers stand in a sorted array."""
    if not len(known):
        return np.zeros(len(asked), dtype=np.bool_)
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
    return found
