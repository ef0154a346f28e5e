"""The network that an optimizer trains: its weights as one vector, its running statistics, and its feature engine."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.features import LayerwiseFeatures, NetworkFeatures
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network import Network
from dnn2gp.network.data import Data
from dnn2gp.network.eval_mode import keeps_statistics, statistics_mode
from dnn2gp.network.inputs import Inputs, check_inputs, map_inputs, num_examples
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError
from dnn2gp.support.processes import ALONE, Team
from dnn2gp.support.randomness import global_states_kept


class TrainedNetwork:
    """A module whose weights with requires_grad are the mean μ_t of q_t.

    named   these weights by name
    layout  their order in the flat vector
    """

    def __init__(self, module: nn.Module, likelihood: Likelihood, memory_budget: int | None) -> None:
        """Wrap the module as it is now; the engine is built from the first inputs."""
        if not isinstance(module, nn.Module):
            raise InputError(f"network: expected the torch.nn.Module to train; got {type(module).__name__}.")
        self.module, self.likelihood, self.memory_budget = module, likelihood, memory_budget
        self.named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        if not self.named:
            raise InputError(
                "network: expected trainable weights; none requires a gradient. Unfreeze some: "
                "parameter.requires_grad_(True)."
            )
        if any(weight.is_inference() for weight in self.named.values()):
            raise InputError(
                "network: expected weights that can be trained; got weights that were made in torch.inference_mode(). "
                "Build or load the network outside of it."
            )
        self.layout = Layout(tuple(self.named), tuple(weight.shape for weight in self.named.values()))
        first = next(iter(self.named.values()))
        self._made_for = first.dtype, first.device
        self._features: NetworkFeatures | None = None
        self._fixed: dict[str, Tensor] = {}
        """Copies of frozen weights and buffers."""
        self._statistics: dict[Tensor, Tensor] = {}
        """Buffer → the running statistics that it held before the step that has begun."""

    def mean(self) -> Float[Tensor, " P"]:
        """μ_t, a copy."""
        with torch.no_grad():
            return self.layout.flatten(dict(self.named))

    def write(self, mean: Float[Tensor, " P"]) -> None:
        """Write μ_t into the module, completely or, after an interrupt, not at all."""
        before = self.mean()
        try:
            self._copy(mean)
        except BaseException:
            self._copy(before)
            raise

    @torch.no_grad()
    def _copy(self, mean: Float[Tensor, " P"]) -> None:
        for name, value in self.layout.unflatten(mean).items():
            self.named[name].copy_(value)

    def write_grads(self, gradient: Float[Tensor, " P"]) -> tuple[Tensor, ...]:
        """Write a gradient into the weights' `grad`, and return copies of it."""
        shown = self.layout.unflatten(gradient)
        for name, weight in self.named.items():
            weight.grad = shown[name].clone()
        return tuple(shown.values())

    def touched(self, written: tuple[Tensor, ...]) -> bool:
        """Whether the weights' `grad` differs from what was written."""
        grads = [weight.grad for weight in self.named.values()]
        return any(grad is None or not torch.equal(grad, own) for grad, own in zip(grads, written, strict=False))

    def read_grads(self) -> Float[Tensor, " P"]:
        """The weights' `grad` as one vector."""
        missing = [name for name, weight in self.named.items() if weight.grad is None]
        if missing:
            raise InputError(
                f"step: expected the grad that backward() wrote for every weight; got None for {', '.join(missing)}. "
                "To discard a step that has begun, call optimizer.zero_grad()."
            )
        return torch.cat(
            [weight.grad.detach().reshape(-1) for weight in self.named.values() if weight.grad is not None]
        )

    def check(self) -> None:
        """The trainable weights must be those that the optimizer was created for."""
        now = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        replaced = {name for name, weight in now.items() if name in self.named and weight is not self.named[name]}
        changed = sorted({*now} ^ {*self.named} | replaced)
        if changed:
            raise InputError(
                f"network: expected the trainable weights that the optimizer was created for; {', '.join(changed)} "
                "was frozen, unfrozen or replaced. Create a new optimizer after such a change."
            )
        weight, (dtype, device) = next(iter(now.values())), self._made_for
        if (weight.dtype, weight.device) != (dtype, device):
            raise InputError(
                f"network: expected {dtype} on {device}, for which the optimizer was created; got {weight.dtype} on "
                f"{weight.device}. Call network.to() before creating the optimizer."
            )

    def batch(self, inputs: object, targets: object) -> Data:
        """Inputs and targets in the canonical form of network and likelihood."""
        self.check()
        found = check_inputs(inputs)
        function = self._engine(found).network
        checked = function.check_inputs(found)
        own = self.likelihood.targets_for(targets, num_examples(checked), function.output_shape, function.dtype)
        return Data(checked, own.to(function.device))

    def features(self, inputs: Inputs | None = None) -> NetworkFeatures:
        """The engine for the network as it is now; frozen weights and buffers may have changed since the last call."""
        engine = self._features if inputs is None else self._engine(inputs)
        assert engine is not None
        network = engine.network.with_state(self._tensors())
        return engine.at(network.weights, network)

    def _engine(self, inputs: Inputs) -> NetworkFeatures:
        """The engine, built from the first inputs."""
        if self._features is None:
            function = Network(self.module, inputs, state=self._tensors(), trainable=list(self.named))
            self.likelihood.check_outputs(function.output_shape)
            checked = function.check_inputs(inputs)
            self._features = LayerwiseFeatures(function, checked, memory_budget=self.memory_budget)
        return self._features

    def _tensors(self) -> dict[str, Tensor]:
        """Copies of all weights and buffers, so that GPs built from them do not change with the training.

        A tensor that is unchanged since the last call (a frozen layer) is not copied again.
        """
        found = {name: weight.detach() for name, weight in self.named.items()}
        for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            if name not in found:
                known = self._fixed.get(name)
                if known is None or known.dtype != tensor.dtype or not torch.equal(known, tensor):
                    self._fixed[name] = tensor.detach().clone()
                found[name] = self._fixed[name]
        return found

    def refresh_statistics(self, inputs: Inputs, team: Team = ALONE) -> None:
        """If BatchNorm is in train mode, update its running statistics with one pass at the mean.

        The step itself keeps them fixed: with batch statistics, an example would have no gradient of its own.
        """
        moving = [part for part in self.module.modules() if part.training and keeps_statistics(part)]
        if not moving:
            return
        if team.size > 1:
            raise InputError(
                "network: with processes=, the running statistics of batch normalisation cannot be updated, because "
                "each process sees only its share of a batch. Switch these layers to eval mode, or use layers without "
                "running statistics, such as GroupNorm."
            )
        for buffer in (buffer for part in moving for buffer in part.buffers(recurse=False)):
            self._statistics.setdefault(buffer, buffer.clone())
        with torch.no_grad(), global_states_kept(), statistics_mode(self.module):
            try:
                args, kwargs = self._engine(inputs).network.arguments(map_inputs(torch.clone, inputs))
                self.module(*args, **kwargs)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):  # torch's wording; any other error passes through
                    raise
                raise InputError(
                    f"Batch normalisation in train mode cannot compute the statistics of this batch ({error}). Drop "
                    "a last batch of one example (drop_last=True), or switch the network to eval mode."
                ) from error

    def keep_statistics(self) -> None:
        """Accept the updated running statistics once a step is finished."""
        self._statistics = {}

    def restore_statistics(self) -> None:
        """Undo the updates of a step that is discarded."""
        for buffer, value in self._statistics.items():
            buffer.copy_(value)
        self._statistics = {}
