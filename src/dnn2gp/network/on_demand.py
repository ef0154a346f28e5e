"""Inputs that stay where they are and are read in parts, when they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from dnn2gp.network.inputs import Inputs


class OnDemand(ABC):
    """N examples that are not in memory. `take` and `in_parts` of `inputs.py` read some of them.

    `streamed.py` reads a Dataset; `views.py` has what else the examples of other inputs may be.
    """

    @property
    @abstractmethod
    def form(self) -> Inputs:
        """The first example, in memory: it shows the container, the dtypes and the shapes of all."""

    @property
    @abstractmethod
    def num_examples(self) -> int:
        """N."""

    @property
    @abstractmethod
    def most(self) -> int:
        """The largest number of examples to have in memory at once."""

    @property
    @abstractmethod
    def checksums(self) -> Int[Tensor, " N"]:
        """A number for each example that changes if the example does (`checksums.py`)."""

    @abstractmethod
    def read(self, index: slice | Tensor) -> Inputs:
        """The examples at `index`, in memory."""

    @abstractmethod
    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        """These parts one after the other, the next of which may be read while one of them is used.

        Closing the iterator ends the pass.
        """


def positions(index: slice | Tensor, count: int) -> Int[Tensor, " n"]:
    """The numbers of the examples at `index`, among `count` of them."""
    return torch.arange(count, device="cpu")[index.cpu() if isinstance(index, Tensor) else index]
