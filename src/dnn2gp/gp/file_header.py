"""The header of a saved GP: everything that is not a tensor, decoded and checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, final

from dnn2gp.evidence.tuning_result import EVIDENCE, TuningResult
from dnn2gp.inference import Inference, Mean
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.likelihoods import CategoricalLikelihood, is_registered
from dnn2gp.support.choice import Choice
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.json_text import short
from dnn2gp.support.tensor_file import CHECKSUMS
from dnn2gp.weights.columns import SampledColumns
from dnn2gp.weights.structures import Structure

FORMAT_VERSION = 4
_READABLE = (1, 2, 3, 4)
_KEYS = {"format", "dnn2gp", "likelihood", "trainable", "inputs", "features", "quadratic", "prior", "inference"}
# Fields that older files do not have, with the first format that does.
_SINCE = {CHECKSUMS: 3, "mean": 4, "calibration": 4}
_OPTIONAL = {"tuning", "columns", *_SINCE}


@final
@dataclass(frozen=True)
class Header:
    """The fields of a file that this release understands."""

    likelihood: str
    trainable: list[str]
    inputs: str | list[str]
    """`tensor`, `tuple`, `list`, or the keys of a dict."""
    features: str
    """`jacobian`, `gradient` or `step`."""
    quadratic: bool
    prior: Structure
    inference: Inference
    tuning: TuningResult | None
    mean: Mean | None
    """What predictions are centred at; None in files that do not say so."""
    calibration: Calibration
    columns: SampledColumns | None = None
    """How the columns of the roots S were drawn; None if all of them are there."""

    @staticmethod
    def decoded(path: Path, header: Mapping[str, Any]) -> Header:
        """The fields, if each has a value that this release knows; otherwise a `FileFormatError` that names one."""
        found = header.get("format")
        if type(found) is not int or found not in _READABLE:
            raise FileFormatError(
                f"{path} has format {short(found)} (dnn2gp {short(header.get('dnn2gp'))}); this release reads the "
                f"formats {_READABLE}. Install the release that wrote it, or save the GP again."
            )
        if found == 1:
            header = _upgraded(header)
        for name, since in _SINCE.items():
            if found >= since and name not in header:
                raise _unknown(path, header, name)
        _check_fields(path, header)
        if not is_registered(header["likelihood"]):
            raise _unknown(path, header, "likelihood", " (import the module that defines it first)")
        return Header(
            header["likelihood"],
            header["trainable"],
            header["inputs"],
            header["features"],
            header["quadratic"],
            _choice(path, header, "prior", Structure),
            _choice(path, header, "inference", Inference),
            _tuning(path, header),
            _choice(path, header, "mean", Mean) if "mean" in header else None,
            _calibration(path, header),
            _columns(path, header),
        )


def _check_fields(path: Path, header: Mapping[str, Any]) -> None:
    """Refuse fields that are missing, unknown, or of another type."""
    known = {
        "dnn2gp": isinstance(header.get("dnn2gp"), str),
        "likelihood": isinstance(header.get("likelihood"), str),
        "trainable": _names(header.get("trainable")),
        "inputs": header.get("inputs") in ["tensor", "tuple", "list"] or _names(header.get("inputs")),
        "features": header.get("features") in ["jacobian", "gradient", "step"],
        "quadratic": isinstance(header.get("quadratic"), bool),
    }
    for name in [*known, *sorted(set(header) - _KEYS - _OPTIONAL)]:
        if not known.get(name, False):
            raise _unknown(path, header, name)


def _upgraded(header: Mapping[str, Any]) -> dict[str, Any]:
    """A header of format 1, which names the structure beside the inference rather than among its options."""
    name, structure = header.get("inference"), header.get("structure")
    others = {key: value for key, value in header.items() if key != "structure"}
    kind = Inference.kinds.get(name) if isinstance(name, str) else None
    if kind is None or "structure" not in {field.name for field in fields(kind)}:  # pyright: ignore[reportArgumentType]
        return others
    return {**others, "inference": {"name": name, "structure": structure}}


def _choice(path: Path, header: Mapping[str, Any], name: str, kind: type[Choice]) -> Any:
    """The structure, inference or mean of a field, with options of the types that it takes."""
    try:
        choice = kind.decoded(header.get(name))
    except (ValueError, TypeError, AttributeError) as error:
        raise _unknown(path, header, name, f" ({short(str(error))})") from error
    for option in fields(choice) if is_dataclass(choice) else ():
        usual, given = type(option.default), type(getattr(choice, option.name))
        if usual in (bool, int, float, str) and given is not usual and (usual, given) != (float, int):
            raise _unknown(path, header, name, f" ({option.name}: expected {usual.__name__})")
    return choice


def _tuning(path: Path, header: Mapping[str, Any]) -> TuningResult | None:
    """How the hyperparameters were chosen, if every trial has settings and values of the right types."""
    state = header.get("tuning")
    if state is None:
        return None
    valid = isinstance(state, dict) and isinstance(state.get("trials"), list) and _numbers([state.get("evidence")])
    for trial in state["trials"] if valid else ():
        own = trial if isinstance(trial, dict) else {}
        values, repeat = own.get("values"), own.get("repeat")
        valid = valid and _settings(own.get("settings")) and type(repeat) is int and abs(repeat) < 2**63
        valid = valid and isinstance(values, dict) and _numbers(values.values()) and EVIDENCE in values
    notes = state.get("notes") if isinstance(state, dict) else None
    texts = isinstance(notes, list) and all(isinstance(note, str) for note in notes)
    if not valid or not texts or not _settings(state.get("best")) or not isinstance(state.get("converged"), bool):
        raise _unknown(path, header, "tuning")
    return TuningResult.from_state(state, f"{path}: tuning")


def _calibration(path: Path, header: Mapping[str, Any]) -> Calibration:
    """The calibration by the names of its numbers; before format 4, there was none, and at first no `scores`."""
    state, known = header.get("calibration", asdict(NONE)), set(asdict(NONE))
    complete = isinstance(state, dict) and set(state) in (known, known - {"scores"})
    if not complete or not _numbers(state.values()):
        raise _unknown(path, header, "calibration")
    try:
        return Calibration(**{name: float(number) for name, number in state.items()})
    except InputError as error:
        raise _unknown(path, header, "calibration", f" ({short(str(error))})") from error


def _columns(path: Path, header: Mapping[str, Any]) -> SampledColumns | None:
    """How columns were drawn, for a classifier with Gauss-Newton features."""
    state = header.get("columns")
    if state is None:
        return None
    valid = header["likelihood"] == CategoricalLikelihood.name and header["features"] == "jacobian"
    if not valid or not isinstance(state, dict) or set(state) != set(SampledColumns().state()):
        raise _unknown(path, header, "columns")
    try:
        return SampledColumns.restored(state)
    except InputError as error:
        raise _unknown(path, header, "columns", f" ({short(str(error))})") from error


def _settings(value: object) -> bool:
    """Whether these are settings by name: numbers, texts, booleans or None."""
    if not isinstance(value, dict):
        return False
    return all(own is None or isinstance(own, str | bool) or _numbers([own]) for own in value.values())


def _numbers(values: Any) -> bool:
    """Whether all are numbers that a float can hold; evidences may be infinite, or NaN."""
    return all(type(own) is float or (type(own) is int and abs(own) < 2**63) for own in values)


def _unknown(path: Path, header: Mapping[str, Any], name: str, why: str = "") -> FileFormatError:
    return FileFormatError(
        f"{path}: its header has {short(name)[1:-1]} = {short(header.get(name))}, which is not known here{why}. The "
        f"file is damaged or was written by another release (dnn2gp {short(header.get('dnn2gp'))}): save the GP again."
    )


def _names(value: object) -> bool:
    """Whether it is a list of at least one name, none of them twice."""
    names = value if isinstance(value, list) else []
    return len(names) > 0 and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
