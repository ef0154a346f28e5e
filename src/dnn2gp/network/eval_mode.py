"""Running a module in eval mode, with attention kernels that can be differentiated, without leaving a trace on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

from dnn2gp.support.randomness import USER_STATE

_EMPTY: dict = {}


class Attributes:
    """The attributes of a module and its parts at one moment, and the contents of the dicts and lists among them.

    What `forward` sets on a module (activations, counters, lazy masks) would otherwise be tensors of a transform that
    has ended, and the next call would start from another state.
    """

    def __init__(self, module: nn.Module) -> None:
        """Remember the attributes as they are now."""
        self._dicts: list[tuple[dict, dict]] = []
        self._lists: list[tuple[list, list]] = []
        for part in module.modules():
            attributes = vars(part)
            self._dicts.append((attributes, attributes.copy()))
            for value in attributes.values():
                kind = type(value)
                if kind is dict or kind is OrderedDict:
                    self._dicts.append((value, value.copy() if value else _EMPTY))
                elif kind is list:
                    self._lists.append((value, value.copy()))

    def restore(self) -> None:
        """Restore the attributes."""
        for live, before in self._dicts:
            if live.keys() != before.keys():
                for name in live.keys() - before.keys():
                    del live[name]
            if before:
                live.update(before)
        for live, before in self._lists:
            live[:] = before


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode and differentiable attention for a user's own module; all flags and attributes are restored after it.

    Only one thread at a time may be inside, because the module itself is changed meanwhile.
    """
    with USER_STATE, differentiable_attention():
        attributes = Attributes(module)
        try:
            set_eval(module)
            yield
        finally:
            attributes.restore()


@contextmanager
def statistics_mode(module: nn.Module) -> Iterator[None]:
    """As `evaluation_mode`, except that normalisation layers in train mode update their running statistics.

    Layers that were in eval mode, or that keep no statistics, stay in eval mode.
    """
    training = [part for part in module.modules() if part.training and keeps_statistics(part)]
    with evaluation_mode(module):
        for part in training:
            part.training = True
        yield


def keeps_statistics(part: nn.Module) -> bool:
    """Whether a layer is a normalisation with running statistics (BatchNorm, InstanceNorm)."""
    return isinstance(part, _NormBase) and part.track_running_stats


def set_eval(module: nn.Module) -> None:
    """Put every part into eval mode, even if a subclass overrides `train`."""
    for part in module.modules():
        part.training = False


class _MathAttention:
    """torch's attention settings, which the process shares: set by the first thread to enter, restored by the last.

    The fused kernels lack forward-mode and second derivatives, and some of them a backward pass.
    """

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._fast_path = True
        self._kernel: AbstractContextManager = sdpa_kernel(SDPBackend.MATH)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._fast_path = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
                self._kernel = sdpa_kernel(SDPBackend.MATH)
                self._kernel.__enter__()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._kernel.__exit__(None, None, None)
                    torch.backends.mha.set_fastpath_enabled(self._fast_path)


differentiable_attention = _MathAttention()
"""A context in which attention is computed by operations that autograd can differentiate in every mode."""
