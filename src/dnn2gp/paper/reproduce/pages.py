"""What a run shows: the pictures of a figure, its section in the report, and the table on the console."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from dnn2gp.paper.figure_kind import FigureKind
from dnn2gp.paper.figure_result import FigureResult
from dnn2gp.plots.report import Section
from dnn2gp.plots.style import DPI
from dnn2gp.support.files import write_bytes

_VERDICTS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "–"}


def section(folder: Path, kind: FigureKind, result: FigureResult) -> Section:
    """Write the pictures as PNG and PDF, and return the section of the report."""
    pictures, files = {}, []
    for suffix, figure in kind.draw(result).items():
        name = "-".join(part for part in (kind.name, suffix) if part)
        for file_kind in ("png", "pdf"):
            content = _rendered(figure, file_kind)
            write_bytes(folder / "pictures" / f"{name}.{file_kind}", content)
            files.append(f"pictures/{name}.{file_kind}")
            if file_kind == "png":
                pictures[name] = content
    files += [f"results/{kind.name}.{ending}" for ending in ("npz", "json")]
    return Section(
        name=kind.name,
        title=kind.title,
        caption=kind.caption,
        pictures=pictures,
        config=result.config,
        seconds=result.seconds,
        resumed=result.resumed,
        claims=result.claims,
        maps=kind.maps(result),
        files=tuple(files),
    )


def _rendered(figure: Figure, kind: str) -> bytes:
    """The file without its date, so that the same numbers give the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=DPI, metadata={"CreationDate": None} if kind == "pdf" else None)
    return file.getvalue()


def summary(result: FigureResult, earlier: bool) -> str:
    """One line about a figure: its time, and how many of its claims hold."""
    judged = [claim for claim in result.claims if claim.holds is not None]
    hold = sum(bool(claim.holds) for claim in judged)
    time = "from an earlier run" if earlier else f"{result.seconds:.0f} s"
    return f"{time}; {hold} of {len(judged)} testable claims hold" if judged else time


def claims_table(sections: Sequence[Section]) -> Table:
    """What was measured; the report also quotes the paper."""
    table = Table(title="Measured", caption="–: no verdict, because the paper gives no number")
    for name in ("figure", "claim", "measured", "as in the paper"):
        table.add_column(name, overflow="fold")
    for own in sections:
        for claim in own.claims:
            table.add_row(own.name, claim.what, claim.measured, _VERDICTS[claim.holds])
    return table
