"""neural-tangents: the empirical NTK of LeNet-5 in JAX by structured derivatives, compiled beforehand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
from jax._src import source_info_util
from jax.example_libraries import stax
from jax.interpreters import ad
from torch import Tensor, nn

# neural-tangents imports its TensorFlow bridge, which is not used here: an empty module stands in for it.
sys.modules.setdefault("neural_tangents.experimental", ModuleType("neural_tangents.experimental"))
# It also reads two names that jax.interpreters.ad no longer exports.
ad.source_info_util, ad.config = source_info_util, jax.config
jax.config.update("jax_enable_x64", True)

import neural_tangents as nt  # noqa: E402 (after the stand-ins)


def lenet5_kernel(module: nn.Sequential, inputs: Tensor, trace: bool) -> Callable[[], jax.Array]:
    """The full kernel N × N × K × K, or its trace over outputs divided by K, N × N, of the torch module's weights."""
    _, apply = stax.serial(
        stax.Conv(6, (5, 5)),
        stax.Relu,
        stax.MaxPool((2, 2), (2, 2)),
        stax.Conv(16, (5, 5)),
        stax.Relu,
        stax.MaxPool((2, 2), (2, 2)),
        stax.Flatten,
        stax.Dense(120),
        stax.Relu,
        stax.Dense(84),
        stax.Relu,
        stax.Dense(module[-1].out_features),
    )
    weights, images = _weights(module), jnp.asarray(inputs.permute(0, 2, 3, 1).numpy())
    kernel = nt.empirical_ntk_fn(
        apply,
        trace_axes=(1,) if trace else (),
        vmap_axes=0,
        implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
    )
    compiled = jax.jit(lambda images, weights: kernel(images, None, weights)).lower(images, weights).compile()
    return lambda: compiled(images, weights).block_until_ready()


def _weights(module: nn.Sequential) -> list[tuple[jax.Array, ...]]:
    """The torch weights in stax's layout (channels last); the first Linear takes pixels before channels."""
    result = []
    for layer in module:
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
            kernel, bias = layer.weight.permute(2, 3, 1, 0), layer.bias.view(1, 1, 1, -1)
        elif isinstance(layer, nn.Linear):
            kernel, bias = layer.weight.T, layer.bias
            if len(result) == 7:  # the first after Flatten: C·H·W → H·W·C
                kernel = kernel.unflatten(0, (channels, -1)).transpose(0, 1).flatten(0, 1)
        else:
            result.append(())
            continue
        result.append((jnp.asarray(kernel.detach().numpy()), jnp.asarray(bias.detach().numpy())))
    return result
