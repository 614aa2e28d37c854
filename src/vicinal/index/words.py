"""Text -> words -> terms: what BM25 counts.

A text is words; a word becomes a term by the stemmer of its language, and stop words become none. The one idea: one
function tells words apart in every script, without a dictionary, and what differs between languages is a name.

>>> term_of = term_by("english", stop_words("english"))
>>> [term_of(word) for word in words("The tenants are renting")]
['', 'tenant', '', 'rent']
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from itertools import chain

import Stemmer
from bm25s import stopwords

from ..errors import InputError

RULES = 1  # the version of `words` and `term_by`: an index is read by the rules that it was written by
SAMPLE_CHARACTERS = 2000  # of a text, from which its language is told

# Scripts that put no space between words, and Korean, whose words carry their particles: pairs of neighbouring
# characters find them without a dictionary. In order: Thai to Lao, Myanmar, Hangul, Khmer, marks of iteration, kana,
# Han.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents are parts of words, but not \w: Hebrew, Arabic and the scripts of India would fall to pieces.
# In order: accents of Latin, Greek and Cyrillic, Hebrew, Arabic, Syriac to Mandaic, more Arabic, India to Sinhala,
# Tibetan, Ethiopic, more accents.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u07fd"
    "\u0816-\u082d\u0859-\u085b\u0898-\u089f\u08ca-\u08e1\u08e3-\u08ff\u0900-\u0963\u0966-\u0dff"
    "\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e\u0f3f\u0f71-\u0f84\u0f86\u0f87\u0f8d-\u0fbc\u0fc6\u135d-\u135f"
    "\u1ab0-\u1aff\u1dc0-\u1dff\ufe20-\ufe2f"
)
_WORD = re.compile(f"[{_UNSPACED}]+|(?:[^\\W{_UNSPACED}]|[{_MARKS}]){{2,}}")
_ASCII_WORD = re.compile(r"\w{2,}", re.ASCII)

# Removed from texts and queries: bm25s' list of the language. English has the 33 words that Lucene removes.
_STOP_WORDS = {
    "danish": frozenset(stopwords.STOPWORDS_DANISH),
    "dutch": frozenset(stopwords.STOPWORDS_DUTCH),
    "english": frozenset(stopwords.STOPWORDS_EN),
    "french": frozenset(stopwords.STOPWORDS_FRENCH),
    "german": frozenset(stopwords.STOPWORDS_GERMAN),
    "italian": frozenset(stopwords.STOPWORDS_ITALIAN),
    "norwegian": frozenset(stopwords.STOPWORDS_NORWEGIAN),
    "portuguese": frozenset(stopwords.STOPWORDS_PORTUGUESE),
    "russian": frozenset(stopwords.STOPWORDS_RUSSIAN),
    "spanish": frozenset(stopwords.STOPWORDS_SPANISH),
    "swedish": frozenset(stopwords.STOPWORDS_SWEDISH),
    "turkish": frozenset(stopwords.STOPWORDS_TURKISH),
}
# What a language is told by: 33 words are too few beside the 100 to 300 of the others.
_TELLING_WORDS = _STOP_WORDS | {"english": frozenset(stopwords.STOPWORDS_EN_PLUS)}


def words(text: str) -> list[str]:
    """The words of a text, lower-cased: two characters or more, and pairs of neighbours where a script has no spaces.

    >>> words("The Müller-Lyer illusion, in 1889 by F. C. Müller: 東京都 is ｗｉｄｅ")
    ['the', 'müller', 'lyer', 'illusion', 'in', '1889', 'by', 'müller', '東京', '京都', 'is', 'wide']
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    found: list[str] = []
    # NFKC: one way to write an accent, a ligature, a full-width letter. Worth 9.6 nDCG@10 on court decisions whose
    # umlauts are written in two characters.
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).lower()):
        if _is_unspaced(word[0]):
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        else:
            found.append(word)
    return found


_is_unspaced = re.compile(f"[{_UNSPACED}]").match


def detect(texts: Iterable[str]) -> str:
    """The language of texts by the share of stop words among their words; "none" where no language stands out.

    >>> detect(["Der Mieter zahlt die Miete, und der Vermieter repariert das Dach."])
    'german'
    """
    counts = Counter(chain.from_iterable(words(text[:SAMPLE_CHARACTERS]) for text in texts))
    share = {name: sum(counts[word] for word in telling) for name, telling in _TELLING_WORDS.items()}
    best = max(share, key=share.__getitem__)
    total = counts.total()
    if share[best] >= 0.15 * total > 0:  # measured: prose 0.16 to 0.48; of any other language at most 0.14
        return best
    # Code, titles and texts whose stop words were taken out: plain letters are read as English, others as they stand.
    plain = sum(count for word, count in counts.items() if word.isascii())
    return "english" if plain >= 0.98 * total > 0 else "none"


def stop_words(language: str) -> list[str]:
    """The words that are no terms in a language; most languages have no list here."""
    return sorted(_STOP_WORDS.get(language, ()))


def term_by(language: str, left_out: Iterable[str]) -> Callable[[str], str]:
    """From a word to its term in a language ("none": the word itself); "" for a word that is left out.

    To be made anew for every use: a stemmer of PyStemmer must not be shared by threads.
    """
    no_terms = frozenset(left_out)
    stem: Callable[[str], str] = str if language == "none" else Stemmer.Stemmer(language).stemWord
    return lambda word: "" if word in no_terms else stem(word)


def stemmer_of(language: str) -> str:
    """Which stemmer makes terms in a language, for the record."""
    return "none" if language == "none" else f"PyStemmer {Stemmer.version()}"


def check_language(language: str) -> None:
    """Refuse a language that nothing here can stem."""
    known = ["auto", "none", *Stemmer.algorithms()]
    if language not in known:
        near = get_close_matches(str(language), known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
        raise InputError(f"'{language}' is not a language that words can be stemmed in: {hint}")
