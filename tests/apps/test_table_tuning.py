"""`dnn2gp tune`: the files, the model against plain linear algebra, errors of users, and a tuning that is killed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import forked
import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from dnn2gp.apps.cli import app
from dnn2gp.apps.table_tuning import TableTuningConfig, load_table_model, run
from dnn2gp.apps.table_tuning.job import _fit
from dnn2gp.apps.table_tuning.problem import TableProblem, num_weights, widths_of
from dnn2gp.apps.table_tuning.training import TableFit
from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.support.errors import DivergedError, FileFormatError, InputError
from dnn2gp.support.folders import claimed
from dnn2gp.tune.restarts import Fitted

SMOKE = ("tune", "--preset", "smoke", "--width", "1,2")
TINY = replace(TableTuningConfig.preset("smoke"), widths=(2,), repeats=1, max_rounds=1, target="price")


def flats(count: int = 40) -> pd.DataFrame:
    """Prices of flats, made up."""
    generator = np.random.default_rng(1)
    rooms, size = generator.integers(1, 6, count), generator.normal(60, 20, count).round(1)
    city = generator.choice(["Lima", "Oslo", "Rome"], count)
    garden = generator.random(count) < 0.4
    price = 100 + 2 * size + 15 * rooms + 40 * (city == "Oslo") + 25 * garden + generator.normal(0, 8, count)
    return pd.DataFrame({"rooms": rooms, "size": size, "city": city, "garden": garden, "price": price.round(1)})


def quick_fit(
    build: Callable[[], torch.nn.Module],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    likelihood: Likelihood,
    *,
    seed: int,
    **_: int,
) -> Fitted:
    """In place of a training: random hidden units, the last layer by least squares."""
    torch.manual_seed(seed)
    network = build()
    wanted = targets if targets.ndim == 2 else 4 * torch.nn.functional.one_hot(targets).double() - 2
    with torch.no_grad():
        hidden = torch.cat([network[:-1](inputs), torch.ones(len(inputs), 1)], 1).double()
        found = torch.linalg.lstsq(hidden, wanted).solution
        network[-1].weight.copy_(found[:-1].T)
        network[-1].bias.copy_(found[-1])
        error = (network(inputs) - wanted).square().mean().item()
    known = GaussianLikelihood(error**0.5) if likelihood.is_open else likelihood
    return Fitted(network, known, 1.0, -error, 0.0, 1, False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about training."""
    monkeypatch.setattr("dnn2gp.apps.table_tuning.training.fit_restarts", quick_fit)


def invoke(*arguments: object):
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})


