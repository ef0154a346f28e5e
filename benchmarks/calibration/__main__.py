"""Networks as people train them, their GPs, and temperature scaling: NLL, accuracy, ECE and coverage.

    python -m benchmarks.calibration            # writes benchmarks/results/calibration.json and docs/calibration.md
    python -m benchmarks.calibration --fresh    # forgets earlier results; by default, finished networks are kept

A killed run resumes where it stopped: each network is saved once it is measured. With images (MNIST and
Fashion-MNIST), DNN2GP_DATA names their folder; otherwise they are downloaded.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.calibration.cases import CASES
from benchmarks.calibration.measure import measured
from benchmarks.calibration.table import page
from dnn2gp.support.files import write_text

_ROOT = Path(__file__).parents[2]
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"


def main() -> None:
    """Measure what is missing, and write the tables."""
    options = _parse()
    torch.set_num_threads(options.threads)
    rows: dict[str, dict] = {}
    if options.out.exists() and not options.fresh:
        rows = json.loads(options.out.read_text())
    chosen = [case for case in CASES if all(word in case.name for word in options.only)]
    for number, case in enumerate(chosen, 1):
        if case.name not in rows:
            rows[case.name] = measured(case)
            write_text(options.out, json.dumps(rows, indent=1, sort_keys=True))
            print(f"{number}/{len(chosen)} {case.name}", flush=True)
    text = page([rows[case.name] for case in CASES if case.name in rows])
    print(text)
    if options.page is not None:
        before, rest = options.page.read_text().split(_BEGIN)
        write_text(options.page, f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of the networks must contain")
    parser.add_argument("--fresh", action="store_true", help="measure all networks again")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results" / "calibration.json")
    parser.add_argument("--page", type=Path, help="the page whose table is replaced, e.g. docs/calibration.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
