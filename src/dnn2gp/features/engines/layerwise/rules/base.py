"""Rules: from a call of a torch function with weights among its arguments to the Jacobian of these weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dnn2gp.features.blocks import Block
from dnn2gp.features.engines.layerwise.places import BatchAxis, FlatWeights


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """One use of weights in a forward pass, kept until the gradients with respect to its output are known."""

    parts: tuple[slice, ...]
    output_shape: tuple[int, ...]

    cotangent_axis: ClassVar[int] = 1
    """The position of the axis of the R cotangents in memory, among the axes of the call's output."""

    @property
    def at_once(self) -> int | None:
        """How many cotangents are condensed together, which bounds the gradients that are kept; None for all."""
        return None

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The sizes of the axes that may count the examples."""

    @property
    @abstractmethod
    def kept(self) -> Tensor | None:
        """The tensor of the network that is kept and must not be changed in place meanwhile."""

    def summed(self, num_rows: int) -> Use:
        """The same use in a form that needs fewer gradients for each of R cotangents, if there is one."""
        return self

    @property
    def edge(self) -> GradientEdge | None:
        """Where this use takes its gradients, if not at the output of its call."""
        return None

    def pooled(self, indices: Tensor, edge: GradientEdge) -> Use:
        """The same use if only max_pool(z) is used afterwards: which positions of z were selected, and where
        the gradient with respect to the result is."""
        return self

    def condensed(self, gradients: Float[Tensor, "R ..."]) -> Float[Tensor, "R ..."]:
        """The part or sum of the gradients that `block` needs; only this is kept for every cotangent."""
        return gradients

    @abstractmethod
    def block(self, gradients: Float[Tensor, "R ..."], examples: BatchAxis, num_examples: int) -> Block:
        """The Jacobian of the weights, from the gradients of R functions with respect to the call's output."""


Rule = Callable[[FlatWeights, tuple[Any, ...], dict[str, Any], Tensor], "Use | tuple[Use, ...] | None"]


class Rules:
    """The rules, one for each torch function; the bodies of functions that are composed of simpler ones; and other
    forms of functions, with the same results up to rounding, that are cheaper to differentiate."""

    rules: ClassVar[dict[Callable[..., Any], Rule]] = {}
    bodies: ClassVar[dict[Callable[..., Any], Callable[..., Any]]] = {}
    forms: ClassVar[dict[Callable[..., Any], Callable[..., Any]]] = {}


def rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register a rule for torch functions, e.g. `@rule(torch.nn.functional.linear)`.

    A rule gets the flat weights, the arguments and the output of a call. It returns a `Use`, or None for a call that it
    does not cover, whose weights are then left to the general engine.
    """

    def register(function: Rule) -> Rule:
        Rules.rules.update(dict.fromkeys(functions, function))
        return function

    return register


def body(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register another way to compute a torch function, by calls that have rules."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        Rules.bodies.update(dict.fromkeys(functions, function))
        return function

    return register


def form(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register another form of a torch function, with the same results, that is cheaper to differentiate."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        Rules.forms.update(dict.fromkeys(functions, function))
        return function

    return register


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return args[position] if len(args) > position else kwargs.get(name, default)
