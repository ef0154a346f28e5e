"""Weights that stay fixed: shared with the user's module, and watched for changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dnn2gp.support.errors import NetworkError


@dataclass(frozen=True, eq=False)
class FrozenWeights:
    """Fixed weights by name. They are not copied, so that a small trained part of a large network stays small.

    In-place changes to the user's module affect the shared tensors; torch counts these changes, so they are detected.
    """

    tensors: dict[str, Tensor]
    versions: tuple[int, ...]

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> FrozenWeights:
        """These tensors, as they are now."""
        own = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in tensors.items()}
        return FrozenWeights(own, tuple(tensor._version for tensor in own.values()))

    def check(self) -> None:
        """Raise a NetworkError if one of them has been changed in place since then."""
        for (name, tensor), version in zip(self.tensors.items(), self.versions, strict=True):
            if tensor._version != version:
                raise NetworkError(
                    f"The frozen weight {name!r} of the network was changed in place after the network was converted. "
                    "Frozen weights are shared with the network, not copied. Convert the network again; to keep both, "
                    "convert a copy of it (copy.deepcopy) before you train it further."
                )

    @property
    def num_weights(self) -> int:
        """The number of entries of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled without the rest of a larger tensor that one of them may be a view of; versions start anew."""
        return FrozenWeights.of, ({name: _alone(tensor) for name, tensor in self.tensors.items()},)

    def __deepcopy__(self, memo: dict[int, object]) -> FrozenWeights:
        """Shared, as with the user's module."""
        return self


def _alone(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
