"""What this room needs of pairs: rows numbered through, domain after domain, and their texts.

>>> class Few:
...     domains, fingerprint = {"greetings": range(2)}, "f"
...     def __len__(self): return 2
...     def take(self, rows): return [(f"query {row}", f"document {row}") for row in rows]
...     def column(self, name, rows): return [f"{name} {row}" for row in rows]
>>> few: Pairs = Few()
>>> few.column("query", few.domains["greetings"])
['query 0', 'query 1']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Halves = npt.NDArray[np.float16]  # surrogate vectors: (pairs, 2, dim), a document's, then its query's


class Pairs(Protocol):
    """Queries with their documents, of named domains."""

    @property
    def domains(self) -> Mapping[str, range]:
        """Each domain's rows."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of everything in them."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> list[Any]:
        """Whole pairs."""
        ...

    def column(self, name: Literal["query", "document"], rows: Sequence[int]) -> list[str]:
        """The queries, or the documents, of these rows, in the order asked for."""
        ...
