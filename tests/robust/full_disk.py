"""Save a GP over an old file where no file may grow beyond a few kB, as on a full disk; print what was raised.

Run as a program: full_disk.py PATH LIMIT.
"""

from __future__ import annotations

import resource
import signal
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dnn2gp import convert, save

from robust.support import DELTA, NOISE, mlp, regression, untouched

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    path, limit = Path(sys.argv[1]), int(sys.argv[2])
    module = mlp()
    gp = convert(module, regression(200), NOISE, DELTA)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with untouched(module):
            save(gp, path)
    except OSError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))  # where it prints may be a file, too
        print(type(error).__name__, error)
