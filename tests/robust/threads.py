"""Six threads call predict and convert on one module, in an interpreter without the type checks of the test run.

Run as a program with the number of calls per thread, it prints what went wrong, as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from robust.shared_networks import NETWORKS, converted, network, predicted
from robust.support import CHECKED, untouched

THREADS = 6


def wrong(name: str, space: str, calls: int) -> list[str]:
    """Calls whose result differs from that of a single thread; an error if the module or a global state changes."""
    module = network(name)
    expected, shared = predicted(converted(module, space)), converted(module, space)
    filters = list(warnings.filters)

    def call(number: int) -> str | None:
        found = predicted(shared if number % 2 else converted(module, space))
        same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        return None if same else f"{name} in {space} space: call {number}"

    with untouched(module), ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(call, range(THREADS * calls)))
    if list(warnings.filters) != filters:
        found.append(f"{name}: warning filters")
    return [message for message in found if message is not None]


if __name__ == "__main__":
    assert not CHECKED
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.setswitchinterval(5e-6)  # threads take turns a thousand times as often as usual, and so meet everywhere
    cases = [(name, space) for name in NETWORKS for space in ("function", "weight")]
    print(json.dumps([message for case in cases for message in wrong(*case, int(sys.argv[1]))]))
