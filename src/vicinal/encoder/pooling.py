"""Token states -> one vector per text.

`states` are the states of all texts laid end to end, `lengths` how many belong to each; out comes one row per text.

>>> states = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
>>> POOLINGS["mean"](states, [2, 1]).tolist()
[[2.0, 1.0], [5.0, 5.0]]
>>> POOLINGS["cls"](states, [2, 1]).tolist(), POOLINGS["lasttoken"](states, [2, 1]).tolist()
([[1.0, 0.0], [5.0, 5.0]], [[3.0, 2.0], [5.0, 5.0]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def starts(lengths: Sequence[int]) -> np.ndarray:
    """Where each text begins when texts of these lengths lie end to end.

    >>> starts([2, 1, 4]).tolist()
    [0, 2, 3]
    """
    return np.cumsum([0, *lengths[:-1]])


def first(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """The state of each text's first token, [CLS]."""
    return states[torch.from_numpy(starts(lengths)).to(states.device)].float()


def last(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """The state of each text's last token."""
    return states[torch.from_numpy(np.cumsum(lengths) - 1).to(states.device)].float()


def mean(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """The mean of each text's states, special tokens included, summed in fp32 in every precision."""
    return torch.stack([text.float().mean(dim=0) for text in torch.split(states, list(lengths))])


POOLINGS: dict[str, Callable[[Tensor, Sequence[int]], Tensor]] = {"cls": first, "mean": mean, "lasttoken": last}
