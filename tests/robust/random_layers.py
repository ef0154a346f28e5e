"""The layer kinds of the network fuzzer: each maps N vectors of 16 numbers to N vectors of 16 numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from robust.layer_forms import WIDTH, Calls, Shaped, linear, weight
from robust.odd_layers import ODD_LAYERS


class Cube(torch.autograd.Function):
    """(h w)³, with a gradient of its own."""

    @staticmethod
    def forward(ctx, h: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(h, w)
        return (h * w) ** 3

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, w = ctx.saved_tensors
        common = 3 * (h * w) ** 2 * grad
        return common * w, (common * h).sum(0)


class Symmetric(nn.Module):
    """A parametrisation: W + Wᵀ."""

    def forward(self, w: Tensor) -> Tensor:
        return (w + w.mT) / 2


def symmetric_linear() -> nn.Module:
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def with_statistics(norm: nn.Module) -> nn.Module:
    """A batch normalisation whose running statistics are not those of a fresh layer."""
    assert isinstance(norm.running_mean, Tensor)
    assert isinstance(norm.running_var, Tensor)
    norm.running_mean.uniform_(-0.5, 0.5)
    norm.running_var.uniform_(0.5, 2.0)
    return norm


def uneven(norm: nn.Module) -> nn.Module:
    """A normalisation whose scales are not all 1 and whose shifts are not all 0."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1.0, 0.3)
    return norm


def one_of(*makers: Callable[[], nn.Module]) -> nn.Module:
    """One of several modules, by torch's generator."""
    return makers[int(torch.randint(len(makers), ()))]()


def routed(m: Calls, h: Tensor) -> Tensor:
    """One of two experts, chosen for each example by the sign of its first feature."""
    return torch.where(h[:, :1] > 0, m.left(h), m.right(h))


def experts(m: Calls, h: Tensor) -> Tensor:
    """The same, but each expert sees only the examples that are sent to it."""
    chosen = h[:, 0] > 0
    out = h.new_zeros(len(h), 4)
    out[chosen] = m.left(h[chosen])
    out[~chosen] = m.right(h[~chosen])
    return out


def solved(m: Calls, h: Tensor) -> Tensor:
    A = torch.eye(4, dtype=h.dtype) * 3 + torch.tanh(m.inner(h)).reshape(-1, 4, 4) / 2
    return torch.linalg.solve(A, h.reshape(-1, 4, 4))


def inverted(m: Calls, h: Tensor) -> Tensor:
    A = torch.eye(4, dtype=h.dtype) * 3 + torch.tanh(h @ m.w).reshape(-1, 4, 4) / 2
    return torch.cat([torch.linalg.inv(A).flatten(1), torch.logdet(A @ A.mT)[:, None]], 1)


def factorised(m: Calls, h: Tensor) -> Tensor:
    B = torch.tanh(h * m.w).reshape(-1, 4, 4)
    return torch.linalg.cholesky(B @ B.mT + 2 * torch.eye(4, dtype=h.dtype))


def attended(m: Calls, h: Tensor) -> Tensor:
    q, k, v = m.inner(h).chunk(3, -1)
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)


def energy_slope(m: Calls, h: Tensor) -> Tensor:
    """The gradient of a network with respect to its inputs: second derivatives in the Jacobian."""
    with torch.enable_grad():
        x = h if h.requires_grad else h.detach().requires_grad_(True)
        return torch.autograd.grad(torch.tanh(m.inner(x)).sum(), x, create_graph=True)[0]


def scattered(m: Calls, h: Tensor) -> Tensor:
    index = torch.tensor([0, 2, 1, 2]).expand(len(h), 4)
    return torch.zeros(len(h), 4, dtype=h.dtype).scatter_add(1, index, m.inner(h))


def scattered_over(m: Calls, h: Tensor) -> Tensor:
    return h.scatter(1, torch.tensor([[3, 0, 7, 5]]).expand(len(h), 4), m.inner(h))


