"""Load a GP with a budget of 100 MB in a process that may not allocate more than 400 MB on top of what it has.

Run as a program: limited_memory.py PATH. Prints what was raised.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from torch import nn

from dnn2gp import load

if __name__ == "__main__":
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 400_000_000, resource.RLIM_INFINITY))
    try:
        load(Path(sys.argv[1]), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), memory_budget=1e8)
    except Exception as error:
        print(type(error).__name__, error)
