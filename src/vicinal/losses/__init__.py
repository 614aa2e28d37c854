"""What training makes smaller, one loss per file: the views of a batch -> a number.

    base.py            Views, what a batch became, and Loss, the promise
    contrastive.py     a query's own document against the allowed others of its batch
    kl.py              a teacher's distribution over the batch
    margin.py          a teacher's margins
    regression.py      a teacher's vectors
    combine.py         a weighted sum of losses
    matryoshka.py      one loss at several sizes
    classification.py  classes read off several sizes
    gather.py          the documents of all processes

>>> loss = Matryoshka(Sum(((1.0, Contrastive()), (0.5, KL()))), sizes=(64, 128, 384))
"""

from __future__ import annotations

from .base import Loss, Views
from .classification import NestedClassifier
from .combine import Sum
from .contrastive import Contrastive
from .gather import across, gathered
from .kl import KL
from .margin import MarginMSE
from .matryoshka import Matryoshka
from .regression import Regression

__all__ = [
    "KL",
    "Contrastive",
    "Loss",
    "MarginMSE",
    "Matryoshka",
    "NestedClassifier",
    "Regression",
    "Sum",
    "Views",
    "across",
    "gathered",
]
