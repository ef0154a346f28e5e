"""One measurement in a process of its own: python -m benchmarks.worker {list,time,memory} … writes JSON to a file."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path


def main() -> None:
    """Limit this process to the threads asked for, then measure."""
    options = _parse()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    warnings.simplefilter("ignore")
    # Imported only now: the thread pools of torch and JAX are as large as the machine that they find.
    import torch

    from benchmarks.case import Settings
    from benchmarks.cases import cases, find
    from benchmarks.measure import measure_times, peak_memory

    torch.set_num_threads(options.threads)
    settings = Settings(options.quick, options.engine)
    if options.what == "list":
        answer: object = [case.name for case in cases(settings)]
    elif options.what == "time":
        case = find(options.case, settings)
        measured = measure_times(case, options.repeats, options.seconds)
        answer = {
            "case": case.name,
            "group": case.group,
            "title": case.title,
            "axis": case.axis,
            "x": case.x,
            "implementations": [each.as_dict() for each in measured],
        }
    else:
        implementation = find(options.case, settings).find(options.implementation)
        warm = find(options.case, Settings(True, options.engine)).find(options.implementation)
        answer = {"peak_bytes": peak_memory(implementation, options.variant, warm)}
    Path(options.json).write_text(json.dumps(answer))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("list", "time", "memory"))
    parser.add_argument("--json", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", default="")
    parser.add_argument("--implementation", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
