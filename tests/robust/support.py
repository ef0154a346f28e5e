"""What the tests of robustness share: a watch over everything that a call must leave alone, and small problems."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dnn2gp import GaussianLikelihood, convert

from reference import brute_force

# The type checks of the test run draw from Python's generator themselves: it is watched where they are off (plain.py).
CHECKED = "beartype" in sys.modules
NOISE = GaussianLikelihood(0.5)
DELTA = 2.0


@contextmanager
def untouched(module: nn.Module) -> Iterator[nn.Module]:
    """Afterwards, an error included, the module and every global state of torch, NumPy and Python are as before."""
    before_module, before_globals = _module_state(module), _global_state()
    try:
        yield module
    finally:
        _assert_same("the global state", before_globals, _global_state())
        _assert_same("the network", before_module, _module_state(module))


def _global_state() -> dict[str, object]:
    kind, keys, *rest = np.random.get_state()
    return {
        "torch generator": torch.get_rng_state().clone(),
        "numpy generator": (kind, torch.from_numpy(np.array(keys, dtype=np.int64)), tuple(rest)),
        "python generator": None if CHECKED else random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "attention": (
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
        ),
    }


def _module_state(module: nn.Module) -> dict[str, object]:
    state: dict[str, object] = {}
    for name, part in module.named_modules():
        state[f"{name}: attributes"] = {key: _value(value) for key, value in vars(part).items()}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        state[f"{name}: identity"] = id(tensor)
        state[f"{name}: kind"] = (type(tensor), tensor.dtype, tensor.device, tensor.requires_grad)
        state[f"{name}: hooks"] = len(tensor._backward_hooks or ())
        if not (tensor.is_meta or torch.nn.parameter.is_lazy(tensor)):
            state[f"{name}: values"] = tensor.detach().clone()
            state[f"{name}: grad"] = (id(tensor.grad), None if tensor.grad is None else tensor.grad.clone())
    return state


def _value(value: object) -> object:
    """Dicts (weights, buffers, hooks, children) and lists by the identity of what they hold; the rest by its own."""
    if isinstance(value, dict):
        return {key: id(member) for key, member in value.items()}
    if isinstance(value, list):
        return [id(member) for member in value]
    return value if isinstance(value, bool | int | float | str | None) else id(value)


def _assert_same(what: str, before: object, after: object) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        assert list(before) == list(after), f"{what}: {set(before) ^ set(after)} came or went"
        for key in before:
            _assert_same(f"{what}, {key}", before[key], after[key])
    elif isinstance(before, tuple) and isinstance(after, tuple):
        assert len(before) == len(after), what
        for old, new in zip(before, after, strict=True):
            _assert_same(what, old, new)
    elif isinstance(before, Tensor) and isinstance(after, Tensor):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True, msg=f"{what} changed")
    else:
        assert before == after, f"{what} changed from {before} to {after}"


def mlp(inputs: int = 3, outputs: int = 2, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small network with a gradient, a hook and mixed modes, so that `untouched` has something to watch."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs)).to(dtype)
    module[0].weight.grad = torch.ones_like(module[0].weight)
    module[1].eval()
    module[2].register_forward_hook(lambda *_: None)
    return module


def regression(
    num: int = 10, inputs: int = 3, outputs: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num, inputs, generator=generator, dtype=torch.float64)
    y = torch.randn(num, outputs, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


@dataclass(frozen=True)
class Expected:
    """The exact predictive of a Gaussian likelihood at the training inputs, by brute force."""

    mean: Tensor
    variance: Tensor

    @staticmethod
    def of(module: nn.Module, x, y: Tensor, sigma: float = 0.5, delta: float = DELTA) -> Expected:
        f = brute_force.outputs(module, x)
        J = brute_force.jacobian(module, x)
        r, precision = brute_force.residual_and_precision(brute_force.gaussian(sigma), f, y.reshape(len(f), -1))
        w = brute_force.flat_weights(module)
        mean, covariance = brute_force.weight_posterior(J, r, precision, w, torch.full_like(w, delta))
        shift = torch.einsum("nkp,p->nk", J, mean - w)
        return Expected(f + shift, torch.einsum("nkp,pq,nkq->nk", J, covariance, J))


def assert_exact(module: nn.Module, x, y: Tensor) -> None:
    """convert leaves the module alone, and its predictions are those of the brute-force posterior."""
    expected = Expected.of(module, x, y)
    with untouched(module):
        prediction = convert(module, (x, y), NOISE, DELTA).predict(x)
    torch.testing.assert_close(prediction.mean.reshape(expected.mean.shape), expected.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        prediction.epistemic.reshape(expected.mean.shape), expected.variance, rtol=1e-8, atol=1e-9
    )
