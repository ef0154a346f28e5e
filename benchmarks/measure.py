"""Time, memory and agreement of the implementations of one case, in this process.

Times are taken round-robin (A B C A B C …), so that a slow minute of the machine falls on all of them. Memory is taken
in a process that computes nothing else; see `peak_memory`.
"""

from __future__ import annotations

import ctypes
import gc
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import Case, Implementation, Run

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FEWEST = 2


@dataclass
class Measured:
    """What came out for one implementation; `seconds` are the raw repeats, of a part of the work where scale ≠ 1."""

    name: str
    variant: str = ""
    scale: float = 1.0
    operations: float | None = None
    note: str = ""
    relative_error: float | None = None
    seconds: list[float] = field(default_factory=list)
    error: str = ""
    peak_bytes: int | None = None

    @property
    def median(self) -> float | None:
        """Median seconds of the whole work."""
        return self.scale * median(self.seconds) if self.seconds else None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "median": self.median}


class DisagreementError(Exception):
    """Two implementations disagree."""


def measure_times(case: Case, repeats: int, seconds: float) -> list[Measured]:
    """Call each once to warm up and to check agreement, then all round-robin.

    Each runs `repeats` times, or fewer where that takes longer than about `seconds`, but at least twice.
    """
    measured, runs, first = [], [], []
    reference: object = None
    for implementation in case.implementations:
        result = Measured(
            implementation.name,
            scale=implementation.scale,
            operations=implementation.operations,
            note=implementation.note,
        )
        measured.append(result)
        try:
            result.variant, run = _fastest(implementation)
            value, elapsed = _timed(run)
            if implementation is case.implementations[0]:
                reference = value
            _check(case, implementation, value, reference, result)
        except Exception:
            result.error = traceback.format_exc(limit=-3)
            continue
        del value
        runs.append((result, run))
        first.append(elapsed)
    del reference
    counts = [max(_FEWEST, min(repeats, int(seconds / max(elapsed, 1e-9)))) for elapsed in first]
    for round_number in range(max(counts, default=0)):
        for (result, run), count in zip(runs, counts, strict=True):
            if round_number < count:
                result.seconds.append(_timed(run)[1])
    return measured


def peak_memory(implementation: Implementation, variant: str, warm: Implementation) -> int:
    """Bytes of the resident set's high-water mark during one call, above what was resident just before it.

    `warm` is the same work at a tiny size and runs first, so that libraries, thread pools and their buffers are there.
    Free memory is then handed back to the system (malloc_trim) and the kernel's mark is reset (5 → clear_refs). The
    result itself counts; inputs, weights and what `prepare` makes do not.
    """
    warm.variants[variant]()()
    run = implementation.variants[variant]()
    return peak_growth(run)


def peak_growth(run: Run) -> int:
    """Bytes of the high-water mark of the resident set during a call, above what is resident before it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR.write_text("5")
    before = _status_bytes("VmRSS")
    result = run()
    peak = _status_bytes("VmHWM")
    del result
    return max(0, peak - before)


def relative_error(found: object, expected: object) -> float:
    """‖found − expected‖ / ‖expected‖ in float64, for arrays of any library."""
    a, b = _tensor(found), _tensor(expected)
    if a.shape != b.shape:
        raise DisagreementError(f"shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return float((a.double() - b.double()).norm() / b.double().norm())


def _check(case: Case, implementation: Implementation, value: object, reference: object, result: Measured) -> None:
    if implementation is case.implementations[0] or implementation.expected is None or reference is None:
        return
    result.relative_error = relative_error(value, implementation.expected(reference))
    if not result.relative_error <= case.tolerance:
        raise DisagreementError(
            f"{case.name}: {implementation.name} and {case.implementations[0].name} differ by "
            f"{result.relative_error:.2g}, more than {case.tolerance:.0e}"
        )


def _fastest(implementation: Implementation) -> tuple[str, Run]:
    """The variant with the shortest second call, prepared; a single variant is not called."""
    if len(implementation.variants) == 1:
        label, prepare = next(iter(implementation.variants.items()))
        return label, prepare()
    best: tuple[float, str, Run] | None = None
    for label, prepare in implementation.variants.items():
        run = prepare()
        _timed(run)
        elapsed = _timed(run)[1]
        if best is None or elapsed < best[0]:
            best = elapsed, label, run
    assert best is not None
    return best[1:]


def _timed(run: Run) -> tuple[object, float]:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        value = run()
        return value, time.perf_counter() - start
    finally:
        gc.enable()


def _tensor(value: object) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _status_bytes(key: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])
