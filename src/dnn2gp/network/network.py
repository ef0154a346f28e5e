"""A network as a pure function of its flat weights, f_w(x): the user's module is read, and never changed."""

from __future__ import annotations

import inspect
from copy import copy
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from dnn2gp.network.eval_mode import evaluation_mode
from dnn2gp.network.inputs import (
    Inputs,
    describe,
    differentiable,
    leaves,
    map_inputs,
    num_examples,
    repack,
    same_form,
    take,
)
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError, NetworkError, TrainModeWarning, warn_user
from dnn2gp.support.randomness import global_states_kept

_BATCH_CAUSES = (
    "Look for (a) batch normalisation with track_running_stats=False, (b) forward code that uses batch statistics; "
    "such a network has no Jacobian per example."
)


class Network:
    """f_w(x) ∈ R^K with w ∈ R^P the weights that require a gradient, each counted once.

    The module is evaluated in eval mode with the weights and buffers that it had when it was wrapped; what the user
    does to the module's weights afterwards does not reach this function, and nothing here reaches the module: its mode,
    attributes and hooks are after each call as they were before it, and so are the global random generators.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        module: object,
        inputs: Inputs,
        *,
        state: dict[str, Tensor] | None = None,
        trainable: list[str] | None = None,
    ) -> None:
        """Wrap `module`; `inputs` are a few examples that tell its outputs and serve the determinism probe.

        A saved GP brings the weights and buffers by name (`state`) and the names of the weights w (`trainable`).
        """
        module = _check_module(module)
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        tensors = {name: tensor.detach().clone() for name, tensor in {**parameters, **buffers}.items()}
        if state is None:
            _warn_if_train_mode(module)
        else:
            _check_state(tensors, state)
            tensors = {name: state[name].to(tensor.device) for name, tensor in tensors.items()}
        if trainable is None:
            trainable = [name for name, parameter in parameters.items() if parameter.requires_grad]
        _check_weights(trainable, tensors)
        self.module = module
        self.layout = Layout(tuple(trainable), tuple(tensors[name].shape for name in trainable))
        self.weights: Float[Tensor, " P"] = self.layout.flatten(tensors)
        self._frozen = {name: tensors[name] for name in parameters if name not in set(trainable)}
        self._buffers = {name: tensors[name] for name in buffers}
        self._spread = _spreads(module, inputs)
        self._example = take(inputs, slice(0, 1))
        self.output_shape = self._probe(inputs)

    @property
    def num_weights(self) -> int:
        """P."""
        return self.layout.num_weights

    @property
    def share(self) -> float:
        """P over the number of all weights, frozen or left out ones too."""
        return self.num_weights / (self.num_weights + sum(tensor.numel() for tensor in self._frozen.values()))

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
        return Network(self.module, self._example, state=self.state(), trainable=names)

    def with_state(self, tensors: dict[str, Tensor]) -> Network:
        """The same function with other values of weights and buffers (all of them, by name), not looked at again."""
        other = copy(self)
        other.weights = self.layout.flatten(tensors)
        other._frozen = {name: tensors[name] for name in self._frozen}
        other._buffers = {name: tensors[name] for name in self._buffers}
        return other

    def state(self) -> dict[str, Tensor]:
        """All weights (frozen ones too) and buffers by name."""
        return {**self.layout.unflatten(self.weights), **self._frozen, **self._buffers}

    def __call__(self, weights: Float[Tensor, " P"], inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) for all examples, flattened to N × K."""
        with global_states_kept(self.device):
            outputs = self._evaluate(weights, inputs)
        if not isinstance(outputs, Tensor):
            raise _no_tensor(outputs)
        return outputs.reshape(num_examples(inputs), -1)

    def check_inputs(self, inputs: Inputs, *, keep_graph: bool = False) -> Inputs:
        """Move inputs to the device of the weights; refuse other float dtypes, non-finite values and other forms.

        `keep_graph`: inputs that require a gradient go on doing so, so that results can be differentiated.
        """
        for leaf in leaves(inputs):
            if leaf.is_floating_point() and leaf.dtype != self.dtype:
                raise InputError(
                    f"inputs: the network's weights are {self.dtype} but the inputs are {leaf.dtype}. "
                    f"Convert one of them: inputs.to({self.dtype}) or network.to({leaf.dtype})."
                )
            if leaf.is_floating_point() and not leaf.isfinite().all():
                row = int((~leaf.isfinite()).reshape(len(leaf), -1).any(1).nonzero()[0])
                raise InputError(f"inputs: example {row} holds NaN or infinity. Remove or impute such examples.")
        keep_graph = keep_graph and differentiable(inputs)
        inputs = map_inputs(lambda leaf: (leaf if keep_graph else leaf.detach()).to(self.device), inputs)
        return inputs if same_form(inputs, self._example) else self._adapted(inputs)

    def _adapted(self, inputs: Inputs) -> Inputs:
        """Inputs of another form than those of the construction, if the network gives the same outputs for them."""
        known = self._example
        repacked = repack(inputs, known)
        if repacked is None:
            raise InputError(
                f"inputs: expected the container that the network was converted with, {describe(known)}; "
                f"got {describe(inputs)}. Pack them as the training inputs were."
            )
        inputs = repacked
        with torch.no_grad(), global_states_kept(self.device):
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
        """The module's outputs at its own weights, or an error that says for which inputs it has none."""
        try:
            return self._evaluate(self.weights, inputs)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
            known = "" if same_form(inputs, self._example) else f"Expected are inputs like {describe(self._example)}. "
            raise InputError(
                f"inputs: the network's forward fails on {describe(inputs)}: {error}. {known}Check that "
                "network(inputs) runs in eval mode on a batch of such examples."
            ) from error

    def _alone(self, inputs: Inputs) -> object:
        """The outputs of the first example as a batch of its own."""
        try:
            return self._tried(take(inputs, slice(0, 1)))
        except InputError as error:
            raise NetworkError(
                f"The network's forward works on a batch of {num_examples(inputs)}, but not on one example alone: "
                f"{error.__cause__}. {_BATCH_CAUSES}"
            ) from error

    def _evaluate(self, weights: Tensor, inputs: Inputs) -> object:
        """One call of the module, in eval mode, on copies of inputs and buffers (a layer may work in place)."""
        inputs = map_inputs(torch.clone, inputs)
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        tensors = {**self.layout.unflatten(weights), **self._frozen, **buffers}
        args, kwargs = self._arguments(inputs)
        with evaluation_mode(self.module):
            return functional_call(self.module, tensors, args, kwargs)

    def call_module(self, inputs: Inputs) -> object:
        """The module itself, as it is now, on copies of these inputs."""
        args, kwargs = self._arguments(map_inputs(torch.clone, inputs))
        return self.module(*args, **kwargs)

    def _arguments(self, inputs: Inputs) -> tuple[tuple, dict[str, Tensor]]:
        """The inputs as `forward` takes them."""
        if self._spread and isinstance(inputs, dict):
            return (), inputs
        return (tuple(inputs) if self._spread and not isinstance(inputs, Tensor) else (inputs,)), {}

    def _probe(self, inputs: Inputs) -> tuple[int, ...]:
        """Check on a few examples that f_w(x) is one deterministic function of each example alone."""
        few = self.check_inputs(take(inputs, slice(0, min(4, num_examples(inputs)))))
        with torch.no_grad(), global_states_kept(self.device):
            first, second = (_checked_outputs(self._tried(few), num_examples(few), self.dtype) for _ in range(2))
            if not torch.equal(first, second):
                raise NetworkError(
                    "The network is not deterministic in eval mode: two passes over the same inputs differ by up to "
                    f"{(first - second).abs().max().item():.3g}. Look for (a) functional dropout with training=True, "
                    "(b) layers that ignore eval mode, (c) random numbers drawn in forward; switch them off."
                )
            alone = _checked_outputs(self._alone(few), 1, self.dtype)
        if alone.shape[1:] != first.shape[1:]:
            raise NetworkError(
                f"The network's output for an example has the shape {tuple(alone.shape[1:])} alone, but "
                f"{tuple(first.shape[1:])} in a batch of {len(first)}. Look for squeeze() or reshape in forward; "
                "expected is one row an example, whatever the batch."
            )
        gap = (alone[0] - first[0]).abs().max().item()
        if gap > 1e3 * torch.finfo(self.dtype).eps * (first[0].abs().max().item() + 1.0):
            raise NetworkError(
                f"The network's output for an example depends on the rest of the batch (by {gap:.3g}). {_BATCH_CAUSES}"
            )
        return tuple(first.shape[1:])


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


