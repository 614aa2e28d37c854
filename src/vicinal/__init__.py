"""Vicinal: embeddings and search that know the corpus they live in.

>>> import vicinal
>>> vicinal.load("tiny").encode_queries(["a question"]).dense.shape
(1, 64)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import Context as Context
    from .corpus import Corpus as Corpus
    from .documents import Document as Document
    from .encoder import Encoder as Encoder
    from .encoder import load as load
    from .errors import VicinalError as VicinalError
    from .evaluation import Collection as Collection
    from .evaluation import compare as compare
    from .evaluation import evaluate as evaluate
    from .search import Hit as Hit
    from .search import Index as Index

__version__ = "0.1.0"

# Importing costs nothing: each public name is fetched from its room when it is first used.
_ROOMS = {
    "Collection": "evaluation",
    "Context": "context",
    "Corpus": "corpus",
    "Document": "documents",
    "Encoder": "encoder",
    "Hit": "search",
    "Index": "search",
    "VicinalError": "errors",
    "compare": "evaluation",
    "evaluate": "evaluation",
    "load": "encoder",
}
__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'vicinal' has no attribute {name!r}: it has {', '.join(_ROOMS)}")
    value = getattr(import_module(f".{_ROOMS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
