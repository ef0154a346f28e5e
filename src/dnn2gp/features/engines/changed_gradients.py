"""Ways in which a backward pass gives something else than a derivative: options of torch, and hooks that clip."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dnn2gp.features.engines.plain_passes import WARNING_FILTERS, probe_vectors, pull
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, num_examples
from dnn2gp.support.errors import NetworkError

REENTRANT = (
    "network: reentrant checkpointing gives no derivatives of the weights inside it alone. Use "
    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
)
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
        raise NetworkError(REENTRANT) from error


def check_linear(network: Network, anchor: Float[Tensor, " P"], inputs: Inputs) -> None:
    """Reject a network whose Jᵀu is not linear in u: hooks and autograd functions that clip or normalise gradients.

    Such gradients are the rows of no Jacobian. Compared are Jᵀ(u − 2v) with Jᵀu − 2Jᵀv, and Jᵀ(cu) with c Jᵀu for a
    large and a small c, with a tolerance for layers that compute in half precision.
    """
    with torch.enable_grad():
        weights = anchor.detach().requires_grad_(True)
        outputs = network(weights, inputs)
        cotangents, _ = probe_vectors(anchor, num_examples(inputs), network.num_outputs, 2)
        u, v = cotangents.unbind(-1)
        first, second = pull(outputs, weights, u), pull(outputs, weights, v)
        cases = [(u - 2 * v, first - 2 * second, first.norm() + 2 * second.norm())]
        cases += [(c * u, c * first, abs(c) * first.norm()) for c in (-(2.0**20), 2.0**-10)]
        gaps = [((pull(outputs, weights, both) - expected).norm(), size) for both, expected, size in cases]
    share = torch.finfo(anchor.dtype).eps ** 0.3
    if any(gap > share * size for gap, size in gaps if gap.isfinite()):
        raise NetworkError(
            "network: its backward pass does not multiply by a Jacobian: twice the gradient of the outputs does not "
            "give twice the gradient of the weights. Look for hooks (register_hook, register_full_backward_hook) or "
            "torch.autograd.Functions that clip, normalise or select gradients, and remove them before converting."
        )


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
