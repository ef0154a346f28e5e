"""Options of torch by which a backward pass gives something else than the derivative: they are refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dnn2gp.features.engines.plain_passes import WARNING_FILTERS
from dnn2gp.support.errors import NetworkError

# For each function, the positions of its table of weights, of scale_grad_by_freq and of sparse.
_EMBEDDINGS: dict[Callable[..., Any], tuple[int, int, int]] = {
    F.embedding: (1, 5, 6),
    torch.embedding: (0, 3, 4),
    F.embedding_bag: (1, 5, 7),
    torch.embedding_bag: (0, 3, 5),
}


@contextmanager
def derivatives_watched() -> Iterator[None]:
    """A context for the first derivative of a network, which names what makes a gradient differ from a derivative."""
    try:
        with WARNING_FILTERS, warnings.catch_warnings(), _Embeddings():
            warnings.filterwarnings("error", message=".*None of the inputs have requires_grad")
            yield
    except UserWarning as error:
        raise NetworkError(
            "network: reentrant checkpointing gives no derivatives of the weights inside it if the inputs need none. "
            "Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        ) from error


class _Embeddings(TorchFunctionMode):
    """Refuses embeddings whose gradient is scaled or sparse."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _EMBEDDINGS:
            _check_embedding(args, kwargs, *_EMBEDDINGS[func])
        return func(*args, **kwargs)


def _check_embedding(args: tuple, kwargs: dict[str, Any], table: int, scaled: int, sparse: int) -> None:
    weight = args[table] if len(args) > table else kwargs.get("weight")
    if not isinstance(weight, Tensor) or not weight.requires_grad:
        return
    causes = {"scale_grad_by_freq": scaled, "sparse": sparse}
    for name, position in causes.items():
        if args[position] if len(args) > position else kwargs.get(name, False):
            effect = "divides the gradients of a batch by counts" if name == "scale_grad_by_freq" else "is not dense"
            raise NetworkError(
                f"network: an embedding has {name}=True, so its gradient {effect} and is not the derivative that the "
                f"Jacobian needs. Set {name}=False on the embedding: its outputs stay the same."
            )
