"""results.md: a table for each number of threads, with targets and whether they are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.targets import TARGETS, Kind, Target

Record = Mapping  # what the worker wrote for one case: see results.json
_INVERSE = (Kind.EPOCHS, Kind.COST, Kind.MEMORY_COST)
_HEADER = (
    "| work | implementation | median s | ratio to ours | peak MB | memory ratio | error | target | verdict |",
    "|---|---|---:|---:|---:|---:|---:|---|---|",
)


def write(results: Mapping) -> str:
    """The whole report."""
    lines = ["# Results", "", *_environment(results["environment"])]
    records: Sequence[Record] = results["records"]
    for threads in sorted({record["threads"] for record in records}):
        chosen = [record for record in records if record["threads"] == threads]
        lines += ["", f"## {threads} thread{'s' if threads > 1 else ''}", "", *_HEADER]
        lines += [row for record in chosen for row in _rows(record)]
    lines += ["", *_notes(records)]
    return "\n".join(lines) + "\n"


def figures(record: Record, row: Mapping) -> dict[Kind, float | None]:
    """The figures of one implementation that targets are about."""
    mine = record["implementations"][0]
    return {
        Kind.TIME: _quotient(row["median"], mine["median"]),
        Kind.MEMORY: _quotient(row["peak_bytes"], mine["peak_bytes"]),
        Kind.PEAK: None if row["peak_bytes"] is None else row["peak_bytes"] / 1e6,
        Kind.SHARE: _quotient(_rate(mine), _rate(row)),
        Kind.EPOCHS: _quotient(mine["median"], row["median"]),
        Kind.COST: _quotient(mine["median"], row["median"]),
        Kind.MEMORY_COST: _quotient(mine["peak_bytes"], row["peak_bytes"]),
    }


def verdict(target: Target, found: Mapping[Kind, float | None]) -> str:
    """Met or missed, with the figure where the table has no column for it."""
    figure = found[target.kind]
    if figure is None:
        return "–"
    words = f" ({figure:.0%})" if target.kind is Kind.SHARE else f" ({figure:.3g})" if target.kind in _INVERSE else ""
    return ("met" if target.met(figure) else "**missed**") + words


def _environment(environment: Mapping) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    lines = [f"{environment['machine']}. {versions}. Engine: {environment['engine']}."]
    if environment["quick"]:
        lines += ["", "**A smoke run with tiny sizes: the ratios are meaningless.**"]
    return lines


def _rows(record: Record) -> list[str]:
    rows = []
    for index, row in enumerate(record["implementations"]):
        title = record["title"] if index == 0 else ""
        name = f"{row['name']} ({row['variant']})" if row["variant"] else row["name"]
        if row["error"]:
            reason = row["error"].strip().splitlines()[-1].replace("|", "\\|")
            rows.append(f"| {title} | {name} | failed: {reason} | | | | | | |")
            continue
        found = figures(record, row)
        targets = [target for target in TARGETS if (target.case, target.peer) == (record["case"], row["name"])]
        cells = (
            title,
            name,
            _number(row["median"]) + ("†" if row["scale"] != 1 else ""),
            _number(found[Kind.TIME]),
            _number(found[Kind.PEAK]),
            _number(found[Kind.MEMORY]) if row["scale"] == 1 else "",
            "" if row["relative_error"] is None else f"{row['relative_error']:.0e}",
            "<br>".join(target.words() for target in targets),
            "<br>".join(verdict(target, found) for target in targets),
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _notes(records: Sequence[Record]) -> list[str]:
    """What the table cannot say: scaled figures, and other remarks of the implementations, each once."""
    lines = ["† Scaled: a part of the work was measured, whose cost is linear; its memory is that of the part.", ""]
    for record in records:
        for row in record["implementations"]:
            line = f"- {record['group']}, {row['name']}: {row['note']}."
            if row["note"] and line not in lines:
                lines.append(line)
    return lines


def _rate(row: Mapping) -> float | None:
    return None if row["operations"] is None else _quotient(row["operations"], row["median"])


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