def filtered(m: Calls, h: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(h) * torch.complex(m.w, m.v)
    return torch.fft.irfft(spectrum, n=WIDTH)


def complex_product(m: Calls, h: Tensor) -> Tensor:
    z = torch.view_as_complex(h.reshape(-1, 8, 2).contiguous()) * torch.view_as_complex(m.w)
    return torch.cat([z.real, z.imag, (1 + z.abs().square()).log()], 1)


def in_place(m: Calls, h: Tensor) -> Tensor:
    z = m.inner(h)
    z += h[:, :4]
    z.mul_(0.5)
    return z.tanh_()


def generated(m: Calls, h: Tensor) -> Tensor:
    """Weights that a layer makes for each example."""
    return torch.bmm(m.inner(h[:, :3]).reshape(-1, 4, 4), h.reshape(-1, 4, 4))


def sampled(m: Calls, h: Tensor) -> Tensor:
    grid = torch.tanh(m.inner(h.flatten(1)))[:, :8].reshape(-1, 2, 2, 2)
    return F.grid_sample(h, grid, align_corners=False)


def recurrence(m: Calls, h: Tensor) -> Tensor:
    state = h.new_zeros(len(h), 4)
    for step in h.unbind(1):
        state = m.cell(step, state)
    return state


def long_recurrence(m: Calls, h: Tensor) -> Tensor:
    state = h.new_zeros(len(h), 3), h.new_zeros(len(h), 3)
    for step in h.unbind(1):
        state = m.cell(step, state)
    return torch.cat(state, 1)


def decoder(m: Calls, h: Tensor) -> Tensor:
    return m.inner(h[:, :2], h[:, 2:])


def activation(*functions: Callable[[Tensor], Tensor]) -> nn.Module:
    """One of several functions, after a layer."""
    function = functions[int(torch.randint(len(functions), ()))]
    return Calls(lambda m, h: function(m.inner(h)), inner=linear())


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "Conv1d": lambda: Shaped(nn.Conv1d(4, 3, 3, padding=1), 4, 4),
    "Conv1d, dilated": lambda: Shaped(nn.Conv1d(2, 3, 3, dilation=2, padding=1), 2, 8),
    "Conv1d, circular": lambda: Shaped(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), 2, 8),
    "Conv2d": lambda: Shaped(nn.Conv2d(1, 3, 3, padding=1), 1, 4, 4),
    "Conv2d, strided": lambda: Shaped(nn.Conv2d(1, 4, 2, stride=2, bias=False), 1, 4, 4),
    "Conv2d, grouped": lambda: Shaped(nn.Conv2d(4, 4, 2, groups=2, padding=1), 4, 2, 2),
    "Conv2d, depthwise": lambda: Shaped(nn.Conv2d(4, 8, 2, groups=4), 4, 2, 2),
    "Conv2d, same and dilated": lambda: Shaped(nn.Conv2d(1, 2, 2, dilation=(1, 2), padding="same"), 1, 4, 4),
    "Conv2d, reflecting": lambda: Shaped(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), 1, 4, 4),
    "Conv3d": lambda: Shaped(nn.Conv3d(2, 2, 2, padding=(1, 0, 0)), 2, 2, 2, 2),
    "ConvTranspose1d": lambda: Shaped(nn.ConvTranspose1d(4, 2, 3, stride=2, output_padding=1), 4, 4),
    "ConvTranspose2d": lambda: Shaped(nn.ConvTranspose2d(4, 4, 2, groups=2, stride=2), 4, 2, 2),
    "ConvTranspose3d": lambda: Shaped(nn.ConvTranspose3d(2, 1, 2, dilation=2), 2, 2, 2, 2),
    "conv2d of a made weight": lambda: Calls(
        lambda m, h: F.conv2d(h, m.w.tanh(), m.b), 1, 4, 4, w=weight(2, 1, 2, 2), b=weight(2)
    ),
    "convolution and max-pooling": lambda: Shaped(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), 1, 4, 4
    ),
    "unfold": lambda: Calls(lambda m, h: m.w @ F.unfold(h, 2), 1, 4, 4, w=weight(3, 4)),
    "PixelShuffle": lambda: Shaped(nn.Sequential(nn.Conv2d(4, 4, 1), nn.PixelShuffle(2)), 4, 2, 2),
    "upsampling": lambda: Shaped(
        nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 2, 2)), 4, 2, 2
    ),
    "grid_sample": lambda: Calls(sampled, 1, 4, 4, inner=linear(16, 8)),
}
NORMS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: uneven(nn.LayerNorm(WIDTH)),
    "LayerNorm of tokens": lambda: Shaped(nn.Sequential(linear(4, 4), uneven(nn.LayerNorm(4))), 4, 4),
    "GroupNorm": lambda: Shaped(uneven(nn.GroupNorm(2, 4)), 4, 2, 2),
    "InstanceNorm": lambda: Shaped(uneven(nn.InstanceNorm1d(2, affine=True)), 2, 8),
    "BatchNorm1d": lambda: with_statistics(uneven(nn.BatchNorm1d(WIDTH))),
    "BatchNorm2d": lambda: Shaped(with_statistics(uneven(nn.BatchNorm2d(4))), 4, 2, 2),
    "RMSNorm": lambda: uneven(nn.RMSNorm(WIDTH)),
    "normalize": lambda: Calls(lambda m, h: F.normalize(m.inner(h), dim=1), inner=linear()),
    "local_response_norm": lambda: Calls(lambda m, h: F.local_response_norm(h * m.w, 2), 4, 4, w=weight(4)),
}
RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: Shaped(nn.RNN(4, 3, batch_first=True), 4, 4),
    "GRU": lambda: Shaped(nn.GRU(4, 3, batch_first=True), 4, 4),
    "LSTM": lambda: Shaped(nn.LSTM(4, 3, batch_first=True), 4, 4),
    "LSTM, two ways and two layers": lambda: Shaped(nn.LSTM(4, 2, 2, batch_first=True, bidirectional=True), 4, 4),
    "GRUCell": lambda: Calls(recurrence, 4, 4, cell=nn.GRUCell(4, 4)),
    "LSTMCell": lambda: Calls(long_recurrence, 4, 4, cell=nn.LSTMCell(4, 3)),
}
ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "MultiheadAttention": lambda: Calls(
        lambda m, h: m.inner(h, h, h)[0], 4, 4, inner=nn.MultiheadAttention(4, 2, batch_first=True)
    ),
    "MultiheadAttention, needless weights": lambda: Calls(
        lambda m, h: m.inner(h, h, h, need_weights=False)[0], 4, 4, inner=nn.MultiheadAttention(4, 2, batch_first=True)
    ),
    "TransformerEncoderLayer": lambda: Shaped(nn.TransformerEncoderLayer(4, 2, 5, 0.1, batch_first=True), 4, 4),
    "TransformerDecoderLayer": lambda: Calls(
        decoder, 4, 4, inner=nn.TransformerDecoderLayer(4, 2, 3, batch_first=True)
    ),
    "scaled_dot_product_attention": lambda: Calls(attended, 4, 4, inner=linear(4, 12)),
}
PARAMETRISED: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(linear()),
    "spectral_norm": lambda: parametrizations.spectral_norm(linear()),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(WIDTH, 4)),
    "symmetric": lambda: Shaped(symmetric_linear(), 4, 4),
    "weight_norm of a convolution": lambda: Shaped(parametrizations.weight_norm(nn.Conv1d(4, 2, 2)), 4, 4),
    "linear of a made weight": lambda: Calls(lambda m, h: F.linear(h, m.w.sin(), m.b), w=weight(4, 16), b=weight(4)),
    "weights made by a layer": lambda: Calls(generated, inner=linear(3, 16)),
}
DENSE: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: linear(),
    "Linear without bias": lambda: linear(bias=False),
    "Linear of tokens": lambda: Shaped(linear(4, 5), 4, 4),
    "Bilinear": lambda: Calls(lambda m, h: m.inner(h[:, :4], h[:, 4:8]), inner=nn.Bilinear(4, 4, 3)),
    "PReLU": lambda: Calls(lambda m, h: m.inner(h), inner=nn.PReLU(WIDTH)),
    "PReLU of one slope": lambda: nn.PReLU(),
    "einsum": lambda: Calls(
        lambda m, h: torch.einsum("nij,jk,li->nlk", h, m.w, m.v), 4, 4, w=weight(4, 3), v=weight(2, 4)
    ),
    "matmul from the right": lambda: Calls(lambda m, h: h @ m.w + m.b, w=weight(16, 4), b=weight(4)),
    "matmul from the left": lambda: Calls(lambda m, h: torch.tanh(m.w @ h), 4, 4, w=weight(3, 4)),
    "transposed product": lambda: Calls(lambda m, h: (m.w @ h.T).T, w=weight(4, 16)),
    "bmm": lambda: Calls(lambda m, h: torch.bmm(h, m.w.expand(len(h), 4, 3)), 4, 4, w=weight(4, 3)),
    "baddbmm": lambda: Calls(
        lambda m, h: torch.baddbmm(m.b, h, m.inner(h), beta=0.5, alpha=2.0), 4, 4, b=weight(1, 4, 4), inner=linear(4, 4)
    ),
    "addmm": lambda: Calls(lambda m, h: torch.addmm(m.b, h, m.w, alpha=0.5), w=weight(16, 3), b=weight(3)),
    "addcmul": lambda: Calls(lambda m, h: torch.addcmul(m.b, h, m.w, value=0.5), w=weight(16), b=weight(16)),
    "scale and shift": lambda: Calls(lambda m, h: torch.tanh(h * m.w + m.b), w=weight(16) * 4, b=weight(16)),
    "lerp": lambda: Calls(lambda m, h: torch.lerp(h, torch.cos(h), m.w.sigmoid()), w=weight(16)),
    "slices of a weight": lambda: Calls(lambda m, h: F.linear(h[:, :4], m.w[1:4]) * m.w[0, :3], w=weight(5, 4)),
    "strided slices": lambda: Calls(lambda m, h: h[:, :4] @ m.w[::2, 1:] + m.w[0, 1:], w=weight(8, 4)),
}
ELEMENTWISE: dict[str, Callable[[], nn.Module]] = {
    "smooth activation": lambda: activation(
        F.gelu, F.silu, F.mish, F.softplus, F.logsigmoid, F.softsign, F.tanhshrink, torch.sin
    ),
    "piecewise activation": lambda: activation(
        F.relu, F.leaky_relu, F.elu, F.celu, F.selu, F.hardswish, F.relu6, F.rrelu
    ),
    "glu": lambda: activation(F.glu),
    "softmax": lambda: activation(lambda h: h.softmax(1), lambda h: h.log_softmax(1)),
    "cumsum": lambda: activation(lambda h: h.cumsum(1), lambda h: torch.tanh(h).cumprod(1)),
    "logsumexp": lambda: Calls(lambda m, h: torch.logsumexp(m.inner(h), 1), 4, 4, inner=linear(4, 3)),
    "norm": lambda: Calls(lambda m, h: m.inner(h).norm(dim=2), 4, 4, inner=linear(4, 3)),
    "sort": lambda: activation(
        lambda h: h.sort(1).values, lambda h: h.topk(2, 1).values, lambda h: h.median(1).values[:, None]
    ),
    "flip and roll": lambda: activation(lambda h: h.flip(1), lambda h: h.roll(1, 1)),
    "dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.3), nn.Tanh()),
    "alpha dropout": lambda: nn.Sequential(linear(), nn.AlphaDropout(0.3)),
    "pooling": lambda: Shaped(
        nn.Sequential(
            nn.Conv2d(1, 2, 1),
            one_of(
                lambda: nn.MaxPool2d(2, stride=1),
                lambda: nn.AvgPool2d(2),
                lambda: nn.AdaptiveAvgPool2d(2),
                lambda: nn.AdaptiveMaxPool2d(3),
            ),
        ),
        1,
        4,
        4,
    ),
    "pooling in one dimension": lambda: Shaped(
        nn.Sequential(
            nn.Conv1d(4, 2, 1),
            one_of(lambda: nn.MaxPool1d(2), lambda: nn.AvgPool1d(2), lambda: nn.AdaptiveAvgPool1d(3)),
        ),
        4,
        4,
    ),
}
OPERATIONS: dict[str, Callable[[], nn.Module]] = {
    "gather": lambda: Calls(
        lambda m, h: m.inner(h).gather(1, torch.tensor([[3, 1, 1]]).expand(len(h), 3)), inner=linear()
    ),
    "index_select": lambda: Calls(lambda m, h: m.inner(h).index_select(1, torch.tensor([2, 0, 2])), inner=linear()),
    "rows of a weight": lambda: Calls(lambda m, h: h[:, :4] * m.w[(h[:, 0] > 0).long()], w=weight(2, 4)),
    "scatter_add": lambda: Calls(scattered, inner=linear()),
    "scatter": lambda: Calls(scattered_over, inner=linear()),
    "cdist": lambda: Calls(lambda m, h: torch.cdist(h, m.w.expand(len(h), 3, 4)), 4, 4, w=weight(3, 4) * 2),
    "distances": lambda: Calls(lambda m, h: (h[:, None] - m.w).square().sum(2).neg().exp(), w=weight(3, 16)),
    "cosine_similarity": lambda: Calls(lambda m, h: F.cosine_similarity(h[:, None], m.w, dim=2), w=weight(3, 16)),
    "linalg.solve": lambda: Calls(solved, inner=linear(16, 16)),
    "linalg.inv": lambda: Calls(inverted, w=weight(16, 16)),
    "linalg.cholesky": lambda: Calls(factorised, w=weight(16)),
    "matrix_exp": lambda: Calls(lambda m, h: h @ torch.matrix_exp(m.w / 2), 4, 4, w=weight(4, 4)),
    "fft": lambda: Calls(filtered, w=weight(9), v=weight(9)),
    "complex product": lambda: Calls(complex_product, w=weight(8, 2)),
    "custom Function": lambda: Calls(lambda m, h: Cube.apply(torch.tanh(h), m.w), w=weight(16) * 4),
    "checkpoint": lambda: Calls(lambda m, h: checkpoint(m.inner, h, use_reentrant=False), inner=linear()),
    "in place": lambda: Calls(in_place, inner=linear()),
    "energy": lambda: Calls(energy_slope, inner=linear()),
    "where": lambda: Calls(routed, left=linear(), right=linear()),
    "experts": lambda: Calls(experts, left=linear(), right=linear()),
    "no_grad": lambda: Calls(lambda m, h: m.inner(h) * m.inner(h).detach().sigmoid(), inner=linear()),
    "shared": lambda: Calls(lambda m, h: m.inner(torch.tanh(m.inner(h))), 4, 4, inner=linear(4, 4)),
    "tied": lambda: Calls(lambda m, h: torch.tanh(h @ m.w) @ m.w.T, w=weight(16, 3)),
    "frozen": lambda: nn.Sequential(linear(16, 8).requires_grad_(False), nn.Tanh(), linear(8, 3)),
    "partly frozen": lambda: nn.Sequential(half_frozen(linear(16, 5)), nn.Tanh()),
    "unused weight": lambda: Calls(lambda m, h: m.inner(h), inner=linear(), w=weight(3)),
    "stack of views": lambda: Calls(
        lambda m, h: torch.stack([part * (1 + m.inner(part)) for part in h.chunk(2, 1)], 1), inner=linear(8, 8)
    ),
    "vmap": lambda: Calls(lambda m, h: torch.vmap(lambda one: torch.tanh(m.w @ one))(h), w=weight(3, 16)),
}


