"""Run in a process of its own, and killed: a grid or a study of slow jobs, each of which leaves a mark when it ran."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dnn2gp import tune


def main(kind: str, folder: Path, seconds: float, resume: bool) -> None:
    marks = folder / "marks"
    marks.mkdir(parents=True, exist_ok=True)

    def evidence(width: int, repeat: int) -> dict[str, float]:
        (marks / f"{width}-{repeat}-{time.time_ns()}").touch()
        time.sleep(seconds)
        return {"evidence": -((width - 3.3) ** 2) - 0.01 * repeat, "twice": 2.0 * width}

    if kind == "grid":
        found = tune.grid(
            evidence, {"width": [1, 2, 3, 4, 5]}, repeats=2, folder=folder / "tuning", resume=resume, num_jobs=1
        )
    else:
        found = tune.study(
            lambda trial: evidence(trial.suggest_int("width", 1, 50), 0),
            num_trials=10,
            folder=folder / "tuning",
            resume=resume,
        )
    found.save(folder / "result.json")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "resume")
