"""A network as a pure function of its flat weights, f_w(x): the user's module is read, and never changed."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from dnn2gp.errors import InputError, NetworkError, TrainModeWarning
from dnn2gp.inputs import Inputs, leaves, map_inputs, num_examples, take


@dataclass(frozen=True)
class Layout:
    """Where each weight tensor lies in the flat vector w, and which layer it belongs to."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each weight tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def num_weights(self) -> int:
        """P."""
        return sum(self.sizes)

    @property
    def layers(self) -> dict[str, list[int]]:
        """Layer name → positions in `names`: the weight tensors that one module owns ("" is the network itself)."""
        groups: dict[str, list[int]] = {}
        for position, name in enumerate(self.names):
            groups.setdefault(name.rpartition(".")[0], []).append(position)
        return groups

    def flatten(self, tensors: dict[str, Tensor]) -> Float[Tensor, " P"]:
        """The named tensors as one flat vector."""
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def unflatten(self, weights: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """Views of the flat vector under the names and shapes of the module."""
        parts = weights.split(self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def expand(self, per_layer: Float[Tensor, " L"]) -> Float[Tensor, " P"]:
        """One value a layer, repeated for each of its weights."""
        per_tensor = torch.empty(len(self.names), dtype=torch.long)
        for position, members in enumerate(self.layers.values()):
            per_tensor[members] = position
        sizes = torch.tensor(self.sizes, device=per_layer.device)
        return per_layer[per_tensor.to(per_layer.device)].repeat_interleave(sizes)

    def sum_by_layer(self, per_weight: Float[Tensor, " P"]) -> Float[Tensor, " L"]:
        """The transpose of `expand`."""
        sums = torch.stack([part.sum() for part in per_weight.split(self.sizes)])
        return torch.stack([sums[members].sum() for members in self.layers.values()])


class Network:
    """f_w(x) ∈ R^K with w ∈ R^P the weights that require a gradient, each counted once.

    The module is evaluated in eval mode with the weights and buffers that it had when it was wrapped; what the user
    does to the module afterwards does not reach this function, and nothing here reaches the module.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        *,
        state: dict[str, Tensor] | None = None,
        trainable: list[str] | None = None,
    ) -> None:
        """Wrap `module`; `inputs` are a few examples that tell its outputs and serve the determinism probe.

        A saved GP brings the weights and buffers by name (`state`) and the names of the weights w (`trainable`).
        """
        if not isinstance(module, nn.Module):
            raise NetworkError(f"network: expected a torch.nn.Module, got {type(module).__name__}.")
        parameters = dict(module.named_parameters())
        tensors = {**parameters, **dict(module.named_buffers())}
        tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        if state is not None:
            _check_state(tensors, state)
            tensors = {name: state[name].to(tensor.device) for name, tensor in tensors.items()}
        if trainable is None:
            trainable = [name for name, parameter in parameters.items() if parameter.requires_grad]
        _check_weights(trainable, tensors)
        self.module = module
        self.layout = Layout(tuple(trainable), tuple(tensors[name].shape for name in trainable))
        self.weights: Float[Tensor, " P"] = self.layout.flatten(tensors)
        self._fixed = {name: tensor for name, tensor in tensors.items() if name not in set(trainable)}
        self._warn_if_train_mode()
        self._spread = _spreads(module, inputs)
        self.output_shape = self._probe(inputs)

    @property
    def num_weights(self) -> int:
        """P."""
        return self.layout.num_weights

    @property
    def num_outputs(self) -> int:
        """K, the number of outputs after flattening."""
        return prod(self.output_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, which inputs must share and results have."""
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.weights.device

    def state(self) -> dict[str, Tensor]:
        """All weights (frozen ones too) and buffers by name."""
        return {**self.layout.unflatten(self.weights), **self._fixed}

    def __call__(self, weights: Float[Tensor, " P"], inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) for all examples, flattened to N × K."""
        return self._forward(weights, inputs).reshape(num_examples(inputs), -1)

    def check_inputs(self, inputs: Inputs) -> Inputs:
        """Move inputs to the device of the weights, and refuse other float dtypes and non-finite values."""
        for leaf in leaves(inputs):
            if leaf.is_floating_point() and leaf.dtype != self.dtype:
                raise InputError(
                    f"inputs: the network's weights are {self.dtype} but the inputs are {leaf.dtype}. "
                    f"Convert one of them: inputs.to({self.dtype}) or network.to({leaf.dtype})."
                )
            if leaf.is_floating_point() and not leaf.isfinite().all():
                row = int((~leaf.isfinite()).reshape(len(leaf), -1).any(1).nonzero()[0])
                raise InputError(f"inputs: example {row} holds NaN or infinity. Remove or impute such examples.")
        return map_inputs(lambda leaf: leaf.detach().to(self.device), inputs)

    def _forward(self, weights: Tensor, inputs: Inputs) -> Tensor:
        """One call of the module, in eval mode, on copies of the inputs (a layer may work in place)."""
        inputs = map_inputs(torch.clone, inputs)
        tensors = {**self.layout.unflatten(weights), **self._fixed}
        if self._spread and isinstance(inputs, dict):
            args, kwargs = (), inputs
        else:
            args, kwargs = (tuple(inputs) if self._spread and not isinstance(inputs, Tensor) else (inputs,)), {}
        with evaluation_mode(self.module):
            return functional_call(self.module, tensors, args, kwargs)

    def _warn_if_train_mode(self) -> None:
        kinds = {type(m).__name__ for m in self.module.modules() if m.training and isinstance(m, _NormBase | _DropoutNd)}
        if kinds:
            warnings.warn(
                f"The network came in train mode with layers that behave differently there ({', '.join(sorted(kinds))}). "
                "dnn2gp evaluates it in eval mode (dropout off, running statistics) and leaves it as it came. "
                "Call network.eval() first to silence this.",
                TrainModeWarning,
                stacklevel=4,
            )

    def _probe(self, inputs: Inputs) -> tuple[int, ...]:
        """Check on a few examples that f_w(x) is one deterministic function of each example alone."""
        few = self.check_inputs(take(inputs, slice(0, min(4, num_examples(inputs)))))
        count = num_examples(few)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            first, second = self._forward(self.weights, few), self._forward(self.weights, few)
            _check_outputs(first, count, self.dtype)
            if not torch.equal(first, second):
                raise NetworkError(
                    "The network is not deterministic in eval mode: two passes over the same inputs differ by up to "
                    f"{(first - second).abs().max().item():.3g}. Look for (a) functional dropout with training=True, "
                    "(b) layers that ignore eval mode, (c) random numbers drawn in forward; switch them off."
                )
            alone = self._forward(self.weights, take(few, slice(0, 1)))
        gap = (alone[0] - first[0]).abs().max().item() if count > 1 else 0.0
        scale = first[0].abs().max().item() + 1.0
        if alone.shape[1:] != first.shape[1:] or gap > 1e3 * torch.finfo(self.dtype).eps * scale:
            raise NetworkError(
                f"The network's output for an example depends on the rest of the batch (by {gap:.3g}). Look for (a) "
                "batch normalisation with track_running_stats=False, (b) forward code that uses batch statistics; "
                "such a network has no Jacobian per example."
            )
        return tuple(first.shape[1:])


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode and differentiable attention kernels inside the block; every flag as it was after it."""
    modes = [(part, part.training) for part in module.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        for part, _ in modes:
            part.training = False
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for part, mode in modes:
            part.training = mode


def _spreads(module: nn.Module, inputs: Inputs) -> bool:
    """Whether a container of tensors is handed to `forward` as separate arguments (else as one)."""
    if isinstance(inputs, Tensor):
        return False
    try:
        signature = inspect.signature(module.forward)
        signature.bind(**inputs) if isinstance(inputs, dict) else signature.bind(*inputs)
    except TypeError:
        return False
    return True


def _check_weights(trainable: list[str], tensors: dict[str, Tensor]) -> None:
    if not trainable:
        raise NetworkError(
            "The network has no weight that requires a gradient. Unfreeze at least one: parameter.requires_grad_(True)."
        )
    kinds = {(tensors[name].dtype, tensors[name].device) for name in trainable}
    if len(kinds) > 1 or not next(iter(kinds))[0].is_floating_point:
        raise NetworkError(
            f"All trainable weights must share one real dtype and one device; got {sorted(map(str, kinds))}. "
            "Use network.to(dtype) or network.to(device)."
        )
    for name in trainable:
        if not tensors[name].isfinite().all():
            raise NetworkError(f"The weight {name!r} holds NaN or infinity; the training has diverged.")


def _check_state(tensors: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    missing, extra = sorted(set(tensors) - set(state)), sorted(set(state) - set(tensors))
    wrong = [n for n in tensors if n in state and tensors[n].shape != state[n].shape]
    if missing or extra or wrong:
        raise NetworkError(
            "The network does not fit the saved one: "
            + "; ".join(
                f"{what} {names[:5]}"
                for what, names in (("not in the file:", missing), ("only in the file:", extra), ("other shape:", wrong))
                if names
            )
            + ". Build it with the arguments that it had when it was saved."
        )


def _check_outputs(outputs: object, count: int, dtype: torch.dtype) -> None:
    if not isinstance(outputs, Tensor):
        raise NetworkError(
            f"The network must return one tensor of outputs; it returned {type(outputs).__name__}. "
            "Wrap it in a module whose forward returns the tensor (e.g. the logits)."
        )
    if outputs.ndim == 0 or len(outputs) != count:
        raise NetworkError(
            f"The network must return one row an example: expected first axis {count}, got shape {tuple(outputs.shape)}."
        )
    if outputs.dtype != dtype:
        raise NetworkError(f"The network's outputs are {outputs.dtype}, its weights {dtype}; they must be the same.")
    if not outputs.isfinite().all():
        raise NetworkError("The network's outputs hold NaN or infinity on the given inputs.")
