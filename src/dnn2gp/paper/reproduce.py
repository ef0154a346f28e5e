"""`dnn2gp reproduce`: computes the figures in turn, saves each result when it is finished, and writes one report."""

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

from dnn2gp.paper.figure import PRESETS, FigureKind, FigureResult, Workspace, plain
from dnn2gp.paper.figures import all_figures
from dnn2gp.plots.report import Section, html
from dnn2gp.plots.report.section import Claim
from dnn2gp.plots.style import DPI
from dnn2gp.support.errors import EXPECTED, FileFormatError, InputError, NotAMinimumWarning, OtherWorkError
from dnn2gp.support.files import write_bytes, write_text
from dnn2gp.support.progress import show_progress, waiting

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


_ALL, _SMOKE = "all", "smoke"
_SMALL = (
    "A small version of each figure, to check that everything works. It is far too small to judge the paper's claims."
)


@dataclass(frozen=True)
class ReproduceConfig:
    """Which figures to make, at which size, and where to put them."""

    figures: tuple[str, ...] = (_ALL,)
    preset: str = "paper"
    out: Path = Path("dnn2gp-figures")
    resume: bool = False

    def kinds(self) -> list[FigureKind]:
        """The chosen figures in the order of the paper, each once."""
        known = all_figures()
        asked = [name.lower().replace("-", "_") for name in self.figures]
        unknown = [name for name in asked if name != _ALL and name not in known]
        if unknown or not asked:
            names = ", ".join((_ALL, *known))
            raise InputError(f"figure: expected one of {names}; got {', '.join(unknown) or 'none'}.")
        return [kind for kind in known.values() if _ALL in asked or kind.name in asked]

    @property
    def folder(self) -> Path:
        """The folder of this preset; presets do not touch one another's files."""
        return self.out / self.preset


@dataclass(frozen=True)
class Outcome:
    """What a run produced."""

    results: dict[str, FigureResult]
    failures: dict[str, str]
    """Figure → why it is missing."""
    report: Path


def run(config: ReproduceConfig, console: Console | None = None) -> Outcome:
    """Compute, draw and report. A figure that fails is named at the end and does not stop the others."""
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
            result, earlier = _result(config, kind)
            with show_progress(), waiting(f"drawing {kind.name}"):
                sections[kind.name] = section(config.folder, kind, result)
        except Exception as error:
            failures[kind.name] = str(error) or type(error).__name__
            if not isinstance(error, EXPECTED):
                console.print_exception()
            console.print(f"    failed: {failures[kind.name]}", style="red", highlight=False, markup=False)
            continue
        results[kind.name] = result
        console.print(f"    {summary(result, earlier)}", highlight=False, markup=False)
    report = _write_report(config, sections, results, failures)
    if config.preset == _SMOKE:
        console.print(_SMALL, highlight=False)
    elif sections:
        console.print(claims_table(list(sections.values())))
    console.print(f"Report: {report}", highlight=False)
    return Outcome(results, failures, report)


def _write_report(
    config: ReproduceConfig,
    sections: dict[str, Section],
    results: dict[str, FigureResult],
    failures: dict[str, str],
) -> Path:
    """One page with all figures of this preset in the folder, including those of earlier runs."""
    shown, seconds, versions = [], 0.0, {}
    for kind in all_figures().values():
        found = results.get(kind.name)
        if found is None and kind.name not in failures:
            found = _earlier(config, kind)
            try:
                sections |= {kind.name: section(config.folder, kind, found)} if found is not None else {}
            except KeyError as error:  # a result of an older version
                why = f"its earlier result does not contain {error}: run it again with --resume"
                found, failures[kind.name] = None, why
        if found is not None:
            shown.append(sections[kind.name])
            seconds, versions = seconds + found.seconds, versions or found.versions
    report, note = config.folder / "report.html", _SMALL if config.preset == _SMOKE else ""
    title = "dnn2gp: the figures of the paper"
    write_text(report, html(title, shown, config.preset, versions, seconds, failures, note))
    return report


def _prepare(config: ReproduceConfig, kinds: Sequence[FigureKind]) -> None:
    """Create the folders. Without `resume`, raise an error instead of overwriting earlier results of these figures."""
    try:
        for name in ("results", "pictures"):
            (config.folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Cannot create the folder {config.out}: {error.strerror}. Choose another folder (--out)."
        ) from error
    if config.resume:
        return
    for kind in kinds:
        places = [f"results/{kind.name}.json", f"work/{kind.name}"]
        places += [f"weights/{kind.name}"] if kind.network == kind.name else []
        for place in places:
            if (config.folder / place).exists():
                raise InputError(
                    f"{config.folder / place} already exists, from an earlier run. Use --resume to keep what is "
                    "finished and continue, choose another folder (--out), or delete it."
                )


def _earlier(config: ReproduceConfig, kind: FigureKind) -> FigureResult | None:
    """The complete result of an earlier run with the same configuration, if any; its claims are judged again."""
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
            found.save_json(folder)
        return found
    except (FileFormatError, KeyError):  # damaged, or without an array that is needed now
        return None


def _result(config: ReproduceConfig, kind: FigureKind) -> tuple[FigureResult, bool]:
    """The result, and whether it is from an earlier run; a new one is saved."""
    found = _earlier(config, kind) if config.resume else None
    if found is not None:
        return found, True
    work, weights = (config.folder / name for name in ("work", "weights"))
    workspace = Workspace(work / kind.name, weights / (kind.network or kind.name), config.resume)
    resumed = (work / kind.name).exists() or _has_begun_weights(config, kind)
    with show_progress(), warnings.catch_warnings():
        if config.preset == _SMOKE:
            warnings.simplefilter("ignore", NotAMinimumWarning)  # its training runs are cut short
        result = _run(kind, kind.preset(config.preset), workspace)
    result = replace(result, claims=_judged(config, result.claims), resumed=resumed)
    if result.weights:
        (weights / kind.name).mkdir(parents=True, exist_ok=True)
        write_bytes(weights / kind.name / "networks.safetensors", save_tensors(result.weights))
    result.save(config.folder / "results")
    shutil.rmtree(work / kind.name, ignore_errors=True)
    with suppress(OSError):  # not empty: other figures have unfinished work there
        work.rmdir()
    return result, False


def _run(kind: FigureKind, own: object, workspace: Workspace) -> FigureResult:
    """Unfinished work with other settings, left by an older version, is discarded."""
    try:
        return kind.run(own, workspace)
    except OtherWorkError:
        assert workspace.work is not None
        shutil.rmtree(workspace.work)
        return kind.run(own, workspace)


def _has_begun_weights(config: ReproduceConfig, kind: FigureKind) -> bool:
    """Whether the figure's own network is already trained, at least in part; a shared network does not count."""
    borrowed = (config.folder / "results" / f"{kind.network}.json").exists() and kind.network != kind.name
    return bool(kind.network) and not borrowed and (config.folder / "weights" / kind.network).exists()


def _judged(config: ReproduceConfig, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The smoke preset is too small for verdicts."""
    return tuple(replace(claim, holds=None) for claim in claims) if config.preset == _SMOKE else claims
