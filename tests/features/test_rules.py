"""Each rule of the layerwise engine: all products of one layer against brute force."""

from __future__ import annotations

import pytest
import torch
from features.support import (
    Case,
    assert_cross_kernels,
    assert_kernels,
    assert_products,
    close,
    constant,
    engine,
    explicit,
    first,
    kernel,
    rand_tokens,
    randn,
    tight_budget,
    various,
)
from torch import Tensor, nn


class Function(nn.Module):
    """A function of the inputs and of one named weight."""

    def __init__(self, shape: tuple[int, ...], function) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


class Cells(nn.Module):
    """A recurrent cell in a loop over time."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return torch.cat(state, -1) if isinstance(state, tuple) else state


def normal(*shape: int):
    return lambda n: randn(n, *shape)


def normals(*shapes: tuple[int, ...]):
    return lambda n: tuple(randn(n, *shape, seed=i) for i, shape in enumerate(shapes))


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def function(shape: tuple[int, ...], inputs: tuple[int, ...], call) -> Case:
    return Case(lambda: Function(shape, call), normal(*inputs))


def added(x: Tensor, w: Tensor) -> Tensor:
    x = 2 * x
    x += w
    return x


def subtracted(x: Tensor, w: Tensor) -> Tensor:
    return (2 * x).sub_(w)


LINEAR = {
    "linear": Case(lambda: nn.Linear(3, 4), normal(3)),
    "linear, no bias": Case(lambda: nn.Linear(3, 4, bias=False), normal(3)),
    "linear, one input": Case(lambda: nn.Linear(1, 4), normal(1)),
    "linear, one output": Case(lambda: nn.Linear(3, 1), normal(3)),
    "linear, tokens": Case(lambda: nn.Linear(3, 2), normal(4, 3)),
    "linear, many tokens": Case(lambda: nn.Linear(2, 2), normal(20, 2)),
    "linear, tokens, no bias": Case(lambda: nn.Linear(3, 2, bias=False), normal(4, 3)),
    "linear, wide, two tokens": Case(lambda: nn.Linear(16, 12), normal(2, 16)),
    "linear, grid": Case(lambda: nn.Linear(3, 2), normal(2, 3, 3)),
    "linear, frozen weight": Case(lambda: frozen(nn.Linear(3, 4), "weight"), normal(2, 3)),
    "linear, frozen bias": Case(lambda: frozen(nn.Linear(3, 4), "bias"), normal(3)),
    "x @ W": function((3, 2), (3,), lambda x, w: x @ w),
    "x @ W, tokens": function((3, 2), (4, 3), lambda x, w: x @ w),
    "matmul": function((3, 2), (2, 2, 3), torch.matmul),
    "mm": function((3, 2), (3,), torch.mm),
    "x @ W.T": function((2, 3), (4, 3), lambda x, w: x @ w.T),
    "linear, W.mT": function((3, 2), (4, 3), lambda x, w: nn.functional.linear(x, w.mT)),
    "linear, by name": function((2, 3), (3,), lambda x, w: nn.functional.linear(input=x, weight=w)),
}

CONVOLUTION = {
    "conv1d": Case(lambda: nn.Conv1d(2, 3, 3), normal(2, 6)),
    "conv1d, stride, padding, dilation": Case(lambda: nn.Conv1d(2, 3, 2, 2, 1, 2), normal(2, 7)),
    "conv1d, same": Case(lambda: nn.Conv1d(2, 3, 4, padding="same", dilation=3), normal(2, 5)),
    "conv1d, circular": Case(lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), normal(2, 5)),
    "conv2d": Case(lambda: nn.Conv2d(2, 3, 2), normal(2, 4, 3)),
    "conv2d, no bias": Case(lambda: nn.Conv2d(2, 3, 3, bias=False), normal(2, 4, 5)),
    "conv2d, one patch": Case(lambda: nn.Conv2d(2, 3, (4, 3)), normal(2, 4, 3)),
    "conv2d, 1 × 1": Case(lambda: nn.Conv2d(2, 3, 1), normal(2, 2, 2)),
    "conv2d, stride leaves a rest": Case(lambda: nn.Conv2d(2, 2, 2, stride=3), normal(2, 7, 6)),
    "conv2d, uneven": Case(lambda: nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 2), (1, 2)), normal(2, 6, 4)),
    "conv2d, same": Case(lambda: nn.Conv2d(2, 2, (2, 3), padding="same"), normal(2, 3, 4)),
    "conv2d, valid": Case(lambda: nn.Conv2d(2, 2, 2, padding="valid"), normal(2, 3, 4)),
    "conv2d, circular": Case(lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), normal(2, 3, 4)),
    "conv2d, groups": Case(lambda: nn.Conv2d(4, 6, 2, padding=1, groups=2), normal(4, 3, 3)),
    "conv2d, depthwise": Case(lambda: nn.Conv2d(3, 3, 2, groups=3, bias=False), normal(3, 3, 3)),
    "conv2d, depthwise, multiplier": Case(lambda: nn.Conv2d(3, 6, 2, stride=2, groups=3), normal(3, 4, 4)),
    "conv2d, frozen weight": Case(lambda: frozen(nn.Conv2d(2, 3, 2), "weight"), normal(2, 3, 3)),
    "conv2d, frozen bias": Case(lambda: frozen(nn.Conv2d(2, 3, 2), "bias"), normal(2, 3, 3)),
    "conv2d, channels last": Case(
        lambda: nn.Conv2d(2, 3, 2, padding=1),
        normal(2, 3, 3),
        lambda f, x: f(x.contiguous(memory_format=torch.channels_last)),
    ),
    "conv3d": Case(lambda: nn.Conv3d(2, 2, (2, 1, 2), (1, 2, 1), padding=(0, 0, 1)), normal(2, 3, 3, 2)),
    "conv3d, groups": Case(lambda: nn.Conv3d(2, 2, 2, groups=2), normal(2, 2, 3, 2)),
    "conv_transpose1d": Case(lambda: nn.ConvTranspose1d(2, 3, 3, 2, 1, 1), normal(2, 3)),
    "conv_transpose1d, groups": Case(lambda: nn.ConvTranspose1d(4, 2, 2, groups=2), normal(4, 3)),
    "conv_transpose2d": Case(lambda: nn.ConvTranspose2d(2, 3, 2), normal(2, 2, 3)),
    "conv_transpose2d, all options": Case(
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2), groups=2, dilation=(2, 1)), normal(4, 2, 2)
    ),
    "conv_transpose2d, no bias": Case(lambda: nn.ConvTranspose2d(2, 2, 2, 2, bias=False), normal(2, 2, 2)),
    "conv_transpose2d, more output padding than padding": Case(
        lambda: nn.ConvTranspose2d(2, 2, 2, stride=3, output_padding=2), normal(2, 2, 2)
    ),
    "conv_transpose2d, frozen weight": Case(lambda: frozen(nn.ConvTranspose2d(2, 3, 2), "weight"), normal(2, 2, 2)),
    "conv_transpose2d, depthwise": Case(lambda: nn.ConvTranspose2d(3, 3, 2, groups=3), normal(3, 2, 2)),
    "conv_transpose3d": Case(lambda: nn.ConvTranspose3d(2, 2, 2, (1, 2, 1), (0, 1, 1)), normal(2, 2, 2, 2)),
}

OTHERS = {
    "embedding": Case(lambda: nn.Embedding(6, 3), lambda n: rand_tokens(6, n, 4)),
    "embedding, one token": Case(lambda: nn.Embedding(6, 3), lambda n: rand_tokens(6, n)),
    "embedding, one entry": Case(lambda: nn.Embedding(1, 3), lambda n: rand_tokens(1, n, 2)),
    "embedding, grid": Case(lambda: nn.Embedding(6, 3), lambda n: rand_tokens(6, n, 2, 3)),
    "embedding, padding": Case(lambda: nn.Embedding(4, 3, padding_idx=1), lambda n: rand_tokens(4, n, 4)),
    "embedding, last is padding": Case(lambda: nn.Embedding(4, 3, padding_idx=-1), lambda n: rand_tokens(4, n, 4)),
    "embedding, int32": Case(lambda: nn.Embedding(6, 3), lambda n: rand_tokens(6, n, 4).int()),
    "embedding, nothing in common": Case(lambda: nn.Embedding(9, 2), lambda n: torch.arange(n)[:, None]),
    "layer norm": Case(lambda: nn.LayerNorm(4), normal(4)),
    "layer norm, tokens": Case(lambda: nn.LayerNorm(4), normal(3, 4)),
    "layer norm, two axes": Case(lambda: nn.LayerNorm((3, 4)), normal(2, 3, 4)),
    "layer norm, no bias": Case(lambda: nn.LayerNorm(4, bias=False), normal(4)),
    "layer norm, frozen weight": Case(lambda: frozen(nn.LayerNorm(4), "weight"), normal(4)),
    "group norm": Case(lambda: nn.GroupNorm(2, 4), normal(4, 3)),
    "group norm, images": Case(lambda: nn.GroupNorm(2, 4), normal(4, 2, 3)),
    "RMS norm": Case(lambda: nn.RMSNorm(4), normal(3, 4)),
    "RMS norm, two axes, eps": Case(lambda: nn.RMSNorm((3, 4), eps=0.1), normal(3, 4)),
    "batch norm": Case(lambda: nn.BatchNorm1d(4, eps=0.1), normal(4)),
    "batch norm, sequences": Case(lambda: nn.BatchNorm1d(4), normal(4, 3)),
    "batch norm, images": Case(lambda: nn.BatchNorm2d(3), normal(3, 2, 2)),
    "instance norm": Case(lambda: nn.InstanceNorm1d(3, affine=True), normal(3, 4)),
    "instance norm, statistics": Case(
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), normal(3, 2, 3)
    ),
    "PReLU": Case(nn.PReLU, normal(6)),
    "PReLU, a slope a channel": Case(lambda: nn.PReLU(3), normal(3, 4)),
    "w + x": function((3,), (2, 3), lambda x, w: w + x),
    "x + w": function((2, 1), (2, 3), lambda x, w: x + w),
    "x + w, larger than x": function((4, 3), (1, 3), lambda x, w: x + w),
    "x += w": function((3,), (2, 3), added),
    "x - w": function((2, 3), (2, 3), lambda x, w: x - w),
    "w - x": function((1, 2, 3), (2, 3), lambda x, w: w - x),
    "x.sub_(w)": function((3,), (2, 3), subtracted),
    "x * w": function((3,), (2, 3), lambda x, w: x * w),
    "w * x": function((2, 1), (2, 3), lambda x, w: w * x),
    "x * w, one number": function((), (2, 3), lambda x, w: x * w),
    "x * w, larger than x": function((4, 3), (1, 3), lambda x, w: torch.mul(x, w)),
}


def attention(call=lambda f, x: f(x, x, x)[0], **options) -> nn.Module:
    return Case(lambda: nn.MultiheadAttention(4, 2, **options), normal(3, 4), call)


def turned(f: nn.Module, *inputs: Tensor) -> Tensor:
    """The examples on axis 1 inside."""
    return f(*(x.transpose(0, 1) for x in inputs))[0].transpose(0, 1)


CROSS = normals((3, 4), (2, 4))
COMPOSED = {
    "self-attention": attention(batch_first=True),
    "self-attention, no weights returned": attention(lambda f, x: f(x, x, x, need_weights=False)[0], batch_first=True),
    "self-attention, no bias": attention(batch_first=True, bias=False, add_zero_attn=True),
    "self-attention, sequence first": attention(lambda f, x: turned(f, x, x, x)),
    "cross-attention": Case(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True), CROSS, lambda f, x, y: f(x, y, y)[0]
    ),
    "cross-attention, sequence first": Case(
        lambda: nn.MultiheadAttention(4, 2), CROSS, lambda f, x, y: turned(f, x, y, y)
    ),
    "attention, other keys and values": Case(
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True),
        normals((3, 4), (2, 3), (2, 5)),
        lambda f, *inputs: f(*inputs)[0],
    ),
    "encoder layer": Case(lambda: nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), normal(3, 4)),
    "encoder layer, norm first": Case(
        lambda: nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, norm_first=True, activation="gelu"), normal(3, 4)
    ),
    "decoder layer": Case(lambda: nn.TransformerDecoderLayer(4, 2, 5, batch_first=True), CROSS),
    "RNN": Case(lambda: nn.RNN(3, 4, batch_first=True), normal(3, 3), lambda f, x: f(x)[0]),
    "RNN, relu, sequence first": Case(lambda: nn.RNN(3, 4, nonlinearity="relu"), normal(3, 3), turned),
    "RNN, last state": Case(
        lambda: nn.RNN(3, 2, 2, batch_first=True, bidirectional=True),
        normal(3, 3),
        lambda f, x: f(x)[1].transpose(0, 1),
    ),
    "LSTM": Case(lambda: nn.LSTM(3, 2, batch_first=True), normal(3, 3), lambda f, x: f(x)[0]),
    "LSTM, sequence first, no bias": Case(lambda: nn.LSTM(3, 2, bias=False), normal(3, 3), turned),
    "LSTM, two layers, both ways": Case(
        lambda: nn.LSTM(3, 2, 2, batch_first=True, bidirectional=True, dropout=0.5), normal(3, 3), lambda f, x: f(x)[0]
    ),
    "LSTM, last states": Case(
        lambda: nn.LSTM(3, 2, 2, batch_first=True),
        normal(3, 3),
        lambda f, x: torch.cat(f(x)[1], -1).transpose(0, 1),
    ),
    "LSTM, given states": Case(
        lambda: nn.LSTM(3, 2),
        normals((3, 3), (1, 2), (1, 2)),
        lambda f, x, h, c: f(x.transpose(0, 1), (h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()))[
            0
        ].transpose(0, 1),
    ),
    "GRU": Case(lambda: nn.GRU(3, 2, batch_first=True), normal(3, 3), lambda f, x: f(x)[0]),
    "GRU, two layers, both ways, no bias": Case(
        lambda: nn.GRU(3, 2, 2, bidirectional=True, bias=False), normal(3, 3), turned
    ),
    "RNN cell": Case(lambda: Cells(nn.RNNCell(3, 4)), normal(3, 3)),
    "RNN cell, relu, no bias": Case(lambda: Cells(nn.RNNCell(3, 4, False, "relu")), normal(3, 3)),
    "LSTM cell": Case(lambda: Cells(nn.LSTMCell(3, 2)), normal(3, 3)),
    "GRU cell": Case(lambda: Cells(nn.GRUCell(3, 2)), normal(3, 3)),
}

RULES = {**LINEAR, **CONVOLUTION, **OTHERS, **COMPOSED}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_every_product(name):
    """All of them, with no weight left to the general engine."""
    module, inputs = RULES[name].network()
    features = engine(module, inputs)
    assert features.rest is None
    assert_products(features, inputs, explicit(module, inputs))


# One or two cases of each rule and of each way of calling it.
KINDS = ["linear", "linear, one output", "linear, tokens", "linear, many tokens", "x @ W", "x @ W, tokens", "x @ W.T"]
KINDS += ["conv1d", "conv2d", "conv2d, one patch", "conv2d, groups", "conv2d, depthwise", "conv3d", "conv_transpose1d"]
KINDS += ["conv_transpose2d, all options", "conv_transpose3d", "embedding", "embedding, one token", "layer norm"]
KINDS += ["layer norm, tokens", "group norm", "RMS norm", "batch norm", "batch norm, images", "instance norm", "PReLU"]
KINDS += ["x + w", "x - w", "x * w", "x * w, one number", "self-attention", "cross-attention, sequence first"]
KINDS += ["encoder layer", "RNN", "RNN, last state", "LSTM, sequence first, no bias", "GRU", "LSTM cell"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_few_examples_and_one_output(name):
    """Learned from one example, which may be all there is; K = 1."""
    module, inputs = RULES[name].network(3, outputs=1)
    features = engine(module, first(inputs, 1))
    assert features.rest is None
    J = explicit(module, inputs)
    for count in (1, 2, 3):
        close(features.jacobian(first(inputs, count)), J[:count])


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_single_precision(name):
    """To 1e-5 of the largest entry."""
    module, inputs = RULES[name].network(4)
    leaves = inputs if isinstance(inputs, tuple) else (inputs,)
    narrow = tuple(leaf.float() if leaf.is_floating_point() else leaf for leaf in leaves)
    inputs = narrow if isinstance(inputs, tuple) else narrow[0]
    features = engine(module.float(), inputs)
    assert features.rest is None
    J = explicit(module, inputs)
    close(features.jacobian(inputs), J, 1e-5)
    close(features.ggn_diagonal(inputs, torch.ones(len(J), 2, 1)), J.sum(1).square().sum(0), 1e-5)
    close(features.kernel_full(inputs, constant(features)), kernel(J, constant(features)), 1e-5)


CHUNKED = ["linear", "linear, tokens", "linear, wide, two tokens", "conv2d", "conv2d, groups", "conv_transpose2d"]
CHUNKED += ["embedding", "layer norm, tokens", "x * w", "RNN"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, constant) for name in CHUNKED), ("linear", various), ("conv2d", various)]
)
def test_more_examples_than_a_chunk(name, kind):
    """Under a budget that is only just enough."""
    module, inputs = RULES[name].network(7)
    features = engine(module, inputs)
    J, precision = explicit(module, inputs), kind(features)
    assert tight_budget(features, lambda: features.kernel_full(inputs, precision)) >= 3
    close(features.kernel_full(inputs, precision), kernel(J, precision))
    tight_budget(features, lambda: assert_kernels(features, inputs, J, precision))
    assert_kernels(features, inputs, J, precision)
    assert_cross_kernels(features, inputs, J, precision)
    v, u = randn(J.shape[2], 5), randn(7, 2, 5)
    assert tight_budget(features, lambda: features.jvp(inputs, v), lambda: features.vjp(inputs, u)) >= 4
    close(features.jvp(inputs, v), J @ v)
    close(features.vjp(inputs, u), torch.einsum("nkp,nks->ps", J, u))
    close(features.pull_each(inputs, u[..., 0].contiguous()), torch.einsum("nkp,nk->np", J, u[..., 0]))
    close(features.ggn_diagonal(inputs, u[..., :2]), (u[..., :2].mT @ J).square().sum((0, 1)))


def test_the_rules_need_no_jacobian_for_one_scale():
    """With one precision for all weights a kernel of wide layers is planned with less memory than their rows take."""
    module, inputs = Case(lambda: nn.Linear(60, 50), normal(60)).network(20)
    features = engine(module, inputs)
    plan = features.plan("kernel_full", inputs)
    assert plan.bytes - plan.result_bytes < 20 * 8 * 2 * features.num_weights / 2
