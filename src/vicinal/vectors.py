"""The order of operations from a raw vector to a final one, the same everywhere: truncate to `dim`, normalise.

Raw vectors, as a model gives them, are what is kept; final ones are what is compared.

>>> final(torch.tensor([[3.0, 4.0, 12.0]]), dim=2).tolist()
[[0.6..., 0.8...]]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from .errors import InputError

Floats = npt.NDArray[np.float32]


def final(raw: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Raw vectors -> vectors of length 1 in 32 bit."""
    return unit(raw[:, :dim])


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Each vector over its length, in 32 bit; a vector without length stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6..., 0.8...], [0.0, 0.0]]
    """
    return torch.nn.functional.normalize(vectors.float(), dim=1, eps=1e-30)


def checked_dim(dim: int | None, full: int) -> int:
    """The number of leading dimensions to keep; refuses what a vector does not have."""
    if dim is None:
        return full
    if not 1 <= dim <= full:
        raise InputError(f"--dim {dim} was asked for, but vectors have {full} dimensions: choose one of 1 to {full}")
    return dim
