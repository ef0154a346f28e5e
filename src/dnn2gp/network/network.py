"""A network as a pure function of its flat weights, f_w(x), on a private copy of the module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from copy import copy
from itertools import pairwise
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.network.complex_views import CopiedIfMisplaced, misplaced
from dnn2gp.network.inputs import (
    Inputs,
    OnDemand,
    check_finite,
    describe,
    differentiable,
    leaves,
    map_inputs,
    most_at_once,
    num_examples,
    passed,
    repack,
    same_form,
    take,
)
from dnn2gp.network.layout import Layout
from dnn2gp.network.module_checks import (
    check_module,
    check_outputs,
    check_state,
    check_tensor,
    check_trainable,
    warn_if_train_mode,
)
from dnn2gp.network.private_module import FrozenWeights, ModuleOwner, own_module
from dnn2gp.network.separate import separate
from dnn2gp.network.views import Converted
from dnn2gp.support.errors import InputError, NetworkError
from dnn2gp.support.randomness import USER_STATE, global_states_kept

_BATCH_CAUSES = (
    "Look for (a) batch normalisation with track_running_stats=False, (b) recurrent layers or attention without "
    "batch_first=True, (c) forward code that mixes examples, such as x.mean(0) or x - x[:1]; such a network has no "
    "Jacobian per example."
)


# The most examples that are probed, and the most that are copied to be computed in other company.
_PROBED = 4
_COMPANY = 1024


class Network:
    """f_w(x) ∈ R^K with w ∈ R^P the weights that require a gradient, each counted once.

    The function is that of the module in eval mode when it was wrapped, and a value: it runs on private copies of the
    module, so calls from several threads do not disturb one another, nothing is ever changed on the user's module, and
    later changes to that module do not affect the function. Weights that are frozen are shared with the module instead
    of copied; a later in-place change of one of them is an error in the next call (`FrozenWeights`).

    A module that cannot be deep-copied, or whose forward refers to the original other than through its structure, is
    run directly: one thread at a time, with its mode, parameters and attributes restored after every call.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        module: object,
        inputs: Inputs,
        *,
        state: Mapping[str, Tensor] | None = None,
        trainable: list[str] | None = None,
    ) -> None:
        """Wrap `module`; a few examples of `inputs` determine its output shape and check that it is deterministic.

        For a saved GP, `state` holds the weights and buffers by name, and `trainable` the names of the weights w.
        """
        with USER_STATE:
            module = check_module(module)
            parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
            if state is None:
                warn_if_train_mode(module)
            else:
                check_state({**parameters, **buffers}, state)
            if trainable is None:
                trainable = [name for name, parameter in parameters.items() if parameter.requires_grad]
            values = {
                name: (tensor if state is None else state[name]).detach().to(tensor.device)
                for name, tensor in {**parameters, **buffers}.items()
            }
            check_trainable(trainable, values)
            tensors = _own_tensors(values, parameters, set(trainable))
            self.layout = Layout(tuple(trainable), tuple(values[name].shape for name in trainable))
            self.weights: Float[Tensor, " P"] = self.layout.flatten(values)
            self._frozen = FrozenWeights.of({name: tensors[name] for name in parameters if name not in set(trainable)})
            self._buffers = {name: tensors[name] for name in buffers}
            self._renormed = [f"{name}.weight".lstrip(".") for name, part in module.named_modules() if _renorms(part)]
            few = take(inputs, slice(0, min(_PROBED, num_examples(inputs))))
            self._spread, self.separate = _spreads(module, few), separate(module)
            self._example = map_inputs(lambda leaf: leaf.detach().clone(), take(few, slice(0, 1)))
            self._draws = True
            self._has_complex_views = False
            few = self.check_inputs(few)
            with global_states_kept(self.device):
                self._owner = own_module(module, tensors, lambda owner: self._evaluate(self.weights, few, owner))
            self.output_shape = self._probe(few)

    @property
    def num_weights(self) -> int:
        """P."""
        return self.layout.num_weights

    @property
    def share(self) -> float:
        """P over the number of all weights, including frozen ones."""
        return self.num_weights / (self.num_weights + self._frozen.num_weights)

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

    def restricted(self, names: list[str]) -> Network:
        """The same function of fewer weights, the others fixed at their values."""
        tensors = self.state()
        other = copy(self)
        other.layout = Layout(tuple(names), tuple(tensors[name].shape for name in names))
        other.weights = other.layout.flatten(tensors)
        fixed = [name for name in (*self.layout.names, *self._frozen.tensors) if name not in set(names)]
        other._frozen = FrozenWeights.of({name: tensors[name] for name in fixed})
        return other

    def with_state(self, tensors: Mapping[str, Tensor]) -> Network:
        """The same function with other values of all weights and buffers, by name. The function is not probed again."""
        other = copy(self)
        other.weights = self.layout.flatten(tensors)
        other._frozen = FrozenWeights.of({name: tensors[name] for name in self._frozen.tensors})
        other._buffers = {name: tensors[name] for name in self._buffers}
        return other

    def state(self) -> dict[str, Tensor]:
        """All weights (including frozen ones) and buffers by name."""
        return {**self.layout.unflatten(self.weights), **self._frozen.tensors, **self._buffers}

    def __deepcopy__(self, memo: dict[int, object]) -> Network:
        """With weights of its own; frozen weights stay shared."""
        other = copy(self)
        other.weights = self.weights.clone()
        return other

    def __call__(self, weights: Float[Tensor, " P"], inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) for all examples, flattened to N × K."""
        return check_tensor(self._evaluate(weights, inputs)).reshape(num_examples(inputs), -1)

    def check_inputs(self, inputs: Inputs, *, keep_graph: bool = False) -> Inputs:
        """Move inputs to the device of the weights; reject other float dtypes, non-finite values and other forms.

        With `keep_graph`, inputs that require a gradient still do, so that results can be differentiated.
        """
        if isinstance(inputs, OnDemand):
            return self._converted(inputs)
        for leaf in leaves(inputs):
            if leaf.is_floating_point() and leaf.dtype != self.dtype:
                raise InputError(
                    f"inputs: expected the dtype of the weights, {self.dtype}; got {leaf.dtype}. Convert one of "
                    f"them: inputs.to({self.dtype}) or network.to({leaf.dtype})."
                )
        check_finite(inputs)
        keep_graph = keep_graph and differentiable(inputs)
        inputs = map_inputs(lambda leaf: (leaf if keep_graph else leaf.detach()).to(self.device), inputs)
        return inputs if same_form(inputs, self._example) else self._adapted(inputs)

    def _converted(self, inputs: OnDemand) -> OnDemand:
        """Inputs on demand, in the form and on the device of the network; the first read has checked their values."""
        form = self.check_inputs(inputs.form)
        same = same_form(form, inputs.form)
        moved = any(a.device != b.device for a, b in zip(leaves(form), leaves(inputs.form), strict=True))
        return Converted(inputs, form) if moved or not same else inputs

    def _adapted(self, inputs: Inputs) -> Inputs:
        """Inputs whose form differs from those at construction, if the outputs for them have the same shape."""
        known = self._example
        repacked = repack(inputs, known)
        if repacked is None:
            raise InputError(
                f"inputs: expected the container that the network was converted with, {describe(known)}; "
                f"got {describe(inputs)}. Pack them like the training inputs."
            )
        inputs = repacked
        with torch.no_grad():
            outputs = self._tried(take(inputs, slice(0, 1)))
        shape = (1, *self.output_shape)
        if not isinstance(outputs, Tensor) or outputs.shape != shape:
            got = f"outputs of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise InputError(
                f"inputs: expected outputs of shape {shape} for one example, as for the training inputs "
                f"({describe(known)}); {describe(take(inputs, slice(0, 1)))} gives {got}. "
                "Give the inputs the shape of the training inputs."
            )
        return inputs

    @torch.inference_mode(False)
    def _tried(self, inputs: Inputs) -> object:
        """The module's outputs at the network's weights, or an error that describes the inputs on which it fails."""
        try:
            return self._evaluate(self.weights, inputs)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
            known = "" if same_form(inputs, self._example) else f"It works on inputs like {describe(self._example)}. "
            raise InputError(
                f"inputs: the network's forward fails on {describe(inputs)}: {error}. {known}Check that "
                "network(inputs) runs in eval mode on a batch of such examples."
            ) from error

    def _alone(self, inputs: Inputs) -> object:
        """The outputs for the first example as a batch of one."""
        try:
            return self._tried(take(inputs, slice(0, 1)))
        except InputError as error:
            raise NetworkError(
                f"network: forward works on a batch of {num_examples(inputs)}, but fails on a single example: "
                f"{error.__cause__}. {_BATCH_CAUSES}"
            ) from error

    def _evaluate(self, weights: Tensor, inputs: Inputs, owner: ModuleOwner | None = None) -> object:
        """One call of the module; from the first one on that views a weight as complex numbers, with help."""
        try:
            return self._called(weights, inputs, owner)
        except RuntimeError as error:
            if self._has_complex_views or not misplaced(error):
                raise
        self._has_complex_views = True
        return self._called(weights, inputs, owner)

    def _called(self, weights: Tensor, inputs: Inputs, owner: ModuleOwner | None) -> object:
        """One call of the module, in eval mode, on copies of inputs and buffers (a layer may work in place)."""
        self._frozen.check()
        inputs = map_inputs(torch.clone, inputs)
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        tensors = {**self.layout.unflatten(weights), **self._frozen.tensors, **buffers}
        tensors |= {name: tensors[name].clone() for name in self._renormed if name in tensors}  # changed in forward
        args, kwargs = self.arguments(inputs)
        random = global_states_kept(self.device) if self._draws else nullcontext()
        with random, CopiedIfMisplaced() if self._has_complex_views else nullcontext():
            return (owner or self._owner).call(tensors, args, kwargs)

    def arguments(self, inputs: Inputs) -> tuple[tuple, dict[str, Tensor]]:
        """The inputs as the positional and named arguments that `forward` takes."""
        if self._spread and isinstance(inputs, dict):
            return (), inputs
        return (tuple(leaves(inputs)) if self._spread else (inputs,)), {}

    def _probe(self, few: Inputs) -> tuple[int, ...]:
        """Check on a few examples that f_w(x) is one deterministic function of each example alone."""
        with torch.no_grad(), global_states_kept(self.device) as drawn:
            self._draws = False
            first, second = (check_outputs(self._tried(few), num_examples(few), self.dtype) for _ in range(2))
            if not torch.equal(first, second):
                raise NetworkError(
                    "network: not deterministic in eval mode: two passes over the same inputs differ by up to "
                    f"{(first - second).abs().max().item():.3g}. Look for (a) functional dropout with training=True, "
                    "(b) layers that ignore eval mode, (c) random numbers drawn in forward; switch them off."
                )
            alone = check_outputs(self._alone(few), 1, self.dtype)
            self._draws = drawn()
        if alone.shape[1:] != first.shape[1:]:
            raise NetworkError(
                f"network: the output for one example has shape {tuple(alone.shape[1:])} on its own, but "
                f"{tuple(first.shape[1:])} in a batch of {len(first)}. Look for squeeze() or reshape in forward; it "
                "must return one row per example for every batch size."
            )
        self.check_company(few, lambda some: check_outputs(self._tried(some), num_examples(some), self.dtype))
        return tuple(first.shape[1:])

    def check_company(
        self, inputs: Inputs, outputs: Callable[[Inputs], Tensor], scale: float = 1.0, slack: float = 1e3
    ) -> Tensor:
        """The outputs, unless that for an example depends on the other examples or on its place among them.

        Rounding may change them by `slack` times as much as it does numbers of the size `scale`.

        The outputs of all examples in one call are compared with those in the reverse order, in batches of 1, 2, 4, …
        up to 1024: every example gets another place and other company.
        """
        count = num_examples(inputs)
        most, stops = min(_COMPANY, most_at_once(inputs)), [0]
        while stops[-1] < count:
            stops.append(min(count, 2 * stops[-1] + 1, stops[-1] + most))
        parts = [count - 1 - torch.arange(start, stop, device="cpu") for start, stop in pairwise(stops)]
        with torch.no_grad(), global_states_kept(self.device), closing(passed(inputs, parts)) as several:
            expected = outputs(inputs)
            found = [outputs(own) for own in several]
        gaps = (torch.cat(found).flip(0) - expected).abs().reshape(count, -1).amax(1)
        gaps = torch.where(expected.isfinite().reshape(count, -1).all(1), gaps, 0.0)  # others are found elsewhere
        limits = slack * torch.finfo(self.dtype).eps * (expected.abs().reshape(count, -1).amax(1) + scale)
        if not (gaps <= limits).all():
            worst = int((gaps / limits).argmax())
            raise NetworkError(
                f"network: the output for one example depends on the rest of the batch: that of example {worst} "
                f"changes by {gaps[worst].item():.3g} in another batch. {_BATCH_CAUSES}"
            )
        return expected


def _own_tensors(
    values: Mapping[str, Tensor], parameters: Mapping[str, Tensor], trainable: set[str]
) -> dict[str, Tensor]:
    """What the private module holds: copies of trainable weights and buffers, and the frozen weights themselves."""
    own: dict[str, Tensor] = {}
    for name, value in values.items():
        if name not in parameters:
            own[name] = value.clone()
        else:
            shared = name not in trainable and not value.is_inference()
            own[name] = nn.Parameter(value if shared else value.clone(), requires_grad=name in trainable)
    return own


def _renorms(module: nn.Module) -> bool:
    """Whether a module scales its weights in forward, as embeddings with max_norm do."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None


def _spreads(module: nn.Module, inputs: Inputs) -> bool:
    """Whether a container of tensors is passed to `forward` as separate arguments instead of as one."""
    if isinstance(inputs, Tensor):
        return False
    try:
        signature = inspect.signature(module.forward)
        signature.bind(**inputs) if isinstance(inputs, dict) else signature.bind(*leaves(inputs))
    except TypeError:
        return False
    return True
