"""The job: run the figures in turn, keep each result as soon as it is there, draw, and write one report."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from dnn2gp.errors import DivergedError, FileFormatError, InputError, MemoryBudgetError
from dnn2gp.experiments.result import PRESETS, Claim, Result, plain
from dnn2gp.files import write_bytes, write_text
from dnn2gp.plots.style import DPI
from dnn2gp.progress import show_progress
from dnn2gp.report import Section, html
from dnn2gp.reproduce.figures import FIGURES, FigureKind, Place

ALL = "all"
REPORT = "report.html"
# A figure that fails for one of these leaves the others as they are.
_FAILURES = (InputError, FileFormatError, DivergedError, MemoryBudgetError)


@dataclass(frozen=True)
class ReproduceConfig:
    """Which figures, how much of them, and where they go."""

    figures: tuple[str, ...] = (ALL,)
    preset: str = "paper"
    out: Path = Path("dnn2gp-figures")
    resume: bool = False

    def kinds(self) -> list[FigureKind]:
        """The figures in the order of the paper, each once."""
        unknown = [name for name in self.figures if name != ALL and name not in FIGURES]
        if unknown or not self.figures:
            known = ", ".join((ALL, *FIGURES))
            raise InputError(f"figure: expected one of {known}; got {', '.join(unknown) or 'none'}.")
        return [kind for kind in FIGURES.values() if ALL in self.figures or kind.name in self.figures]


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    results: dict[str, Result]
    failures: dict[str, str]
    """Figure → why it is not there."""
    report: Path


def run(config: ReproduceConfig, console: Console | None = None) -> Outcome:
    """Run, draw and report. A figure whose data are missing is named at the end; the others are made all the same."""
    console = console or Console()
    if config.preset not in PRESETS:
        raise InputError(f"preset: expected {' or '.join(PRESETS)}; got {config.preset!r}.")
    kinds = config.kinds()
    begin = time.perf_counter()
    _prepare(config, kinds)
    results: dict[str, Result] = {}
    sections: list[Section] = []
    failures: dict[str, str] = {}
    for position, kind in enumerate(kinds, 1):
        console.print(f"[{position}/{len(kinds)}] {kind.name}: {kind.title}", highlight=False, markup=False)
        try:
            result, again = _result(config, kind, console)
        except _FAILURES as error:
            failures[kind.name] = str(error)
            console.print(f"    not there: {error}", style="red", highlight=False, markup=False)
            continue
        results[kind.name] = result
        sections.append(_section(config, kind, result))
        console.print(f"    {_line(result, again)}", highlight=False, markup=False)
    report = config.out / REPORT
    if sections:
        total = time.perf_counter() - begin
        write_text(report, html(_title(config), sections, config.preset, next(iter(results.values())).versions, total))
    console.print(_table(sections))
    if sections:
        console.print(f"The report: {report}", highlight=False)
    return Outcome(results, failures, report)


def _prepare(config: ReproduceConfig, kinds: Sequence[FigureKind]) -> None:
    """The folders; without `resume` nothing of an earlier run of these figures is left."""
    try:
        for name in ("results", "pictures"):
            (config.out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot make the folder {config.out}: {error.strerror}. Choose another (--out).") from error
    if config.resume:
        return
    for kind in kinds:
        for ending in ("npz", "json"):
            (config.out / "results" / f"{kind.name}.{ending}").unlink(missing_ok=True)
        shutil.rmtree(config.out / "work" / kind.name, ignore_errors=True)
        if kind.network == kind.name:
            shutil.rmtree(config.out / "weights" / kind.name, ignore_errors=True)


def _result(config: ReproduceConfig, kind: FigureKind, console: Console) -> tuple[Result, bool]:
    """That of an earlier run of the same configuration, if one is to be gone on with; else of a new one, saved."""
    given, folder = kind.preset(config.preset), config.out / "results"
    if config.resume and (folder / f"{kind.name}.json").exists():
        try:
            found = Result.load(folder, kind.name)
        except FileFormatError:
            found = None
        if found is not None and found.config == plain(given):
            return found, True
    work, weights = (config.out / name for name in ("work", "weights"))
    place = Place(work / kind.name, weights / (kind.network or kind.name), config.resume)
    with show_progress(console.is_terminal):
        result = kind.run(given, place)
    result.save(folder)
    shutil.rmtree(place.work, ignore_errors=True)
    return result, False


def _section(config: ReproduceConfig, kind: FigureKind, result: Result) -> Section:
    """Its pictures as PNG and PDF in their folder, and as a part of the report."""
    pictures, files = {}, []
    for ending, figure in kind.draw(result).items():
        name = "-".join(part for part in (kind.name, ending) if part)
        for kind_of_file in ("png", "pdf"):
            path = config.out / "pictures" / f"{name}.{kind_of_file}"
            content = _drawn(figure, kind_of_file)
            write_bytes(path, content)
            files.append(f"pictures/{path.name}")
            if kind_of_file == "png":
                pictures[name] = content
    files += [f"results/{kind.name}.{ending}" for ending in ("npz", "json")]
    return Section(
        name=kind.name,
        title=kind.title,
        caption=kind.caption,
        pictures=pictures,
        config=result.config,
        seconds=result.seconds,
        claims=result.claims,
        maps=kind.maps(result),
        files=tuple(files),
    )


def _drawn(figure: Figure, kind: str) -> bytes:
    """Without the date, so that the same numbers give the same file."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=DPI, metadata={"CreationDate": None} if kind == "pdf" else None)
    return file.getvalue()


def _title(config: ReproduceConfig) -> str:
    return "dnn2gp: the figures of the paper" if ALL in config.figures else f"dnn2gp: {', '.join(config.figures)}"


def _line(result: Result, again: bool) -> str:
    judged = [claim for claim in result.claims if claim.holds is not None]
    hold = sum(bool(claim.holds) for claim in judged)
    time_words = "from the earlier run" if again else f"{result.seconds:.0f} s"
    return f"{time_words}; {hold} of {len(judged)} claims hold"


def _table(sections: Sequence[Section]) -> Table:
    """What was measured; what the paper says of it is in the report."""
    table = Table(title="What was measured")
    for name in ("figure", "what", "measured", "as the paper says"):
        table.add_column(name, overflow="fold")
    for section in sections:
        for claim in section.claims:
            table.add_row(section.name, claim.what, claim.measured, _verdict(claim))
    return table


def _verdict(claim: Claim) -> str:
    return {True: "[green]yes[/green]", False: "[red]no[/red]", None: "–"}[claim.holds]
