"""Training pairs and their domains; what may be wrong with them.

Pairs walk through it in this order: store.py (files and rows -> pairs by number, in one mapped file), overlap.py (what
texts share with other texts, word for word), report.py (what is to be known of pairs before training on them).
"""

from __future__ import annotations

from .overlap import Overlap as Overlap
from .report import check as check
from .report import findings as findings
from .report import texts_of as texts_of
from .store import KEPT_FOR_CHOOSING as KEPT_FOR_CHOOSING
from .store import Pair as Pair
from .store import PairCounts as PairCounts
from .store import Pairs as Pairs
from .store import pair_of as pair_of