def spoken(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "flats.csv"
    flats().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def finished(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole run of the command with a table to predict: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    flats(47).iloc[40:].drop(columns="price").assign(mean="kept").to_csv(folder / "new.csv", index=False)
    out = folder / "out"
    result = invoke(*SMOKE, table, "--target", "price", "--predict", folder / "new.csv", "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


# What a run leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_and_table(finished: tuple[Path, str]) -> None:
    out, output = finished
    names = {path.name for path in out.iterdir()} - {"jobs", "purpose.json", ".dnn2gp.lock"}
    pictures = {"width.png", "prior_precision.png", "calibration.png"}
    assert names == pictures | {
        "model.safetensors", "predictions.csv", "preprocessing.json", "report.html", "tuning.json",
    }  # fmt: skip
    assert all((out / name).read_bytes().endswith(b"IEND\xaeB`\x82") for name in pictures)
    assert "40 rows, 4 columns (2 numeric, 2 categorical)" in output
    assert all(str(out / name) in output.replace("\n", "") for name in names)
    tuning = TuningResult.load(out / "tuning.json")
    assert f"Chosen: width {tuning.best['width']}, depth 1 (tanh)" in spoken(output)
    assert len(list((out / "jobs").iterdir())) == len(tuning.trials) == 4


def test_the_choice_is_that_of_the_largest_mean_evidence(finished: tuple[Path, str]) -> None:
    state = json.loads((finished[0] / "tuning.json").read_text())
    trials = pd.DataFrame([{**trial["settings"], **trial["values"]} for trial in state["trials"]])
    assert state["best"]["width"] == trials.groupby("width")["evidence"].mean().idxmax()
    columns = {"evidence", "prior_precision", "sigma", "train_error", "test_error", "relative_gradient"}
    assert columns | {"train_log_likelihood", "test_log_likelihood"} <= set(trials)


def test_report_is_one_file_with_everything(finished: tuple[Path, str]) -> None:
    out, _ = finished
    text = (out / "report.html").read_text(encoding="utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    files = [out / f"{name}.png" for name in ("width", "prior_precision", "calibration")]
    assert [base64.b64decode(image) for image in images] == [file.read_bytes() for file in files]
    assert not re.findall(r'(?:src|href)="(?!data:)', text)  # nothing is fetched
    for words in (
        "Chosen: width",
        "test RMSE",
        "With each example left out, the GP has",
        "load_table_model",
        "8 randomly chosen rows",
    ):
        assert words in text, words


@pytest.mark.usefixtures("quick")
def test_words_of_the_table_are_escaped_in_the_report(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    flats().rename(columns={"price": evil}).to_csv(tmp_path / "<b>&.csv", index=False)
    run(replace(TINY, data=tmp_path / "<b>&.csv", target=evil, out=tmp_path / "out"), Console(quiet=True))
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert text.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 2
    assert "<script>alert" not in text
    assert "<b>" not in text


def test_predictions_keep_the_columns_that_came(finished: tuple[Path, str]) -> None:
    out, _ = finished
    new, found = pd.read_csv(out.parent / "new.csv"), pd.read_csv(out / "predictions.csv")
    pd.testing.assert_frame_equal(found[list(new)], new)
    assert list(found)[len(list(new)) :] == ["predicted_mean", "std", "epistemic_std", "lower", "upper"]
    ours = load_table_model(out).predict(new.set_index(pd.Index(list("abcdefg"))))
    assert list(ours.index) == list("abcdefg")
    np.testing.assert_allclose(ours["mean"], found["predicted_mean"], rtol=1e-12)
    truth = flats(47).iloc[40:]["price"]
    assert np.abs(ours["mean"] - truth.to_numpy()).max() < 60  # prices spread over some hundreds


def test_predictions_are_those_of_plain_linear_algebra(finished: tuple[Path, str]) -> None:
    """mean = f_w(x) − J Σ g, var = J Σ Jᵀ + σ², Σ = (JᵀJ/σ² + δI)⁻¹: from the files and from nothing of the package."""
    out, _ = finished
    tensors = load_file(out / "model.safetensors")
    how = json.loads((out / "preprocessing.json").read_text())
    frame = pd.read_csv(out.parent / "new.csv")
    columns = []
    for column in how["columns"]:
        cells = frame[column["name"]]
        if column["kind"] == "number":
            columns.append((cells - column["mean"]) / column["scale"])
        else:
            texts, categories = cells.astype(str).str.lower(), [name.lower() for name in column["categories"]]
            kept = categories[1:] if len(categories) == 2 else categories
            columns += [(texts == category).astype(float) for category in kept]
    x = torch.tensor(np.stack(columns, 1))
    weights = [tensors[f"network/{name}"] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]

    def network(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, inputs: torch.Tensor):
        return (torch.tanh(inputs @ a.T + b) @ c.T + d)[:, 0]

    def jacobian(inputs: torch.Tensor) -> torch.Tensor:
        parts = torch.autograd.functional.jacobian(lambda *w: network(*w, inputs), tuple(weights))
        return torch.cat([part.flatten(1) for part in parts], 1)

    sigma, trained = tensors["likelihood/sigma"].item(), jacobian(tensors["inputs/0"])
    (precision,) = {value for name, each in tensors.items() if name.startswith("prior/") for value in
                    each.flatten().unique().tolist() if value != 0}  # fmt: skip
    posterior = torch.linalg.inv(trained.T @ trained / sigma**2 + precision * torch.eye(trained.shape[1]).double())
    rows = jacobian(x)
    epistemic = ((rows @ posterior) * rows).sum(1)
    mean, scale = how["target"]["mean"], how["target"]["scale"]
    std = scale * (epistemic + sigma**2).sqrt().numpy()
    residual = tensors["expansion/residual"][:, 0]
    flat = torch.cat([weight.flatten() for weight in weights])
    step = posterior @ (trained.T @ residual + precision * flat)  # nearly 0: the network is near a minimum
    outputs = network(*weights, x)
    middle = mean + scale * (outputs - rows @ step).numpy()
    np.testing.assert_allclose(middle, mean + scale * outputs.numpy(), rtol=2e-3)
    found = load_table_model(out).predict(frame)
    np.testing.assert_allclose(found["mean"], middle, rtol=1e-7)
    np.testing.assert_allclose(found["std"], std, rtol=1e-6)
    np.testing.assert_allclose(found["epistemic_std"], scale * epistemic.sqrt().numpy(), rtol=1e-6)
    np.testing.assert_allclose(found["upper"] - found["lower"], 2 * 1.644853627 * std, rtol=1e-6)


def test_models_that_cannot_be_loaded(finished: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"preprocessing\.json does not exist"):
        load_table_model(tmp_path)
    shutil.copy(finished[0] / "model.safetensors", tmp_path)
    state = json.loads((finished[0] / "preprocessing.json").read_text())
    old = {**{name: value for name, value in state.items() if name != "sha256"}, "format": 2}
    network, columns = old["network"], old["columns"]
    contents = {
        "{": "JSON",
        "[" * 100_000: "JSON",
        '{"format": ' + "9" * 5000 + "}": "JSON",
        json.dumps({**old, "format": 99}): "format",
        json.dumps({**state, "impute": not state["impute"]}): "sha256",
        json.dumps({**state, "sha256": None}): "sha256",
        json.dumps({**old, "network": {}}): "network",
        json.dumps({**old, "network": {**network, "depth": 10**7}}): "network",
        json.dumps({**old, "network": {**network, "width": 10**9}}): "network",
        json.dumps({**old, "network": {**network, "width": "2"}}): "network",
        json.dumps({**old, "network": {**network, "activation": ["tanh"]}}): "network",
        json.dumps({**old, "columns": [{}]}): "encoding",
        json.dumps({**old, "columns": columns[1:]}): "network",
        json.dumps({**old, "columns": [{**columns[0], "mean": 10**400}, *columns[1:]]}): "encoding",
    }
    for content, message in contents.items():
        (tmp_path / "preprocessing.json").write_text(content)
        with pytest.raises(FileFormatError, match=message):
            load_table_model(tmp_path)
    (tmp_path / "preprocessing.json").write_text(json.dumps(old))  # format 2 has no checksum
    assert load_table_model(tmp_path).architecture == load_table_model(finished[0]).architecture


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_classes(tmp_path: Path) -> None:
    frame = flats(60)
    frame["price"] = np.where(frame["price"] > frame["price"].median(), "dear", "cheap")
    frame.to_parquet(tmp_path / "flats.parquet")
    config = replace(TINY, data=tmp_path / "flats.parquet", task="classification", out=tmp_path / "out")
    result = run(config, Console(quiet=True))
    found = load_table_model(tmp_path / "out").predict(frame)
    assert list(found) == ["class", "p_cheap", "p_dear"]
    np.testing.assert_allclose(found["p_cheap"] + found["p_dear"], 1, rtol=1e-12)
    assert (found["class"] == np.where(found["p_dear"] > 0.5, "dear", "cheap")).all()
    assert (found["class"] == frame["price"]).mean() > 0.8
    assert "sigma" not in result.tuning.values
    assert "calibration error" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_depths_no_test_rows_and_a_training_that_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sometimes(build: Callable[[], torch.nn.Sequential], *arguments: torch.Tensor, **options: int) -> Fitted:
        if len(build()) > 3:
            raise DivergedError("no number")
        return quick_fit(build, *arguments, **options)

    monkeypatch.setattr("dnn2gp.apps.table_tuning.training.fit_restarts", sometimes)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": generator.normal(size=30), "price": generator.integers(0, 2, 30)})
    frame.to_csv(tmp_path / "data.csv", index=False)
    out = tmp_path / "out"
    config = replace(TINY, data=tmp_path / "data.csv", widths=(2,), depths=(1, 2), test_share=0.0, out=out)
    result = run(config, Console(quiet=True))
    assert result.tuning.best == {"width": 2, "depth": 1}
    assert "test_error" not in result.tuning.values
    names = {path.name for path in result.files}
    assert "depth.png" in names
    assert not names & {"width.png", "calibration.png"}
    report = (out / "report.html").read_text(encoding="utf-8")
    for note in ("1 of 2 training runs diverged", "only 2 different values"):
        assert any(note in each for each in result.notes)
        assert note in report
    assert "--test-share 0" in report


@pytest.mark.usefixtures("blank_pictures")
def test_scores_that_are_no_numbers_break_no_report(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one repeat of one setting, and in all of them."""
    call = TableFit.__call__

    def broken(fit: TableFit, width: int, depth: int, repeat: int) -> dict[str, float]:
        bad = {"test_error": np.nan, "evidence": np.nan if (width, repeat) == (3, 0) else -1.0}
        return call(fit, width, depth, repeat) | bad

    monkeypatch.setattr("dnn2gp.apps.table_tuning.training.fit_restarts", quick_fit)
    monkeypatch.setattr(TableFit, "__call__", broken)
    config = replace(TINY, data=table, widths=(2, 3), repeats=2, out=tmp_path / "out")
    found = run(config, Console(quiet=True))
    assert found.tuning.best["width"] == 2
    assert "diverged" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick", "blank_pictures")
def test_the_user_is_told_what_each_column_was_taken_for(tmp_path: Path) -> None:
    frame = flats().assign(day=pd.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d"), year=range(1980, 2020))
    frame.assign(same=1, code=range(40)).to_csv(tmp_path / "data.csv", index=False)
    out = tmp_path / "out"
    options = ("--drop", "code", "--drop-constant", "--repeats", 1, "--out", out)
    result = invoke(*SMOKE, tmp_path / "data.csv", "--target", "price", *options)
    assert result.exit_code == 0, result.output
    report = re.sub(r"<[^>]*>|&#39;", " ", (out / "report.html").read_text(encoding="utf-8"))
    for text in (spoken(result.output).replace(":", ""), spoken(report)):
        for words in (
            "rooms a number", "city a category with 3 levels", "day a date", "year a number; it counts",
            "code left out, as asked", "same left out, because it is constant",
        ):  # fmt: skip
            assert words in text, words
    assert "day" in {own["name"] for own in json.loads((out / "preprocessing.json").read_text())["columns"]}
    assert len(load_table_model(out).predict(frame)) == 40


@pytest.mark.parametrize("seed", [2**63, -1])
def test_seeds_that_are_refused(seed: int, table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="seed"):
        run(replace(TINY, data=table, out=tmp_path, seed=seed), Console(quiet=True))


def test_two_tunings_do_not_share_a_folder(table: Path, tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(InputError, match="out"):
        run(replace(TINY, data=table, out=tmp_path), Console(quiet=True))


# Choices --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_rows_held_out_play_no_part(table: Path, tmp_path: Path) -> None:
    """Other cells in the rows held out: the same evidences, δ and σ, and other test errors."""
    config = replace(TINY, data=table)
    held = TableProblem.of(config).held_out
    assert len(held) == 8
    changed = pd.read_csv(table)
    changed.loc[held, "price"] += 1000.0
    changed.loc[held, "size"] *= 3
    changed.to_csv(tmp_path / "changed.csv", index=False)
    first, second = (
        _fit(config, TableProblem.of(replace(config, data=path)))(2, 1, 0) for path in (table, tmp_path / "changed.csv")
    )
    for name, value in first.items():
        assert (value == second[name]) == (not name.startswith("test"))


def test_classes_are_held_out_in_their_shares(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(43.0), "price": ["a"] * 30 + ["b"] * 10 + ["c"] * 2 + ["d"]})
    frame.to_csv(tmp_path / "data.csv", index=False)
    problem = TableProblem.of(replace(TINY, data=tmp_path / "data.csv", task="classification", test_share=0.5))
    assert frame["price"][problem.held_out].value_counts().to_dict() == {"a": 15, "b": 5, "c": 1}
    assert sorted([*problem.training, *problem.held_out]) == list(range(43))


def test_usual_widths_that_make_many_weights_are_left_out() -> None:
    assert widths_of(TableTuningConfig(), 10, 1) == ((2, 5, 10, 20, 50), [])
    assert widths_of(TableTuningConfig(), 30, 3) == ((2, 5, 10, 20), [50])
    assert widths_of(TableTuningConfig(), 2000, 1) == ((2,), [5, 10, 20, 50])
    with pytest.raises(InputError, match=r"width.*20,601 weights"):
        widths_of(TableTuningConfig(widths=(200,)), 101, 1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    assert num_weights(3, 2, 4, 2) == sum(weight.numel() for weight in module.parameters())


# Errors of users ------------------------------------------------------------------------------------------------------


def table_of(target: str = "", z: str = "", cell: str | None = None, names: str = "x,z,price", count: int = 12) -> str:
    """A CSV file: x and z numbers, the target numbers or these letters in turn; `cell` is put into line 7 of z."""
    rows = [
        [i, {"": i % 3, "id": f"id{i}"}.get(z, z), target[i % len(target)] if target else 2 * i] for i in range(count)
    ]
    if cell is not None:
        rows[5][1] = cell
    return "\n".join([names, *(",".join(map(str, row)) for row in rows)])


USERS = {
    "text target": (table_of("ab"), [], "the target 'price' holds text ('a', 'b')"),
    "what to do with it": (table_of("ab"), [], "use --task classification."),
    "constant column": (table_of(z="7"), [], "all cells of 'z' are the same"),
    "what to do with that": (table_of(z="7"), [], "--drop-constant"),
    "NaN": (
        table_of(cell="nan"),
        [],
        "data.csv, line 7, column 'z': the value is missing.",
    ),
    "no cell": (table_of(cell=""), [], "data.csv, line 7, column 'z': the value is missing."),
    "infinity": (table_of(cell="inf"), [], "data.csv, line 7, column 'z' (got 'inf')"),
    "one row": ("x,z,price\n1,2,3", [], "data.csv has 1 row; expected at least 5"),
    "no row": ("x,z,price", [], "data.csv has 0 rows; expected at least 5"),
    "no target": (table_of(names="x,z,cost"), [], "has no column 'price'. Its columns are: x, z, cost."),
    "misspelt": (table_of(names="x,z,prize"), [], "has no column 'price'; did you mean 'prize'? Its columns are"),
    "twice": (table_of(names="x,x,price"), [], "several columns named 'x'"),
    "empty": ("", [], "data.csv is empty"),
    "binary": ("\0\0\0", [], "contains binary data"),
    "constant target": (table_of("4"), [], "the target 'price' is 4 in all rows"),
    "one class": (
        table_of("a"),
        ["--task", "classification"],
        "'a' in all rows. Classification needs at least two classes",
    ),
    "ids": (table_of(z="id", count=120), [], "every cell of column 'z' has a different text"),
    "no --predict": (table_of(), ["--predict", "no.csv"], "no.csv does not exist"),
    "width": (table_of(), ["--width", "two"], "width: expected whole numbers, such as 2,5,10; got two"),
    "widths": (table_of(), ["--width", "2,2"], "width: expected distinct integers ≥ 1; got 2, 2"),
    "share": (table_of(), ["--test-share", "1.5"], "test-share: expected a share"),
    "small share": (table_of(), ["--test-share", "0.01"], "leaves 12 training rows and 0 test rows"),
    "activation": (table_of(), ["--activation", "step"], "activation: expected one of tanh"),
}


@pytest.mark.parametrize(("content", "options", "message"), USERS.values(), ids=USERS)
def test_errors(content: str, options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(content)
    result = invoke("tune", tmp_path / "data.csv", "--target", "price", "--out", tmp_path / "out", *options)
    assert result.exit_code == 1, result.output
    assert message in spoken(result.stderr)
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_other_errors(table: Path, tmp_path: Path) -> None:
    frame = flats(10).drop(columns=["price", "city"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "file").write_text("")
    known = ("tune", table, "--target", "price")
    for arguments, message in (
        (("tune", tmp_path / "no.csv", "--target", "price"), "no.csv does not exist. Give the path"),
        (
            ("tune", table),
            "expected the column to predict; got none. Give --target, one of: rooms, size, city, garden, price.",
        ),
        ((*known, "--predict", tmp_path / "new.csv"), "new.csv lacks the column 'city', which the model predicts from"),
        ((*known, "--drop", "bath"), "has no column 'bath'"),
        ((*known, "--drop", "price"), "'price' is the target"),
        ((*known, "--out", tmp_path / "file" / "out"), "Cannot write to the folder"),
        ((*known, "--width", "3000"), "got 24,001 weights"),
    ):
        result = invoke(*arguments, *(() if "--out" in arguments else ("--out", tmp_path / "out")))
        assert result.exit_code == 1
        assert message in spoken(result.stderr)
        assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_refused_tables_can_be_used_with_the_options_that_are_offered(tmp_path: Path) -> None:
    frame = flats().astype(object).assign(same=1, code=np.arange(40) % 3)
    frame.loc[3, "size"], frame.loc[5, "city"] = None, None
    frame.to_csv(tmp_path / "data.csv", index=True, sep=";")
    options = ("--impute", "--drop-constant", "--drop", "Unnamed: 0", "--categorical", "code", "--repeats", 1)
    out = tmp_path / "out"
    known = ("tune", "--preset", "smoke", "--width", 1, tmp_path / "data.csv", "--target", "price", "--out", out)
    result = invoke(*known, *options)
    assert result.exit_code == 0, result.output
    assert "left out: Unnamed: 0, same; missing cells filled in" in spoken(result.output)
    columns = {each["name"]: each for each in json.loads((out / "preprocessing.json").read_text())["columns"]}
    assert columns["size"]["fill"] == flats()["size"].drop(3).median()
    assert columns["code"]["categories"] == ["0", "1", "2"]


def test_help_names_the_options() -> None:
    text = invoke("tune", "--help").output
    options = (
        "--target",
        "--width",
        "--depth",
        "--activation",
        "--repeats",
        "--predict",
        "--task",
        "--impute",
        "--jobs",
    )
    for option in (*options, "--drop-constant", "--test-share", "--out", "--seed", "--resume", "--preset"):
        assert option in text


def test_options_reach_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TableTuningConfig] = []
    monkeypatch.setattr("dnn2gp.apps.table_tuning.run", lambda config, console: seen.append(config))
    assert invoke("tune").exit_code == 0
    words = "a.csv --target y --width 2,5 --width 9 --depth 2 --repeats 7 --jobs 3 --drop a --drop b --seed 4 --resume"
    assert invoke("tune", *words.split(), "--preset", "smoke").exit_code == 0
    assert seen[0] == TableTuningConfig()
    assert (seen[1].data, seen[1].target, seen[1].widths, seen[1].depths) == (Path("a.csv"), "y", (2, 5, 9), (2,))
    assert (seen[1].repeats, seen[1].jobs, seen[1].drop, seen[1].seed, seen[1].resume) == (7, 3, ("a", "b"), 4, True)
    assert seen[1].max_rows == 100


# Interrupts -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_finished(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to go on; and what is there is neither overwritten nor taken for something else."""
    calls = []

    def interrupted(self: TableFit, **setting: int) -> dict[str, float]:
        calls.append(setting)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return {"evidence": -1.0}

    monkeypatch.setattr(TableFit, "__call__", interrupted)
    out = tmp_path / "out"
    known = (*SMOKE, "--target", "price", "--out", out)
    result = invoke(*known, table)
    assert result.exit_code == 130
    assert f"The finished jobs are in {out / 'jobs'}. Continue with --resume." in result.stdout.replace("\n", "")
    assert len(_jobs(out)) == 1
    assert not (out / "tuning.json").exists()
    again = invoke(*known, table)
    assert again.exit_code == 1
    assert "holds an earlier tuning" in spoken(again.stderr)
    flats(41).to_csv(tmp_path / "other.csv", index=False)
    for arguments in ((tmp_path / "other.csv",), (table, "--seed", 1), (table, "--repeats", 3)):
        other = invoke(*known, "--resume", *arguments)
        assert other.exit_code == 1
        assert "holds a different tuning" in spoken(other.stderr)
    assert len(calls) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_tuning_goes_on_to_the_same_result(finished: tuple[Path, str], table: Path, tmp_path: Path) -> None:
    """kill −9 after two jobs; the resumed run writes the tuning.json of an uninterrupted one and repeats no job."""
    out = tmp_path / "cut"
    command = ["-m", "dnn2gp", *SMOKE, table, "--target", "price", "--out", out]
    process = forked.Process(command, checked=False)
    limit = time.monotonic() + 120
    while time.monotonic() < limit and len(_jobs(out)) < 2:
        time.sleep(0.005)
    process.kill()
    before = _jobs(out)
    assert 2 <= len(before) < 4
    assert not (out / "tuning.json").exists()
    forked.run([*command, "--resume"], checked=False)
    after = _jobs(out)
    assert len(after) == 4
    assert {name: after[name] for name in before} == before  # neither written again nor touched
    assert (out / "tuning.json").read_bytes() == (finished[0] / "tuning.json").read_bytes()


def _jobs(out: Path) -> dict[str, int]:
    """The finished jobs, and when each was written."""
    return {path.name: path.stat().st_mtime_ns for path in out.glob("jobs/[!.]*.json")}
