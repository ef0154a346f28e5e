"""One cell of benchmarks.memory: python -m benchmarks.memory_worker NETWORK POSTERIOR MB prints JSON, a line a call.

The process imports and warms up once, on a few examples. Each call is then measured in a fork of it, so that every call
starts from the same state, without what earlier ones left in the allocator.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import peak_growth
from benchmarks.memory_cases import CALLS, MB, Cell
from dnn2gp import CategoricalLikelihood, convert, load, save
from dnn2gp.support.errors import MemoryBudgetError

Measurement = dict[str, object]


def run(cell: Cell, call: str, budget: float, file: Path, *, tiny: bool = False) -> Callable[[], object]:
    """The call, prepared: what it starts from is made here."""
    module = cell.module()
    if call in ("convert", "tune"):
        data = cell.data(tiny=tiny)
        prior = {} if call == "tune" else {"prior_precision": 1.0}
        return lambda: convert(module, data, CategoricalLikelihood(), **prior, memory_budget=budget, **cell.settings())
    if call == "load":
        return lambda: load(file, module, memory_budget=budget)
    gp = load(file, module, memory_budget=budget)
    inputs = cell.inputs(call, tiny=tiny)
    return {
        "predict": lambda: gp.predict(inputs),
        "evidence": gp.evidence,
        "kernel": lambda: gp.kernel.full(inputs),
        "covariance": lambda: gp.covariance(inputs),
    }[call]


def tensors(work: Callable[[], object]) -> int:
    """The most bytes that torch had allocated at once, by its own profiler."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = work()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(accumulate(sizes), default=0)


def measured(
    cell: Cell, call: str, budget: float, file: Path, by: Callable[[Callable[[], object]], int]
) -> Measurement:
    """The peak of a call, or the error that it raised; a GP is kept in the file."""
    with suppress(MemoryBudgetError):
        run(cell, call, 2000 * MB, file.with_name("tiny"), tiny=True)()  # a fork begins without its libraries' pages
    _use_libraries()
    work, kept = run(cell, call, budget, file), []

    def keeping() -> object:
        kept.append(work())
        return kept[0]

    start = time.perf_counter()
    try:
        peak = by(keeping if call == "convert" else work)
    except MemoryBudgetError as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - start
    if kept:
        save(kept[0], file)
    return {"bytes": peak, "seconds": round(seconds, 2)}


def forked(work: Callable[[], Measurement]) -> Measurement:
    """What the work returns in a copy of this process."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException:
            answer = {"error": traceback.format_exc(limit=-4)}
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process ended without an answer"}


def _use_libraries() -> None:
    """Products and factorisations of a matrix of 2 MB: their buffers are those of all larger ones."""
    for dtype in (torch.float32, torch.float64):
        square = torch.eye(500, dtype=dtype)
        torch.linalg.eigh(square @ square)
        torch.linalg.solve_triangular(torch.linalg.cholesky(square), square, upper=False)
        torch.cholesky_inverse(torch.cholesky_solve(square, square))


def warm_up(cell: Cell, file: Path) -> None:
    """A GP of a few examples, in a file, so that libraries and their buffers are there."""
    with suppress(MemoryBudgetError):
        save(run(cell, "convert", 2000 * MB, file, tiny=True)(), file)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
        torch.ones(1).sum()


def main() -> None:
    """Measure the calls of one cell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network")
    parser.add_argument("posterior")
    parser.add_argument("budget", type=int, help="in MB")
    parser.add_argument("--calls", nargs="*", default=list(CALLS))
    parser.add_argument("--large", type=int, default=0, help="measure with this budget too, in MB")
    parser.add_argument("--no-tensors", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cell = Cell(options.network, options.posterior, options.budget)
    budget = float(options.budget * MB)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gp.dnn2gp"
        warm_up(cell, Path(folder) / "tiny")
        first = forked(partial(measured, cell, "convert", budget, file, peak_growth))
        for call in options.calls:
            if call in ("convert", "tune") or file.exists():
                row = _row(cell, call, file, options, first if call == "convert" else None)
                names = {"network": cell.network, "posterior": cell.posterior, "budget": cell.budget, "call": call}
                print(json.dumps({**names, **row}), flush=True)


def _row(
    cell: Cell, call: str, file: Path, options: argparse.Namespace, known: Measurement | None = None
) -> Measurement:
    """All figures of one call; `known` is the first of them if it has been measured already."""
    budget, large = float(options.budget * MB), float(options.large * MB)
    row = dict(known or forked(partial(measured, cell, call, budget, file, peak_growth)))
    if "bytes" in row and not options.no_tensors:
        row["tensor_bytes"] = forked(partial(measured, cell, call, budget, file, tensors)).get("bytes")
    if options.large and call in ("convert", "predict", "kernel"):
        own = file.with_name("large") if call == "convert" else file
        row["large"] = forked(partial(measured, cell, call, large, own, peak_growth)).get("bytes")
    return row


if __name__ == "__main__":
    main()
