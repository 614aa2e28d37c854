"""What a training run is: a tree of small records, saved inside the model that it makes.

>>> run = Run(steps=100)
>>> run.changed({"learning_rate": "3e-5", "encoder.attention": "none", "sizes": "64,128"}).optimiser.learning_rate
3e-05
>>> Run.from_dict(run.to_dict()) == run
True
>>> run.changed({"learning_rat": "1"})
Traceback (most recent call last):
vicinal.errors.InputError: a run has no field 'learning_rat': did you mean 'learning_rate'?
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..encoder.contextual import ContextualConfig
from ..errors import InputError


@dataclass(frozen=True)
class Meeting:
    """Which pairs meet in a batch, and who of them is a false negative."""

    pairs: int = 512  # of a batch, over all processes
    clustered: bool = True
    surrogate: str = "tfidf"  # how neighbours are found and false negatives judged: tfidf, bm25, or a model
    cluster_pairs: int | None = None  # None: as many as a batch has
    order: Literal["random", "tour"] = "tour"
    alpha: float | None = None  # None: every pair once an epoch; else domains are drawn with p ~ n^alpha
    margin: float | None = 0.0  # f(q, d') >= f(q, d) - margin is a false negative; None: only copies are
    shown: int = 128  # documents of the batch that are its context
    negatives: int = 0  # hard negatives of each pair that are used


@dataclass(frozen=True)
class Aim:
    """What is made smaller: contrastive + kl * KL to the corpus's teacher, at several sizes where some are named."""

    temperature: float = 0.02
    both: bool = False
    same_side: bool = False
    kl: float = 0.0  # the weight of the teacher whose scores depend on the batch's corpus (batches/teacher.py)
    kl_temperature: float = 0.05
    teacher_temperature: float = 1.0
    words: float = 0.5  # the weight of BM25 in the teacher's scores
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Optimiser:
    """AdamW, warmed up and then decayed to nothing in straight lines."""

    learning_rate: float = 2e-5
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01  # of matrices
    clip: float = 1.0  # longest gradient
    accumulate: int = 1  # batches whose gradients make one step
    averaging: float = 0.0  # of weights over steps (EMA): the share of the old ones; 0 takes the last


