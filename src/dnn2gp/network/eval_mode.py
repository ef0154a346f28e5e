"""Running a module in eval mode, with attention kernels that can be differentiated, without leaving a trace on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dnn2gp.support.interrupts import Temporary
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


@final
class evaluation_mode(Temporary):  # noqa: N801 (used like a function)
    """Eval mode and differentiable attention for a user's own module; all flags and attributes are restored after it.

    Only one thread at a time may be inside, because the module itself is changed meanwhile.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._attention = module, differentiable_attention()
        self._attributes: Attributes | None = None
        self._locked = False

    def _change(self) -> None:
        self._locked = USER_STATE.acquire()
        self._attention._change()
        self._attributes = Attributes(self._module)
        set_eval(self._module)

    def _undo(self) -> None:
        if self._attributes is not None:
            self._attributes.restore()
        self._attention._undo()
        if self._locked:
            self._locked = False
            USER_STATE.release()


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


class _AttentionSettings:
    """torch's attention settings, which the process shares: set by the first to enter, restored by the last.

    The fused kernels lack forward-mode and second derivatives, and some of them a backward pass.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # taken again by a handler that interrupts its holder
        self._inside: set[object] = set()
        self._before: dict[str, bool] = {}

    def enter(self, user: object) -> None:
        with self._lock:
            if not self._inside:
                self._before = _attention()
            self._inside.add(user)  # from here on `leave` restores
            _set_attention({name: name == _MATH for name in self._before})

    def leave(self, user: object) -> None:
        with self._lock:
            if self._inside == {user}:
                _set_attention(self._before)
            self._inside.discard(user)


_MATH, _FAST_PATH = "math", "fast path"
_settings = _AttentionSettings()


def _attention() -> dict[str, bool]:
    """Which kernels are enabled, and whether nn.MultiheadAttention may use its fast path."""
    kernels = torch.backends.cuda
    return {
        _MATH: kernels.math_sdp_enabled(),
        "flash": kernels.flash_sdp_enabled(),
        "mem_efficient": kernels.mem_efficient_sdp_enabled(),
        "cudnn": kernels.cudnn_sdp_enabled(),
        _FAST_PATH: torch.backends.mha.get_fastpath_enabled(),
    }


def _set_attention(enabled: dict[str, bool]) -> None:
    for name, value in enabled.items():
        if name == _FAST_PATH:
            torch.backends.mha.set_fastpath_enabled(value)
        else:
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(value)


@final
class differentiable_attention(Temporary):  # noqa: N801 (used like a function)
    """A context in which attention is computed by operations that autograd can differentiate in every mode."""

    def _change(self) -> None:
        _settings.enter(self)

    def _undo(self) -> None:
        _settings.leave(self)
