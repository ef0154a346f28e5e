"""Modules that treat every example separately by construction, so that this need not be checked for new inputs."""

from __future__ import annotations

from torch import nn

_SEPARATE: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Bilinear,
    nn.Identity,
    nn.Embedding,
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample),
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def separate(module: nn.Module) -> bool:
    """Whether a module is a chain of layers of torch, each of which acts on every example alone in eval mode.

    False means only that this is not known: modules with a forward of their own, with hooks or parametrisations.
    """
    kind = type(module)
    if any(getattr(module, hooks, None) for hooks in _HOOKS) or "forward" in vars(module):
        return False
    if kind is nn.Sequential:
        return all(separate(part) for part in module)  # pyright: ignore[reportGeneralTypeIssues]
    if isinstance(module, nn.Flatten):
        return kind is nn.Flatten and module.start_dim >= 1
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return False
    if kind in _BATCH_NORMS:
        return module.running_mean is not None
    return kind in _SEPARATE