@dataclass(frozen=True)
class Run:
    """A whole training run; recipes make them."""

    model: str = "granite-embedding-30m-english"  # to start from
    encoder: ContextualConfig = field(default_factory=ContextualConfig)
    meeting: Meeting = field(default_factory=Meeting)
    aim: Aim = field(default_factory=Aim)
    optimiser: Optimiser = field(default_factory=Optimiser)
    steps: int = 1000
    seed: int = 0
    max_query_tokens: int = 48
    max_document_tokens: int = 128
    chunk_tokens: int = 16_384  # of a batch that are in memory with their graph at once
    precision: Literal["fp32", "bf16"] = "fp32"
    compiled: bool = False
    save_every: int = 500  # steps
    evaluate_every: int = 500
    tensorboard: bool = False

    def __post_init__(self) -> None:
        least = {"steps": 1, "seed": 0, "chunk_tokens": 1, "save_every": 1, "evaluate_every": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise InputError(f"{name} is {getattr(self, name)}: expected at least {number}")
        if self.optimiser.accumulate < 1 or self.optimiser.learning_rate <= 0 or not 0 <= self.optimiser.averaging < 1:
            raise InputError(f"{self.optimiser} cannot train: expected accumulate >= 1, a rate > 0, averaging below 1")
        meeting, aim, optimiser = self.meeting, self.aim, self.optimiser
        bounds = {
            "meeting.pairs": (meeting.pairs, 2, None),
            "meeting.cluster_pairs": (meeting.cluster_pairs, 1, None),
            "meeting.shown": (meeting.shown, 0, None),
            "meeting.negatives": (meeting.negatives, 0, None),
            "meeting.alpha": (meeting.alpha, 0, 10),
            "meeting.margin": (meeting.margin, -2, 2),
            "aim.temperature": (aim.temperature, 1e-6, 1e6),
            "aim.kl": (aim.kl, 0, 1e6),
            "aim.kl_temperature": (aim.kl_temperature, 1e-6, 1e6),
            "aim.teacher_temperature": (aim.teacher_temperature, 1e-6, 1e6),
            "aim.words": (aim.words, 0, 1e6),
            "optimiser.learning_rate": (optimiser.learning_rate, 0, 1e6),
            "optimiser.warmup": (optimiser.warmup, 0, 1),
            "optimiser.weight_decay": (optimiser.weight_decay, 0, 1),
            "optimiser.clip": (optimiser.clip, 1e-12, 1e12),
            "seed": (self.seed, 0, 2**31 - 1),
        }
        for name, (value, low, high) in bounds.items():
            if value is not None and not (low <= value and (high is None or value <= high)):  # NaN is neither
                told = f"{low} to {high}" if high is not None else f"{low} or more"
                raise InputError(f"{name} is {value}: expected {told}")
        if self.encoder.published:
            raise InputError("published checkpoints are read, not trained: leave encoder.published out")

    def to_dict(self) -> dict[str, Any]:
        """Every field, as JSON knows it."""
        told: dict[str, Any] = asdict(self)
        told["aim"]["sizes"] = list(self.aim.sizes)
        return told

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Run:
        """The inverse of `to_dict`."""
        run: Run = _record(cls, given)
        return run

    def changed(self, settings: Mapping[str, str]) -> Run:
        """The same run with some fields set from text, by their path (optimiser.clip) or, where that is clear, name."""
        known = _leaves(type(self))
        run = self
        for asked, text in settings.items():
            paths = [path for path in known if path == asked] or [p for p in known if p.split(".")[-1] == asked]
            if len(paths) != 1:
                names = sorted({path.split(".")[-1] for path in known} | set(known))
                near = get_close_matches(asked, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
                raise InputError(
                    f"a run has several fields {asked!r}: {' or '.join(paths)}"
                    if paths
                    else f"a run has no field {asked!r}: {hint}"
                )
            run = _set(run, paths[0].split("."), _read(asked, text, known[paths[0]]))
        return run


def _leaves(kind: Any) -> dict[str, Any]:
    """The path and the type of every value in a tree of records."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for each in fields(kind):
        hint = hints[each.name]
        if is_dataclass(hint):
            found |= {f"{each.name}.{path}": inner for path, inner in _leaves(hint).items()}
        else:
            found[each.name] = hint
    return found


def _set(record: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(record, **{name: _set(getattr(record, name), rest, value) if rest else value})


def _read(name: str, text: str, kind: Any) -> Any:
    """A field's value from text, by its type."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options and text.lower() in ("none", "null", ""):
        return None
    (plain,) = [option for option in options if option is not type(None)]
    try:
        if plain is bool:
            return {"true": True, "false": False}[text.lower()]
        if get_origin(plain) is Literal:
            return {str(option): option for option in get_args(plain)}[text]
        if get_origin(plain) is tuple:
            inner = get_args(plain)[0]
            return tuple(inner(part) for part in text.split(",") if part)
        return plain(text)
    except (KeyError, ValueError, TypeError):
        expected = " or ".join(map(str, get_args(plain))) if get_origin(plain) is Literal else typing.cast(Any, plain)
        raise InputError(f"{name}={text} was asked for: expected {getattr(expected, '__name__', expected)}") from None


def _record(kind: Any, given: Mapping[str, Any]) -> Any:
    """A tree of records from JSON; what is not known is refused with the nearest name."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in hints:
            near = get_close_matches(str(name), list(hints), n=1)
            raise InputError(f"{kind.__name__} has no field {name!r}{f': did you mean {near[0]!r}?' if near else ''}")
        values[name] = _record(hints[name], value) if is_dataclass(hints[name]) else value
        if get_origin(hints[name]) is tuple:
            values[name] = tuple(value)
    return kind(**values)
