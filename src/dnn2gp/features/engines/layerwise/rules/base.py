"""What a rule is: from a call of a torch function with weights among its arguments to the Jacobian of those weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block
from dnn2gp.features.engines.layerwise.batching import BatchAxis
from dnn2gp.features.engines.layerwise.weights import FlatWeights


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """One use of weights in a forward pass: what is kept of the call until the gradients of its output are known."""

    parts: tuple[slice, ...]
    output_shape: tuple[int, ...]

    cotangent_axis: ClassVar[int] = 1
    """Where the R cotangents lie in the memory of the gradients, among the axes of the call's output."""

    @property
    def at_once(self) -> int | None:
        """The cotangents whose gradients are condensed together, so that no more are kept; None for all of them."""
        return None

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The sizes of the axes among which the examples are."""

    @property
    @abstractmethod
    def kept(self) -> Tensor | None:
        """The tensor of the network that is kept, which must not be changed in place before it is used."""

    def summed(self) -> Use:
        """The same use, where it can be had without keeping the gradients at all positions for every cotangent."""
        return self

    def condensed(self, gradients: Float[Tensor, "R ..."]) -> Float[Tensor, "R ..."]:
        """What `block` needs of the gradients, if that is less than all of them: they are kept for every cotangent."""
        return gradients

    @abstractmethod
    def block(self, gradients: Float[Tensor, "R ..."], examples: BatchAxis, num_examples: int) -> Block:
        """The Jacobian of the weights, from the gradients of R functions with respect to the call's output."""


Rule = Callable[[FlatWeights, tuple[Any, ...], dict[str, Any], Tensor], "Use | tuple[Use, ...] | None"]


class Rules:
    """The rules, one for each torch function, and the bodies of functions that are made of simpler ones."""

    rules: ClassVar[dict[Callable[..., Any], Rule]] = {}
    bodies: ClassVar[dict[Callable[..., Any], Callable[..., Any]]] = {}


def rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register a rule for torch functions, e.g. `@rule(torch.nn.functional.linear)`.

    A rule gets the flat weights, the arguments and the output of a call; it returns what to keep (a `Use`), or None
    where it does not know this kind of call, whose weights are then left to the general engine.
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


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return args[position] if len(args) > position else kwargs.get(name, default)
