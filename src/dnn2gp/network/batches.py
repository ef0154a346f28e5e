"""Batches of data: pairs of inputs and targets, all of the same form."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dnn2gp.network.inputs import Inputs, check_inputs, check_kind, describe, leaves, num_examples, same_form
from dnn2gp.support.errors import InputError

UNSTABLE = (
    "data: expected the same batches in every pass over the loader; got two passes that differ. The loader may (a) "
    "shuffle: pass DataLoader(..., shuffle=False) or the Dataset itself (loader.dataset); (b) augment at random: "
    "switch that off; (c) read a one-shot stream: pass the Dataset or tensors."
)


@dataclass(frozen=True)
class Data:
    """The training set D = {(x_i, y_i)}, i = 1 … N, or a batch of it; the targets are in memory."""

    inputs: Inputs
    targets: Tensor

    @property
    def num_examples(self) -> int:
        """N."""
        return num_examples(self.inputs)


def checked_pair(inputs: Inputs, targets: object, what: str) -> Data:
    """Inputs with one target for each of them."""
    if not isinstance(targets, Tensor):
        raise InputError(
            f"{what}: expected targets as a torch.Tensor; got {type(targets).__name__}. "
            "Convert arrays with torch.as_tensor(array)."
        )
    check_kind(targets, f"{what}, targets")
    if targets.ndim == 0 or len(targets) != num_examples(inputs):
        raise InputError(
            f"{what}: expected one target for each of the {num_examples(inputs)} inputs; got targets of shape "
            f"{tuple(targets.shape)}. Pass inputs and targets of the same examples, in the same order."
        )
    return Data(inputs, targets)


def checked_batch(position: int, batch: object) -> Data:
    """The batch that a loader returned, which must be a pair of inputs and targets."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        form = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise InputError(
            f"data: expected each batch to be a pair (inputs, targets); got {form} in batch {position}. Inputs may be "
            "a tensor, or a tuple, list or dict of tensors; give the DataLoader a collate_fn that returns such a pair."
        )
    where = f"data, batch {position}"
    return checked_pair(check_inputs(batch[0], f"{where}, inputs"), batch[1], where)


def check_alike(position: int, first: Data, other: Data) -> None:
    """Reject a batch whose form differs from that of the first one."""
    pairs = {"inputs": (first.inputs, other.inputs), "targets": (first.targets, other.targets)}
    for what, (expected, found) in pairs.items():
        if not same_form(expected, found):
            raise InputError(
                f"data: expected all batches to have the same container, dtype and example shape; the {what} of batch "
                f"0 are {describe(expected)}, but those of batch {position} are {describe(found)}. Pad or crop the "
                "examples to one shape."
            )


def same_batch(first: Data, second: Data) -> bool:
    """Whether two batches have the same form and values."""
    pairs = zip([*leaves(first.inputs), first.targets], [*leaves(second.inputs), second.targets], strict=False)
    return same_form(first.inputs, second.inputs) and all(_equal(a, b) for a, b in pairs)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether the values are equal, with NaN equal to NaN; a later check reports NaNs by example."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
