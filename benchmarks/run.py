"""The command line: measure each case in processes of its own, then write results.json, results.md and the pictures."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import plots, report
from benchmarks.environment import commit, environment

_HERE = Path(__file__).parent


class WorkerError(Exception):
    """A worker ended without an answer (out of memory, say)."""


def main() -> int:
    """Run the benchmarks; 1 if anything failed or disagreed."""
    options = _parse()
    all_names = _work(options, 1, "list")
    names = [name for name in all_names if _wanted(name, options.only)]
    if not names:
        sys.exit(f"no case matches {' '.join(options.only)}; see --list")
    if options.list:
        print(*names, sep="\n")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    results = _earlier(options)
    failures = 0
    for name in names:
        for threads in options.threads:
            record = _measure(name, threads, options)
            failures += sum(bool(row["error"]) for row in record["implementations"])
            results["records"] = [*(r for r in results["records"] if _key(r) != _key(record)), record]
            results["records"].sort(key=lambda each: (_place(each, all_names), each["threads"]))
            (options.out / "results.json").write_text(json.dumps(results, indent=1))
            (options.out / "results.md").write_text(report.write(results))
    files = plots.draw(results, options.out)
    print("written:", options.out / "results.json", options.out / "results.md", *files)
    return 1 if failures else 0


def _measure(name: str, threads: int, options: argparse.Namespace) -> dict:
    """Times of all implementations in one process, then the memory of each in its own."""
    print(f"{name}, {threads} thread(s)", flush=True)
    try:
        record = _work(options, threads, "time", "--case", name, *_limits(options))
    except WorkerError as error:
        row = {"name": "all", "variant": "", "scale": 1, "median": None, "peak_bytes": None, "operations": None}
        row |= {"seconds": [], "relative_error": None, "note": "", "error": str(error)}
        record = {
            "case": name,
            "group": name.split("/")[0],
            "title": name,
            "axis": "",
            "x": 0,
            "implementations": [row],
        }
    record |= {"threads": threads, "commit": commit(), "date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    for row in record["implementations"]:
        if not row["error"] and not options.no_memory and record["group"] != "growth":
            chosen = ("--case", name, "--implementation", row["name"], "--variant", row["variant"])
            try:
                row["peak_bytes"] = _work(options, threads, "memory", *chosen)["peak_bytes"]
            except WorkerError as error:
                row["error"] = str(error)
        _say(row)
    return record


def _work(options: argparse.Namespace, threads: int, *arguments: str):
    """The answer of one worker."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "benchmarks.worker", *arguments, "--json", str(answer)]
        command += ["--engine", options.engine, "--threads", str(threads), *(["--quick"] if options.quick else [])]
        done = subprocess.run(
            command, cwd=_HERE.parent, env=_limited(threads), check=False, capture_output=True, text=True
        )
        if done.returncode or not answer.exists():
            raise WorkerError(f"worker ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return json.loads(answer.read_text())


def _limited(threads: int) -> dict[str, str]:
    """The environment of a process whose libraries use that many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "JAX_PLATFORMS": "cpu"}


def _earlier(options: argparse.Namespace) -> dict:
    """The results that are there, if they are of this environment: cases measured now replace theirs."""
    now = environment(options.engine, options.quick)
    file = options.out / "results.json"
    if file.exists():
        results = json.loads(file.read_text())
        if results["environment"] == now:
            return results
        print(f"{file} comes from another environment and is replaced")
    return {"environment": now, "records": []}


def _place(record: dict, names: list[str]) -> int:
    """Where the case stands in the report; one that no longer exists comes last."""
    return names.index(record["case"]) if record["case"] in names else len(names)


def _key(record: dict) -> tuple[str, int]:
    return record["case"], record["threads"]


def _wanted(name: str, only: list[str]) -> bool:
    """A case, its group, or how its name begins up to a hyphen."""
    return not only or any(name == each or name.startswith((f"{each}/", f"{each}-")) for each in only)


def _limits(options: argparse.Namespace) -> tuple[str, ...]:
    return "--repeats", str(options.repeats), "--seconds", str(options.seconds)


def _say(row: dict) -> None:
    if row["error"]:
        print(f"    {row['name']}: FAILED\n{row['error']}", file=sys.stderr, flush=True)
        return
    error = "" if row["relative_error"] is None else f", relative error {row['relative_error']:.1e}"
    memory = "" if row["peak_bytes"] is None else f", {row['peak_bytes'] / 1e6:.0f} MB"
    print(f"    {row['name']} {row['variant']}: {row['median']:.4g} s{memory}{error}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads, each measured separately"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="groups or cases, see --list")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--repeats", type=int, default=7, help="the most repeats of an implementation")
    parser.add_argument("--seconds", type=float, default=60.0, help="about so long for one implementation of a case")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--no-memory", action="store_true", help="measure times only")
    parser.add_argument("--out", type=Path, help="where the results go: results, or results-quick, unless told")
    parser.add_argument("--engine", default="LayerwiseFeatures", help="class of dnn2gp.features that is measured")
    options = parser.parse_args()
    options.out = options.out or _HERE / ("results-quick" if options.quick else "results")
    return options
