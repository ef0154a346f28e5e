"""One forward pass in which every use of a weight is noted, and the gradients of those uses' outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from dnn2gp.features.layerwise.rules import Rules, Use
from dnn2gp.features.layerwise.weights import FlatWeights


class Recorder(TorchFunctionMode):
    """Sees every torch function that is called inside it, and notes those that weights go into.

    No hook is put on any module, so there is none to remove, and the user's own hooks run as ever. A function with a
    rule gives a use; one with a body is computed by that body; weights in any other function are `unknown`.
    """

    def __init__(self, weights: FlatWeights, *, copy: bool = False, keep_graph: bool = False) -> None:
        """Note the uses of `weights`; `copy` keeps copies of what networks change in place later, `keep_graph` what is
        needed to differentiate the result with respect to the inputs."""
        super().__init__()
        self.weights, self.copy, self.keep_graph = weights, copy, keep_graph
        self.uses: list[tuple[Use, GradientEdge]] = []
        self.unknown: list[slice] = []
        self.views: list[Tensor] = []
        self._versions: list[tuple[Tensor, int]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Compute the function, and note the weights that went into it."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":  # a property such as w.shape or w.T
            return func(*args, **kwargs)
        given = [value for value in _tensors(args, kwargs) if self.weights.holds(value)]
        if not given:
            return func(*args, **kwargs)
        if func in Rules.bodies:
            with self:
                output = Rules.bodies[func](*args, **kwargs)
            if output is not NotImplemented:
                return output
        if self.copy:
            args = tuple(self._copied(value) for value in args)
        output = func(*args, **kwargs)
        return self._noted(func, args, kwargs, output, given)

    def changed(self) -> bool:
        """Whether the network changed something in place that was kept."""
        return any(tensor._version != version for tensor, version in self._versions)

    def _noted(self, func: Callable[..., Any], args: tuple, kwargs: dict, output: Any, given: list[Tensor]) -> Any:
        results = _tensors((output,), {})
        if all(self.weights.holds(value) for value in results):  # a view of weights, or a size: no use yet
            self.views += results
            return output
        known = None
        if isinstance(output, Tensor) and output.requires_grad and func in Rules.rules:
            output = output.clone() if output._is_view() and not _in_place(func) else output
            known = self._kept(func, args, kwargs, output)
        if known is None or output._is_view():
            self.unknown += [self.weights.extent(value) for value in given]
            return output
        for use in known if isinstance(known, tuple) else (known,):
            self.uses.append((use, get_gradient_edge(output)))
            if use.kept is not None:
                self._versions.append((use.kept, use.kept._version))
        return output

    def _kept(self, func: Callable[..., Any], args: tuple, kwargs: dict, output: Tensor) -> Any:
        """What the rule keeps of a call; without the graph that made its arguments, unless that is asked for."""
        rule = Rules.rules[func]
        if self.keep_graph:
            return rule(self.weights, args, kwargs, output)
        with torch.no_grad():
            plain = tuple(_detached(value) for value in args)
            return rule(self.weights, plain, {name: _detached(value) for name, value in kwargs.items()}, output)

    def _copied(self, value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and not self.weights.holds(value) else value


def gradients(
    outputs: Float[Tensor, "n K"],
    edges: Sequence[GradientEdge],
    cotangents: Float[Tensor, "R n K"],
    *,
    batched: bool,
    create_graph: bool,
) -> list[Float[Tensor, "R ..."] | None]:
    """∂(uᵣᵀ f)/∂z for the output z of every use and R cotangents u: in one batched backward pass, or one after another.

    None for an output that f does not depend on.
    """
    if batched:
        return list(
            torch.autograd.grad(
                outputs, edges, cotangents, is_grads_batched=True, allow_unused=True, create_graph=create_graph
            )
        )
    passes = []
    for position, cotangent in enumerate(cotangents):
        last = position == len(cotangents) - 1 and not create_graph
        passes.append(
            torch.autograd.grad(
                outputs, edges, cotangent, retain_graph=not last, allow_unused=True, create_graph=create_graph
            )
        )
    return [None if column[0] is None else torch.stack(column) for column in zip(*passes, strict=True)]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _tensors(args: tuple, kwargs: dict) -> list[Tensor]:
    """The tensors among the arguments of a call, also in lists."""
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [item for item in value if isinstance(item, Tensor)]
    return found


def _in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")
