"""Recording every use of a weight in a forward pass, and the gradients with respect to the outputs of these uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from dnn2gp.features.engines.layerwise.places import FlatWeights
from dnn2gp.features.engines.layerwise.rules import Rules, Use
from dnn2gp.features.engines.plain_passes import backward

_RELU = frozenset({torch.relu, F.relu, Tensor.relu})
# Max-poolings, with the number of axes of a batch of inputs.
_MAX_POOL = {F.max_pool1d: 3, F.max_pool2d: 4, F.max_pool3d: 5}


class UseRecorder(TorchFunctionMode):
    """Intercepts every torch function that is called inside it, and records those that have weights as arguments.

    No hook is registered on any module, so there is none to remove, and the user's own hooks run as usual. A
    function with a rule gives a use; one with a body is computed by that body; weights in any other function are
    `unknown`.
    """

    def __init__(self, weights: FlatWeights, *, keep_graph: bool = False) -> None:
        """Record the uses of `weights`; `keep_graph` keeps what derivatives with respect to the inputs need."""
        super().__init__()
        self.weights, self.keep_graph = weights, keep_graph
        self.uses: list[tuple[Use, GradientEdge]] = []
        self.unknown: list[slice] = []
        self.views: list[Tensor] = []
        self.calls: list[tuple[list[Tensor], list[Tensor]]] = []
        """The weights and the results of every function that has weights as arguments, in order."""
        self.rearranges = False
        """Whether the network selects or sorts by value, so that examples may be elsewhere the next time."""
        self._versions: list[tuple[Tensor, int]] = []
        self._relu: tuple[Tensor, int, Tensor, int] | None = None
        """The output and input of the last ReLU, with their versions."""
        self._poolings: list[tuple[Tensor, GradientEdge, Tensor, GradientEdge]] = []
        """z, its edge, the positions that max_pool(z) chose, and the edge of the result: of every max-pooling."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":  # a property such as w.shape or w.T
            return func(*args, **kwargs)
        given = [value for value in _tensors(args, kwargs) if self.weights.holds(value)]
        self.rearranges = self.rearranges or _rearranges(func, args)
        if not given:
            return self._computed(func, args, kwargs)
        if func in Rules.bodies:
            with self:
                output = Rules.bodies[func](*args, **kwargs)
            if output is not NotImplemented:
                return output
        output = Rules.forms.get(func, func)(*args, **kwargs)
        return self._noted(func, args, kwargs, output, given)

    def changed(self) -> bool:
        """Whether the network has changed a recorded tensor in place."""
        return any(tensor._version != version for tensor, version in self._versions)

    def _computed(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """A function without weights; max_pool(relu(z)) as relu(max_pool(z)), which is cheaper to differentiate.

        The numbers and derivatives are the same: where the largest entry z of a window is positive it is the same one,
        and elsewhere both derivatives are zero.
        """
        if func in _MAX_POOL and not kwargs.get("return_indices"):
            before = self._before_relu(args)
            if before is not None:
                return torch.relu(self._max_pooled(func, (before, *args[1:]), kwargs))
            return self._max_pooled(func, args, kwargs)
        output = Rules.forms.get(func, func)(*args, **kwargs)
        if func in _RELU and len(args) == 1 and output is not args[0]:
            self._relu = (output, output._version, args[0], args[0]._version)
        return output

    def _max_pooled(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """max_pool(z), whose choice of positions is remembered if z is the output of a use.

        Edges are taken now: once a tensor has been changed in place, its edge is that of the change.
        """
        z = args[0] if args else None
        if not isinstance(z, Tensor) or z.ndim != _MAX_POOL[func]:
            return func(*args, **kwargs)
        if not any(edge.node is z.grad_fn for _, edge in self.uses):
            return func(*args, **kwargs)
        before = get_gradient_edge(z)
        pooled, indices = func(*args, **{**kwargs, "return_indices": True})
        self._poolings.append((z, before, indices, get_gradient_edge(pooled)))
        return pooled

    def end(self, outputs: Tensor) -> None:
        """The forward pass has ended: uses whose output goes into a max-pooling and nowhere else are told so.

        A hook of the user's on that output must see its gradient, so such a use stays as it is.
        """
        if not self._poolings or outputs.grad_fn is None:
            return
        readers = _readers(outputs.grad_fn)
        for z, before, indices, after in self._poolings:
            if not z._backward_hooks and _leads_only_to(after.node, before.node, readers):
                self.uses = [
                    (use.pooled(indices, after) if own.node is before.node else use, own) for use, own in self.uses
                ]
        self._poolings = []

    def _before_relu(self, args: tuple) -> Tensor | None:
        """z, if the first argument is relu(z) and neither was changed in place since."""
        if self._relu is None or not args or args[0] is not self._relu[0]:
            return None
        output, output_version, before, before_version = self._relu
        return before if (output._version, before._version) == (output_version, before_version) else None

    def _noted(self, func: Callable[..., Any], args: tuple, kwargs: dict, output: Any, given: list[Tensor]) -> Any:
        results = _tensors((output,), {})
        if all(self.weights.holds(value) for value in results):  # a view of weights, or a size: no use yet
            self.views += results
            return output
        self.calls.append((given, results))
        known = None
        same_dtype = isinstance(output, Tensor) and output.dtype == given[0].dtype  # else autocast is at work
        if isinstance(output, Tensor) and output.requires_grad and same_dtype and func in Rules.rules:
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
        """The use that the rule makes of a call, without the graph of its arguments unless that is needed."""
        rule = Rules.rules[func]
        if self.keep_graph:
            return rule(self.weights, args, kwargs, output)
        with torch.no_grad():
            plain = tuple(_detached(value) for value in args)
            return rule(self.weights, plain, {name: _detached(value) for name, value in kwargs.items()}, output)


def gradients(
    outputs: Float[Tensor, "n K"],
    uses: Sequence[tuple[Use, GradientEdge]],
    cotangents: Float[Tensor, "R n K"],
    *,
    batched: bool,
    create_graph: bool,
) -> list[Float[Tensor, "R ..."] | None]:
    """∂(uᵣᵀ f)/∂z for the output z of every use and R cotangents u; None for outputs that f does not depend on.

    One batched backward pass for all cotangents, or one pass per cotangent: the latter if a layer has no batching rule,
    if the result is differentiated again, and if activations are large, since each gradient can then be written next to
    those of the other cotangents for the same example. Gradients are condensed here (`Use.condensed`).
    """
    edges = [edge for _, edge in uses]
    if batched:
        found = backward(outputs, edges, cotangents, is_grads_batched=True, allow_unused=True)
        pairs = zip(uses, found, strict=True)
        with torch.no_grad():
            return [None if gradient is None else use.condensed(gradient) for (use, _), gradient in pairs]
    stacks = [_Stack(len(cotangents), use, create_graph) for use, _ in uses]
    for position, cotangent in enumerate(cotangents):
        keep = create_graph or position < len(cotangents) - 1
        found = backward(outputs, edges, cotangent, retain_graph=keep, allow_unused=True, create_graph=create_graph)
        with torch.set_grad_enabled(create_graph):
            for stack, gradient in zip(stacks, found, strict=True):
                if gradient is not None:
                    stack.add(gradient)
    return [stack.result() for stack in stacks]


class _Stack:
    """What a use needs of the gradients of R cotangents, as one tensor R × …

    Gradients are collected in memory with the axis of the cotangents where the use prefers it, and condensed as soon as
    `Use.at_once` of them are there: one matrix product for several cotangents is faster than one for each.
    """

    def __init__(self, count: int, use: Use, create_graph: bool) -> None:
        self.count, self.use, self.create_graph = count, use, create_graph
        self.size = min(count, use.at_once or count)
        self.parts: list[Tensor] = []
        self.values: Tensor | None = None
        self.filled = 0
        self.found: Tensor | None = None
        self.num_found = 0

    def add(self, gradient: Tensor) -> None:
        if self.create_graph or gradient.ndim == 0:
            self.parts.append(self.use.condensed(gradient.unsqueeze(0)))
            return
        if self.size == 1:
            self._keep(self.use.condensed(gradient.unsqueeze(0)))  # of the gradient itself, without a copy
            return
        if self.values is None:
            axis = self.use.cotangent_axis % (gradient.ndim + 1)
            shape = (*gradient.shape[:axis], self.size, *gradient.shape[axis:])
            self.values = gradient.new_empty(shape).movedim(axis, 0)
        self.values[self.filled] = gradient
        self.filled += 1
        if self.filled == self.size and self.size < self.count:
            self._condense()

    def result(self) -> Tensor | None:
        if self.filled:
            self._condense()
        self.values = None
        if self.found is not None or not self.parts:
            return self.found
        return self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)

    def _condense(self) -> None:
        assert self.values is not None
        self._keep(self.use.condensed(self.values[: self.filled]))
        self.filled = 0

    def _keep(self, found: Float[Tensor, "r ..."]) -> None:
        """Put what is needed of r cotangents next to the others; the axis of the examples is first in memory."""
        if len(found) == self.count:
            self.found = found
            return
        if self.found is None:
            self.found = found.new_empty(found.shape[1], self.count, *found.shape[2:]).transpose(0, 1)
        self.found[self.num_found : self.num_found + len(found)] = found
        self.num_found += len(found)


def _readers(node: Node) -> dict[Node, list[Node]]:
    """For each node of the graph below this one, the nodes that read its results, once for each time they do."""
    readers: dict[Node, list[Node]] = defaultdict(list)
    seen, waiting = {node}, [node]
    while waiting:
        reader = waiting.pop()
        for below, _ in reader.next_functions:
            if below is not None:
                readers[below].append(reader)
                if below not in seen:
                    seen.add(below)
                    waiting.append(below)
    return readers


def _leads_only_to(top: Node, node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Whether the results of a node are read once, by one node after another, up to `top`."""
    while node is not top:
        if len(readers[node]) != 1:
            return False
        (node,) = readers[node]
    return True


_BY_VALUE = {"index_select", "gather", "masked_select", "nonzero", "sort", "argsort", "topk", "take_along_dim", "take"}
_BY_VALUE |= {"scatter", "scatter_", "index_put_", "item", "tolist", "__bool__", "__int__", "__float__", "__index__"}


def _rearranges(func: Callable[..., Any], args: tuple) -> bool:
    """Whether a function selects entries of a tensor by the values of another one: x[mask], gather, sort, …"""
    name = getattr(func, "__name__", "")
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(entry, Tensor | list) for entry in index)
    return name in _BY_VALUE


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _tensors(args: tuple, kwargs: dict) -> list[Tensor]:
    """The tensors among the arguments of a call, including those in lists."""
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
