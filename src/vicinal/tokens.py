"""Text -> token ids, behind a prompt, up to a limit.

A list of texts enters; out come their token ids, how many characters of each text fitted, and which were cut. The one
idea: the limit is set once, when the tokenizer is loaded, so that reading changes no state and any number of threads
may share it; documents and queries, whose limits differ, have a `Tokenizer` each.

>>> from importlib.resources import files
>>> tokenizer = Tokenizer.load(Path(str(files("vicinal") / "weights" / "tiny")), max_tokens=6)
>>> tokens = tokenizer.read(["the terms", "the terms of the service may change at any time"])
>>> [len(ids) for ids in tokens.ids], tokens.cut.tolist(), tokens.ends.tolist()
([4, 6], [False, True], [9, 16])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from .errors import InputError, ModelError

# Of a text only this many characters per allowed token are looked at; the second number only where the first did not
# fill the limit. English has four to five characters to a token, so a long document costs what its beginning costs
# (measured: of 23,500 characters, a sixth of the time); the longest tokens of common vocabularies have fewer than 64.
CHARACTERS_PER_TOKEN = (12, 64)


@dataclass(frozen=True)
class Tokens:
    """What was read: `ids` with special tokens, `ends` (characters that fitted), `cut` (were there more)."""

    ids: list[list[int]]
    ends: np.ndarray  # int64 (texts,): len(text) where nothing was cut
    cut: np.ndarray  # bool (texts,)


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer with its prompt and its limit; `read` may be called from several threads."""

    backend: tokenizers.Tokenizer
    prompt: str
    max_tokens: int

    @classmethod
    def load(cls, folder: Path, *, prompt: str = "", max_tokens: int, lower: bool = False) -> Tokenizer:
        """Load the tokenizer of a model's folder.

        `max_tokens` counts everything: prompt, text and the special tokens around them. `lower` puts every text into
        lower case first, where the tokenizer itself does not.
        """
        backend = _backend(folder)
        if lower:
            own = [backend.normalizer] if backend.normalizer else []
            backend.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Lowercase(), *own])
        backend.no_padding()
        backend.no_truncation()
        least = len(_encoded(backend, [prompt])[0].ids) + 1
        if max_tokens < least:
            raise InputError(
                f"a limit of {max_tokens} tokens leaves no room for text: special tokens"
                f"{f' and the prompt {prompt!r}' if prompt else ''} take {least - 1}; give at least {least}"
            )
        backend.enable_truncation(max_tokens)
        return cls(backend, prompt, max_tokens)

    @property
    def highest_id(self) -> int:
        """The highest token id that reading may give."""
        return max(self.backend.get_vocab().values(), default=0)

    def read(self, texts: Sequence[str]) -> Tokens:
        """Turn texts into token ids, and say how much of each text was read."""
        _check(texts)
        ids: list[list[int]] = [[]] * len(texts)
        ends = np.fromiter((len(text) for text in texts), np.int64, len(texts))
        cut = np.zeros(len(texts), dtype=bool)
        rows: Iterable[int] = range(len(texts))
        for characters in CHARACTERS_PER_TOKEN:
            limit, again = characters * self.max_tokens, []
            seen = [(row, texts[row][:limit]) for row in rows]
            encodings = _encoded(self.backend, [self.prompt + text for _, text in seen])
            for (row, text), encoding in zip(seen, encodings, strict=True):
                more = len(texts[row]) > limit
                if encoding.overflowing or more:
                    cut[row] = True
                    ends[row] = max(0, max(end for _, end in encoding.offsets) - len(self.prompt))
                    # The cut went through the last word seen; what was read is sure only if it ended before that one.
                    if more and not (encoding.overflowing and any(map(str.isspace, text[ends[row] :]))):
                        again.append(row)
                ids[row] = encoding.ids
            rows = again
        return Tokens(ids, ends, cut)


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json; expected a fast tokenizer's file: load the tokenizer with transformers' "
            "AutoTokenizer and save it into the folder with save_pretrained"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # bare Exception for every damage, and Rust's panics are not even that
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        raise ModelError(f"{path} is damaged or not a tokenizer's file ({error}): fetch the model again") from None


def _encoded(backend: tokenizers.Tokenizer, texts: list[str]) -> list[tokenizers.Encoding]:
    try:
        return backend.encode_batch(texts)
    except BaseException as error:  # as above: a word that the vocabulary lacks, without a token for the unknown
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        raise ModelError(f"the model's tokenizer cannot read a text ({error}): fetch the model again") from None


def _check(texts: Sequence[str]) -> None:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {row} is of type {type(text).__name__}; expected str")
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as broken:
            raise InputError(
                f"text {row} has half of a surrogate pair at character {broken.start}, which is no text: "
                "decode its source as UTF-8, or replace the character"
            ) from None
