"""More layer kinds of the network fuzzer: forwards that treat weights, examples or gradients in unusual ways."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from robust.layer_forms import Calls, linear, weight

# Examples elsewhere than along the first axis -------------------------------------------------------------------------


def tokens_first(m: Calls, h: Tensor) -> Tensor:
    return m.inner(h.transpose(0, 1)).transpose(0, 1)


def merged_tokens(m: Calls, h: Tensor) -> Tensor:
    return m.inner(h.reshape(-1, 4)).reshape(len(h), -1)


def merged_tokens_first(m: Calls, h: Tensor) -> Tensor:
    return m.inner(h.transpose(0, 1).reshape(-1, 4)).unflatten(0, (4, len(h))).transpose(0, 1)


def recurrence_over_tokens_first(m: Calls, h: Tensor) -> Tensor:
    return m.inner(h.transpose(0, 1))[0].transpose(0, 1)


def attention_over_tokens_first(m: Calls, h: Tensor) -> Tensor:
    turned = h.transpose(0, 1)
    return m.inner(turned, turned, turned, need_weights=False)[0].transpose(0, 1)


def packed(m: Calls, h: Tensor) -> Tensor:
    """Sequences whose lengths depend on their values, packed and sorted by length."""
    lengths = 1 + (h[:, :, 0] > 0).sum(1).clamp(max=3)
    found = m.inner(pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False))[0]
    return pad_packed_sequence(found, batch_first=True, total_length=4)[0]


def sorted_examples(m: Calls, h: Tensor) -> Tensor:
    order = h[:, 0].argsort()
    return m.inner(h[order])[order.argsort()]


def one_by_one(m: Calls, h: Tensor) -> Tensor:
    return torch.stack([torch.tanh(m.inner(one)) for one in h])


def few_apart(m: Calls, h: Tensor) -> Tensor:
    """The same function in two ways, by the number of examples."""
    return m.inner(h) if len(h) < 3 else h @ m.inner.weight.T + m.inner.bias


def repeated(m: Calls, h: Tensor) -> Tensor:
    """Each example twice, with two signs."""
    signs = torch.tensor([1.0, -0.5], dtype=h.dtype).repeat(len(h))[:, None]
    return torch.tanh(m.inner(h.repeat_interleave(2, 0) * signs)).unflatten(0, (len(h), 2)).sum(1)


def doubled_batch(m: Calls, h: Tensor) -> Tensor:
    """The batch and its mirror image, one after the other."""
    left, right = torch.tanh(m.inner(torch.cat([h, -h]))).chunk(2)
    return left * right


def examples_as_groups(m: Calls, h: Tensor) -> Tensor:
    """Examples as the groups of one convolution."""
    kernels = m.w.repeat(len(h), 1, 1)
    return F.conv1d(h.reshape(1, -1, 4), kernels, groups=len(h)).reshape(len(h), -1)


def halves(m: Calls, h: Tensor) -> Tensor:
    """The examples in two parts of different size."""
    cut = (len(h) + 1) // 2
    return torch.cat([m.inner(h[:cut]), m.inner(h[cut:])])


EXAMPLES: dict[str, Callable[[], nn.Module]] = {
    "tokens first": lambda: Calls(tokens_first, 4, 4, inner=linear(4, 3)),
    "merged tokens": lambda: Calls(merged_tokens, 4, 4, inner=linear(4, 3)),
    "merged tokens first": lambda: Calls(merged_tokens_first, 4, 4, inner=linear(4, 3)),
    "GRU, tokens first": lambda: Calls(recurrence_over_tokens_first, 4, 4, inner=nn.GRU(4, 3)),
    "attention, tokens first": lambda: Calls(attention_over_tokens_first, 4, 4, inner=nn.MultiheadAttention(4, 2)),
    "packed sequences": lambda: Calls(packed, 4, 4, inner=nn.LSTM(4, 3, batch_first=True)),
    "sorted examples": lambda: Calls(sorted_examples, inner=linear()),
    "one by one": lambda: Calls(one_by_one, inner=linear()),
    "few examples apart": lambda: Calls(few_apart, inner=linear()),
    "repeated examples": lambda: Calls(repeated, inner=linear()),
    "batch and mirror image": lambda: Calls(doubled_batch, inner=linear()),
    "examples as groups": lambda: Calls(examples_as_groups, 4, 4, w=weight(2, 4, 2)),
    "halves of the batch": lambda: Calls(halves, inner=linear()),
}


# Weights in other forms -----------------------------------------------------------------------------------------------


def conv_and_linear(m: Calls, h: Tensor) -> Tensor:
    """One weight in a convolution and in a linear layer."""
    return torch.tanh(F.conv1d(h, m.w[..., None])) + F.linear(h.mT, m.w).mT


def functional_embedding(m: Calls, h: Tensor) -> Tensor:
    return F.embedding((h[:, :4] > 0).long() + 2, m.w)


def one_hot_product(m: Calls, h: Tensor) -> Tensor:
    return F.one_hot((h[:, :3] > 0).long(), 2).to(h.dtype) @ m.w


def tied_pair() -> nn.Module:
    """Two layers that own the same weight."""
    first, second = linear(4, 4), linear(4, 4)
    second.weight = first.weight
    return Calls(lambda m, h: m.second(torch.tanh(m.first(h))), 4, 4, first=first, second=second)


WEIGHTS: dict[str, Callable[[], nn.Module]] = {
    "copy of a weight": lambda: Calls(lambda m, h: F.linear(h, m.w.clone()), w=weight(4, 16)),
    "transposed copy": lambda: Calls(lambda m, h: h @ m.w.T.contiguous(), w=weight(4, 16)),
    "view of a weight": lambda: Calls(lambda m, h: F.linear(h[:, :8], m.w.view(8, 8)[:3]), w=weight(4, 16)),
    "permuted rows": lambda: Calls(
        lambda m, h: F.linear(h, m.w[[2, 0, 0]], m.b[[0, 1, 1]]), w=weight(3, 16), b=weight(2)
    ),
    "triangular weight": lambda: Calls(lambda m, h: h @ m.w.tril(), 4, 4, w=weight(4, 4)),
    "bias alone": lambda: Calls(lambda m, h: torch.tanh(h + m.b), b=weight(16)),
    "scalar weight": lambda: Calls(lambda m, h: torch.sin(h * m.w) + m.w**2, w=torch.randn(())),
    "minus a weight": lambda: Calls(lambda m, h: (m.w - h).abs() / (1 + m.w.exp()), w=weight(16)),
    "power of a weight": lambda: Calls(lambda m, h: (1.5 + h.tanh()) ** m.w, w=weight(16)),
    "tensordot": lambda: Calls(lambda m, h: torch.tensordot(h, m.w, dims=([1, 2], [0, 1])), 4, 4, w=weight(4, 4, 3)),
    "three-way einsum": lambda: Calls(
        lambda m, h: torch.einsum("...i,ijk,...j->...k", h, m.w, h), 4, 4, w=weight(4, 4, 2)
    ),
    "convolution and linear": lambda: Calls(conv_and_linear, 4, 4, w=weight(3, 4)),
    "embedding as a function": lambda: Calls(functional_embedding, w=weight(4, 3)),
    "one-hot product": lambda: Calls(one_hot_product, w=weight(2, 4)),
    "two owners": tied_pair,
    "expanded weight": lambda: Calls(lambda m, h: h * m.w.expand(4, 4), 4, 4, w=weight(4, 1)),
    "stacked weights": lambda: Calls(
        lambda m, h: F.linear(h, torch.stack([m.v, m.w, m.v])), v=weight(16), w=weight(16)
    ),
    "weights joined by cat": lambda: Calls(lambda m, h: h @ torch.cat([m.v, m.w], 1), v=weight(16, 2), w=weight(16, 1)),
    "token in front": lambda: Calls(
        lambda m, h: m.inner(torch.cat([m.w.expand(len(h), 1, 4), h], 1)), 4, 4, w=weight(1, 1, 4), inner=linear(4, 3)
    ),
    "positions": lambda: Calls(lambda m, h: m.inner(h + m.w), 4, 4, w=weight(4, 4), inner=linear(4, 3)),
}


# Gradients that are changed -------------------------------------------------------------------------------------------


class Reversed(torch.autograd.Function):
    """The identity, with a gradient of the other sign."""

    @staticmethod
    def forward(ctx, h: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return -grad


def hooked(m: Calls, h: Tensor) -> Tensor:
    z = m.inner(h)
    if z.requires_grad:
        z.register_hook(lambda grad: 2 * grad)
    return z


def straight_through(m: Calls, h: Tensor) -> Tensor:
    z = m.inner(h)
    return z + (z.round() - z).detach()


class Counting(nn.Module):
    """A layer that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(h)


GRADIENTS: dict[str, Callable[[], nn.Module]] = {
    "reversed gradient": lambda: Calls(lambda m, h: torch.tanh(m.inner(Reversed.apply(h))), inner=linear()),
    "gradient hook": lambda: Calls(hooked, inner=linear()),
    "straight-through rounding": lambda: Calls(straight_through, inner=linear()),
    "counter": Counting,
    "clamp": lambda: Calls(lambda m, h: m.inner(h).clamp(-0.3, 0.5), inner=linear()),
    "maximum": lambda: Calls(
        lambda m, h: torch.cat([z := m.inner(h), z.amax(1, True), z.max(1, True)[0]], 1), inner=linear()
    ),
}
ODD_LAYERS = {**EXAMPLES, **WEIGHTS, **GRADIENTS}
