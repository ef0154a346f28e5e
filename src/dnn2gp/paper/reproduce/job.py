"""The job: run the figures in turn, keep each result as soon as it is there, draw, and write one report."""

from __future__ import annotations

import io
import shutil
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save as save_tensors

from dnn2gp.paper.figure_result import PRESETS, FigureResult, plain
from dnn2gp.paper.reproduce.figures import FIGURES, FigureKind, Place
from dnn2gp.plots.report import Section, html
from dnn2gp.plots.report.claim import Claim
from dnn2gp.plots.style import DPI
from dnn2gp.support.errors import EXPECTED, FileFormatError, InputError, NotAMinimumWarning, OtherWorkError
from dnn2gp.support.files import write_bytes, write_text
from dnn2gp.support.progress import show_progress, waiting

ALL = "all"
REPORT = "report.html"
SMOKE = "smoke"
_SMALL = "A little of each figure, to see that it works: far too little to judge what the paper says."


@dataclass(frozen=True)
class ReproduceConfig:
    """Which figures, how much of them, and where they go."""

    figures: tuple[str, ...] = (ALL,)
    preset: str = "paper"
    out: Path = Path("dnn2gp-figures")
    resume: bool = False

    def kinds(self) -> list[FigureKind]:
        """The figures in the order of the paper, each once."""
        asked = [name.lower().replace("-", "_") for name in self.figures]
        unknown = [name for name in asked if name != ALL and name not in FIGURES]
        if unknown or not asked:
            known = ", ".join((ALL, *FIGURES))
            raise InputError(f"figure: expected one of {known}; got {', '.join(unknown) or 'none'}.")
        return [kind for kind in FIGURES.values() if ALL in asked or kind.name in asked]

    @property
    def folder(self) -> Path:
        """Of this preset: no preset touches the files of another."""
        return self.out / self.preset


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    results: dict[str, FigureResult]
    failures: dict[str, str]
    """Figure → why it is not there."""
    report: Path


def run(config: ReproduceConfig, console: Console | None = None) -> Outcome:
    """Run, draw and report. A figure that fails is named at the end; the others are made all the same."""
    console = console or Console()
    if config.preset not in PRESETS:
        raise InputError(f"preset: expected {' or '.join(PRESETS)}; got {config.preset!r}.")
    kinds = config.kinds()
    _prepare(config, kinds)
    results: dict[str, FigureResult] = {}
    sections: dict[str, Section] = {}
    failures: dict[str, str] = {}
    for position, kind in enumerate(kinds, 1):
        console.print(f"[{position}/{len(kinds)}] {kind.name}: {kind.title}", highlight=False, markup=False)
        try:
            result, again = _result(config, kind, console)
            with show_progress(), waiting(f"drawing {kind.name}"):
                sections[kind.name] = _section(config, kind, result)
        except Exception as error:
            failures[kind.name] = str(error) or type(error).__name__
            if not isinstance(error, EXPECTED):
                console.print_exception()
            console.print(f"    not made: {failures[kind.name]}", style="red", highlight=False, markup=False)
            continue
        results[kind.name] = result
        console.print(f"    {_line(result, again)}", highlight=False, markup=False)
    report = config.folder / REPORT
    _write(config, report, sections, results, failures)
    if config.preset == SMOKE:
        console.print(_SMALL, highlight=False)
    elif sections:
        console.print(_table(list(sections.values())))
    console.print(f"The report: {report}", highlight=False)
    return Outcome(results, failures, report)


def _write(
    config: ReproduceConfig,
    report: Path,
    sections: dict[str, Section],
    results: dict[str, FigureResult],
    failures: dict[str, str],
) -> None:
    """One page of all figures of this preset in the folder, in the order of the paper, those of earlier runs too."""
    shown, seconds, versions = [], 0.0, {}
    for kind in FIGURES.values():
        found = results.get(kind.name)
        if found is None and kind.name not in failures:
            found = _earlier(config, kind)
            try:
                sections |= {kind.name: _section(config, kind, found)} if found is not None else {}
            except KeyError as error:  # of an older version
                found, failures[kind.name] = None, f"its earlier result has no {error}: run it again with --resume"
        if found is not None:
            shown.append(sections[kind.name])
            seconds, versions = seconds + found.seconds, versions or found.versions
    note = _SMALL if config.preset == SMOKE else ""
    title = "dnn2gp: the figures of the paper"
    write_text(report, html(title, shown, config.preset, versions, seconds, failures, note))