def _warn_if_train_mode(module: nn.Module) -> None:
    changing = (part for part in module.modules() if part.training and isinstance(part, _NormBase | _DropoutNd))
    kinds = {type(part).__name__ for part in changing}
    if kinds:
        warn_user(
            f"The network came in train mode with layers that behave differently there ({', '.join(sorted(kinds))}). "
            "dnn2gp evaluates it in eval mode (dropout off, running statistics) and leaves it as it came. "
            "Call network.eval() first to silence this.",
            TrainModeWarning,
        )


def _check_module(module: object) -> nn.Module:
    if not isinstance(module, nn.Module):
        form = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise NetworkError(
            f"network: expected a torch.nn.Module; got {form}. Pass the trained module, or wrap a function in one."
        )
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise NetworkError(
            "network: expected a plain torch.nn.Module; got one with TorchScript, whose weights cannot be exchanged. "
            "Pass the module that was scripted or traced."
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise NetworkError(
            f"network: expected a module on one device; got {type(module).__name__}, which spreads its examples over "
            "several. Pass network.module."
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise NetworkError(
                f"The weight {name!r} of a lazy layer has no shape yet. Call network(inputs) once, and train it."
            )
        if tensor.is_meta:
            raise NetworkError(
                f"The weight {name!r} is on the meta device and has no values. Load the trained weights first, e.g. by "
                "network.to_empty(device='cpu') and network.load_state_dict(...)."
            )
    return module


def _check_weights(trainable: list[str], tensors: dict[str, Tensor]) -> None:
    if not trainable:
        raise NetworkError(
            "The network has no weight that requires a gradient. Unfreeze at least one: parameter.requires_grad_(True)."
        )
    kinds: dict[str, str] = {}
    for name in trainable:
        kinds.setdefault(f"{tensors[name].dtype} on {tensors[name].device}", name)
    dtype = tensors[trainable[0]].dtype
    if len(kinds) > 1 or dtype not in (torch.float32, torch.float64):
        found = ", ".join(f"{kind} ({name!r})" for kind, name in kinds.items())
        raise NetworkError(
            f"The network: expected trainable weights of one dtype, float32 or float64, on one device; got {found}. "
            "Use network.float() or network.double(), and network.to(device)."
        )
    for name in trainable:
        if not tensors[name].isfinite().all():
            raise NetworkError(
                f"The weight {name!r} holds NaN or infinity; the training has diverged. Train again with a smaller "
                "learning rate, or load an earlier checkpoint."
            )


def _check_state(tensors: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    missing, extra = sorted(set(tensors) - set(state)), sorted(set(state) - set(tensors))
    wrong = [n for n in tensors if n in state and tensors[n].shape != state[n].shape]
    kinds = {"not in the file": missing, "only in the file": extra, "of another shape": wrong}
    found = "; ".join(f"{what}: {names[:5]}" for what, names in kinds.items() if names)
    if found:
        raise NetworkError(
            f"The network does not fit the saved one, weights and buffers {found}. "
            "Build it with the arguments that it had when it was saved."
        )


def _no_tensor(outputs: object) -> NetworkError:
    return NetworkError(
        f"The network must return one tensor of outputs; it returned {type(outputs).__name__}. "
        "Wrap it in a module whose forward returns the tensor (e.g. the logits)."
    )


def _checked_outputs(outputs: object, count: int, dtype: torch.dtype) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise _no_tensor(outputs)
    if outputs.ndim == 0 or len(outputs) != count or outputs.numel() == 0:
        raise NetworkError(
            f"The network must return one row an example: expected first axis {count} and at least one output, got "
            f"shape {tuple(outputs.shape)}. Look for squeeze(), a transpose or a mean over the batch in forward."
        )
    if outputs.dtype != dtype:
        raise NetworkError(
            f"The network's outputs are {outputs.dtype}, its weights {dtype}; they must be the same. Return outputs of "
            "that dtype from forward, and call dnn2gp outside of torch.autocast."
        )
    if not outputs.isfinite().all():
        raise NetworkError(
            "The network's outputs hold NaN or infinity on the given inputs. Look at its frozen weights and buffers, "
            "and at the scale of the inputs."
        )
    return outputs