def half_frozen(layer: nn.Linear) -> nn.Linear:
    """A layer whose bias alone is trained."""
    layer.weight.requires_grad_(False)
    return layer


LAYERS: dict[str, Callable[[], nn.Module]] = {
    **CONVOLUTIONS,
    **NORMS,
    **RECURRENT,
    **ATTENTION,
    **PARAMETRISED,
    **DENSE,
    **ELEMENTWISE,
    **OPERATIONS,
    **ODD_LAYERS,
}

MUST_REFUSE: dict[str, Callable[[], nn.Module]] = {
    "difference from the first example": lambda: Calls(lambda m, h: m.inner(h - h[:1]), inner=linear()),
    "mean over the examples": lambda: Calls(lambda m, h: m.inner(h - h.mean(0)), inner=linear()),
    "softmax over the examples": lambda: Calls(lambda m, h: m.inner(h.softmax(0)), inner=linear()),
    "cumsum over the examples": lambda: Calls(lambda m, h: m.inner(h.cumsum(0)), inner=linear()),
    "statistics of the batch": lambda: nn.Sequential(nn.BatchNorm1d(WIDTH, track_running_stats=False), linear()),
    "LSTM over the examples": lambda: Shaped(nn.LSTM(4, 3), 4, 4),
    "active dropout": lambda: Calls(lambda m, h: F.dropout(m.inner(h), 0.5, training=True), inner=linear()),
    "reentrant checkpoint": lambda: Calls(lambda m, h: checkpoint(m.inner, h, use_reentrant=True), inner=linear()),
}
"""Networks without a Jacobian per example, or whose gradients torch does not compute."""