def _prepare(config: ReproduceConfig, kinds: Sequence[FigureKind]) -> None:
    """The folders. Without `resume` nothing may be there of these figures: it would be lost."""
    try:
        for name in ("results", "pictures"):
            (config.folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot make the folder {config.out}: {error.strerror}. Choose another (--out).") from error
    if config.resume:
        return
    for kind in kinds:
        places = [f"results/{kind.name}.json", f"work/{kind.name}"]
        places += [f"weights/{kind.name}"] if kind.network == kind.name else []
        for place in places:
            if (config.folder / place).exists():
                raise InputError(
                    f"{config.folder / place} is there already, from an earlier run. Keep what is finished and go on "
                    "with --resume, choose another folder (--out), or delete it."
                )


def _earlier(config: ReproduceConfig, kind: FigureKind) -> FigureResult | None:
    """The result of an earlier run with the same configuration, if there is a whole one; its claims judged anew."""
    folder = config.folder / "results"
    if not (folder / f"{kind.name}.json").exists():
        return None
    own = kind.preset(config.preset)
    try:
        found = FigureResult.load(folder, kind.name)
        if found.config != plain(own):
            return None
        claims = _judged(config, kind.claims(found.arrays, own))
        if claims != found.claims:
            found = replace(found, claims=claims)
            found.save_words(folder)
        return found
    except (FileFormatError, KeyError):  # damaged, or without an array that is asked for now
        return None


def _result(config: ReproduceConfig, kind: FigureKind, console: Console) -> tuple[FigureResult, bool]:
    """That of an earlier run, if one is to be gone on with; else of a new one, saved."""
    found = _earlier(config, kind) if config.resume else None
    if found is not None:
        return found, True
    work, weights = (config.folder / name for name in ("work", "weights"))
    place = Place(work / kind.name, weights / (kind.network or kind.name), config.resume)
    begun = place.work.exists() or _has_begun_weights(config, kind)
    with show_progress(), warnings.catch_warnings():
        if config.preset == SMOKE:
            warnings.simplefilter("ignore", NotAMinimumWarning)  # its trainings are cut short
        result = _run(kind, kind.preset(config.preset), place)
    result = replace(result, claims=_judged(config, result.claims), resumed=begun)
    if result.weights:
        place.weights.mkdir(parents=True, exist_ok=True)
        write_bytes(place.weights / "networks.safetensors", save_tensors(result.weights))
    result.save(config.folder / "results")
    shutil.rmtree(place.work, ignore_errors=True)
    with suppress(OSError):  # other figures may have theirs there
        work.rmdir()
    return result, False


def _run(kind: FigureKind, own: object, place: Place) -> FigureResult:
    """What is left of work with other settings (of an older version) is made anew."""
    try:
        return kind.run(own, place)
    except OtherWorkError:
        shutil.rmtree(place.work)
        return kind.run(own, place)


def _has_begun_weights(config: ReproduceConfig, kind: FigureKind) -> bool:
    """Whether a network of its own was already trained, in part or whole; that of another figure does not count."""
    borrowed = (config.folder / "results" / f"{kind.network}.json").exists() and kind.network != kind.name
    return bool(kind.network) and not borrowed and (config.folder / "weights" / kind.network).exists()


def _judged(config: ReproduceConfig, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """A little of each figure says nothing about the paper."""
    return tuple(replace(claim, holds=None) for claim in claims) if config.preset == SMOKE else claims


def _section(config: ReproduceConfig, kind: FigureKind, result: FigureResult) -> Section:
    """Its pictures as PNG and PDF in their folder, and as a part of the report."""
    pictures, files = {}, []
    for ending, figure in kind.draw(result).items():
        name = "-".join(part for part in (kind.name, ending) if part)
        for file_kind in ("png", "pdf"):
            path = config.folder / "pictures" / f"{name}.{file_kind}"
            content = _drawn(figure, file_kind)
            write_bytes(path, content)
            files.append(f"pictures/{path.name}")
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


def _drawn(figure: Figure, kind: str) -> bytes:
    """Without the date, so that the same numbers give the same file."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=DPI, metadata={"CreationDate": None} if kind == "pdf" else None)
    return file.getvalue()


def _line(result: FigureResult, again: bool) -> str:
    judged = [claim for claim in result.claims if claim.holds is not None]
    hold = sum(bool(claim.holds) for claim in judged)
    time_words = "from the earlier run" if again else f"{result.seconds:.0f} s"
    return f"{time_words}; {hold} of {len(judged)} claims hold" if judged else time_words


def _table(sections: Sequence[Section]) -> Table:
    """What was measured; what the paper says of it is in the report."""
    table = Table(title="What was measured", caption="–: not judged, as the paper says nothing or no number of it")
    for name in ("figure", "what", "measured", "as the paper says"):
        table.add_column(name, overflow="fold")
    for section in sections:
        for claim in section.claims:
            table.add_row(section.name, claim.what, claim.measured, _verdict(claim))
    return table


def _verdict(claim: Claim) -> str:
    return {True: "[green]yes[/green]", False: "[red]no[/red]", None: "–"}[claim.holds]
