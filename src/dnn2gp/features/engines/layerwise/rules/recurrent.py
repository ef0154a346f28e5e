"""Recurrent layers, unrolled: each weight is a linear map that is used at every time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dnn2gp.features.engines.layerwise.rules.base import body

Step = Callable[[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Tensor, ...]]


def _gates(x: Tensor, h: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """W_i x + b_i and W_h h + b_h."""
    own, state, *biases = weights
    bias, state_bias = biases if biases else (None, None)
    return F.linear(x, own, bias), F.linear(h, state, state_bias)


def _lstm_step(x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """i, f, g, o = W_i x + W_h h + b;  c' = σ(f) c + σ(i) tanh(g);  h' = σ(o) tanh(c')."""
    from_input, from_state = _gates(x, state[0], weights)
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """r, z = σ(·);  n = tanh(W_in x + b + r (W_hn h + b));  h' = (1 − z) n + z h."""
    from_input, from_state = _gates(x, state[0], weights)
    ri, zi, ni = from_input.chunk(3, -1)
    rh, zh, nh = from_state.chunk(3, -1)
    z = (zi + zh).sigmoid()
    n = (ni + (ri + rh).sigmoid() * nh).tanh()
    return (n + z * (state[0] - n),)


def _tanh_step(x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """h' = tanh(W_i x + W_h h + b)."""
    from_input, from_state = _gates(x, state[0], weights)
    return ((from_input + from_state).tanh(),)


def _relu_step(x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """h' = max(W_i x + W_h h + b, 0)."""
    from_input, from_state = _gates(x, state[0], weights)
    return ((from_input + from_state).relu(),)


def _scan(step: Step, xs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...], backward: bool) -> tuple:
    """The states at all times, and the last one."""
    outputs = []
    for x in reversed(xs.unbind(0)) if backward else xs.unbind(0):
        state = step(x, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


def _unrolled(
    step: Step,
    xs: Tensor,
    states: tuple[Tensor, ...],
    flat: list[Tensor],
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers and directions; `states` are (layers · directions) × batch × size each."""
    directions = 2 if bidirectional else 1
    count = len(flat) // (layers * directions)
    xs = xs.transpose(0, 1) if batch_first else xs
    finals = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            which = layer * directions + direction
            own = tuple(flat[which * count : (which + 1) * count])
            output, final = _scan(step, xs, tuple(s[which] for s in states), own, direction == 1)
            outputs.append(output)
            finals.append(final)
        xs = torch.cat(outputs, -1)
    stacked = (torch.stack(part) for part in zip(*finals, strict=True))
    return (xs.transpose(0, 1) if batch_first else xs, *stacked)


def _layers(step: Step) -> Callable[..., Any]:
    """The body of a recurrent function, without packed sequences and projections."""

    def run(*args: Any) -> Any:
        if len(args) != 9 or not isinstance(args[2], list):  # packed sequences bring their batch sizes
            return NotImplemented
        xs, hx, flat, biases, layers, _dropout, _train, bidirectional, batch_first = args
        if len(flat) != (4 if biases else 2) * layers * (2 if bidirectional else 1):  # projections have more
            return NotImplemented
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        return _unrolled(step, xs, states, flat, layers, bidirectional, batch_first)

    return run


def _cell(step: Step) -> Callable[..., Any]:
    """The body of a single step."""

    def run(x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        weights = (w_ih, w_hh) if b_ih is None else (w_ih, w_hh, b_ih, b_hh)
        result = step(x, states, weights)
        (first, *others) = result
        return result if others else first

    return run


for _name, _step in {"lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _tanh_step, "rnn_relu": _relu_step}.items():
    body(getattr(torch._VF, _name))(_layers(_step))
    body(getattr(torch._VF, f"{_name}_cell"))(_cell(_step))
