"""Tables of users: what is read, how it is encoded, and what is refused and where."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dnn2gp.apps.tables import ClassTarget, Encoder, NumberTarget, Table, choose_columns, read_table
from dnn2gp.apps.tables.columns import numbers_the_rows
from dnn2gp.apps.tables.dates import days
from dnn2gp.support.errors import FileFormatError, InputError

FRAME = pd.DataFrame(
    {
        "age": [23, 35, 41, 29, 60, 18],
        "income": [1.5, 2.25, 3.0, 0.5, 9.75, 1e-3],
        "city": ["Oslo", "Rome, Italy", "Oslo", "Lima", "Lima", "Oslo"],
        "member": [True, False, True, True, False, False],
        "price": [10.0, 20.5, 15.25, 8.0, 40.0, 12.5],
    }
)


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def encoder(table: Table, target: str = "price", rows: np.ndarray | None = None, **options: bool) -> Encoder:
    rows = np.arange(len(table)) if rows is None else rows
    return Encoder.fit(table, choose_columns(table, target), NumberTarget.fit(table, target, rows), rows, **options)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_separators_are_told(separator: str, ending: str, mark: str, tmp_path: Path) -> None:
    text = mark + FRAME.to_csv(sep=separator, index=False, lineterminator=ending)
    table = read_table(written(tmp_path, text))
    assert table.names == list(FRAME)
    np.testing.assert_array_equal(table.numbers("income"), FRAME["income"])
    assert table.texts("city").tolist() == list(FRAME["city"])
    assert table.texts("member").tolist() == ["true" if member else "false" for member in FRAME["member"]]


def test_decimal_commas(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a;b;c\n1,5;x,1;3\n-2,25e1;y,2;4\n;z;5\n"))
    np.testing.assert_array_equal(table.numbers("a"), [1.5, -22.5, np.nan])
    assert table.texts("b").tolist() == ["x,1", "y,2", "z"]


def test_a_text_with_commas_does_not_change_the_separator(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "name;x\na,b,c,d;1\ne,f;2\n"))
    assert table.texts("name").tolist() == ["a,b,c,d", "e,f"]


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    """Through empty lines and through texts of several lines."""
    table = read_table(written(tmp_path, 'x,y\n\n1,"two\nlines"\n2,b\n\n3,c\n'))
    assert table.lines == (3, 5, 7)
    assert table.where(2, "y") == "data.csv, line 7, column 'y'"


def test_parquet(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "data.anything")
    table = read_table(tmp_path / "data.anything")
    pd.testing.assert_frame_equal(table.frame, FRAME, check_column_type=False)
    assert table.where(0, "age") == "data.anything, row 1, column 'age'"
    columns = choose_columns(table, "price")
    assert columns.numeric == ("age", "income")
    assert columns.categories == {"city": ("Lima", "Oslo", "Rome, Italy"), "member": ("false", "true")}


def test_a_csv_file_and_its_frame_are_encoded_alike(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, FRAME.to_csv(index=False)))
    ours = encoder(table)
    assert ours.state() == encoder(Table(FRAME, "frame")).state()
    np.testing.assert_array_equal(ours.inputs(table), ours.inputs(Table(FRAME, "frame")))


def test_encoding() -> None:
    """Numbers standardised by the rows of the fit, one input per category, one for true and false."""
    table, rows = Table(FRAME, "frame"), np.array([0, 2, 3, 5])
    found = encoder(table, rows=rows)
    numbers = ["age", "income"]
    scaler = StandardScaler().fit(FRAME[numbers].to_numpy()[rows])
    hot = OneHotEncoder(sparse_output=False).fit_transform(FRAME[["city"]])
    expected = np.hstack([scaler.transform(FRAME[numbers].to_numpy()), hot, FRAME[["member"]].to_numpy(dtype=float)])
    np.testing.assert_allclose(found.inputs(table), expected, rtol=1e-14)
    scaled = StandardScaler().fit(FRAME[["price"]].to_numpy()[rows]).transform(FRAME[["price"]].to_numpy())
    np.testing.assert_allclose(found.targets(table), scaled, rtol=1e-14)
    assert found.num_inputs == 2 + 3 + 1


def test_imputation() -> None:
    holes = FRAME.astype(object)
    holes.loc[1, "age"], holes.loc[4, "city"], holes.loc[0, "member"] = None, np.nan, pd.NA
    table = Table(holes, "frame")
    found = encoder(table, impute=True)
    ages = SimpleImputer(strategy="median").fit_transform(FRAME[["age"]].astype(float).where(holes[["age"]].notna()))
    inputs = found.inputs(table)
    np.testing.assert_allclose(inputs[:, :1], StandardScaler().fit_transform(ages), rtol=1e-14)
    assert inputs[4, 2:5].tolist() == [0, 1, 0]  # Oslo, of Lima, Oslo and "Rome, Italy"
    assert inputs[0, 5] == 0  # of the five that are left, three are false
    with pytest.raises(InputError, match=r"row 1, column 'member': the value is missing \(3 cells"):
        encoder(table)


def test_state_is_json() -> None:
    table = Table(FRAME, "frame")
    for names in (list(FRAME), ["age", "income", "price"], ["city", "price"], ["member", "price"]):
        for impute in (False, True):
            own = Table(FRAME[names], "frame")
            found = encoder(own, rows=np.array([0, 2, 3, 5]), impute=impute)
            again = Encoder.from_state(json.loads(json.dumps(found.state())))
            assert again.state() == found.state()
            assert again.num_inputs == found.num_inputs
            np.testing.assert_array_equal(again.inputs(own), found.inputs(own))
            np.testing.assert_array_equal(again.targets(own), found.targets(own))
    holes = FRAME.astype(object)
    holes.loc[1, "age"], holes.loc[4, "city"] = None, np.nan
    found = encoder(table, impute=True)
    again = Encoder.from_state(json.loads(json.dumps(found.state())))
    np.testing.assert_array_equal(again.inputs(Table(holes, "new")), found.inputs(Table(holes, "new")))


@pytest.mark.parametrize(
    "damage", [[], {}, {"columns": [{"kind": "date"}]}, {"columns": []}, {"target": {"task": "x"}}]
)
def test_a_state_that_is_damaged(damage: object) -> None:
    state = encoder(Table(FRAME, "frame")).state()
    with pytest.raises(FileFormatError, match="Tune again"):
        Encoder.from_state({**state, **damage} if isinstance(damage, dict) and damage else damage)


def test_classes() -> None:
    frame = pd.DataFrame({"x": range(5), "y": [10.0, 9.0, 10.0, 2.0, 9.0]})
    target = ClassTarget.fit(Table(frame, "frame"), "y", np.arange(5))
    assert target.classes == ("2", "9", "10")
    assert target.encode(Table(frame, "frame")).tolist() == [2, 1, 2, 0, 1]


def test_numbers_that_are_names() -> None:
    table = Table(FRAME, "frame")
    assert choose_columns(table, "price", categorical=["age"]).categories["age"][0] == "18"
    assert "age" not in choose_columns(table, "price", drop=["age"]).names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"a,b\n1,2,3\n", r"line 2: expected 2 cells.*got 3"),
        (b"a,b,a\n1,2,3\n", "several columns named 'a'"),
        (b"a\n1\n2\n", "only one column"),
        (b"1.5,2,3\n4,5,6\n", "first line holds numbers"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "binary data"),
        (b"PK\x03\x04\x14\0", "workbook"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"a,b\n1,2\n3,caf\xe9\n", "line 3: not UTF-8"),
        (b"PAR1 and no more", "not a complete Parquet file"),
    ],
)
def test_files_that_are_no_tables(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_table(written(tmp_path, content))


def test_places_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "no.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are those of POSIX")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    """And so is a device, which need not end."""
    fifo = tmp_path / "data.csv"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/null")):
        with pytest.raises(InputError, match="pipe"):
            read_table(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,c,y\n1,5,2\n2,5.0,3\n", "'c' .*--drop-constant"),
        ("x,c,y\n1,a,2\n2,a,3\n", "'c' .*--drop-constant"),
        ("x,c,y\n1,,2\n2,,3\n", "'c' .*--drop-constant"),
        (
            "x,c,y\n1,4,2\n2,5,3\n3,6,4\n4,6b,4\n",
            r"line 5, column 'c' \(got '6b'\): expected a number.*--categorical 'c'",
        ),
        (",x,y\n0,4,2\n1,5,3\n", "column 1 has no name.*--drop 'Unnamed: 0'"),
        ("x,y\n" + "".join(f"id{i},{i}\n" * 2 for i in range(101)), "'x' has 101 different texts.*--drop 'x'"),
        ("x,y\n" + "".join(f"id{i},{i}\n" for i in range(11)), "every cell of column 'x'.*--drop 'x'"),
    ],
)
def test_columns_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        choose_columns(read_table(written(tmp_path, text)), "y")


def test_refused_columns_can_be_left_out(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, ",x,c,y\n0,1,5,2\n1,2,5,3\n"))
    assert choose_columns(table, "y", drop=["Unnamed: 0"], drop_constant=True).names == ("x",)
    with pytest.raises(InputError, match="no columns are left"):
        choose_columns(table, "y", drop=["Unnamed: 0", "x"], drop_constant=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Price", "did you mean 'price'"),
        ("incme", "did you mean 'income'"),
        ("q", r"no column 'q'\. Its columns are: age"),
    ],
)
def test_a_column_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_columns(Table(FRAME, "frame"), name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,a\n2,b\n", "target 'y' holds text.*--task classification"),
        ("x,y\n1,true\n2,false\n", "target 'y' holds text.*--task classification"),
        ("x,y\n1,1\n2,2\n3,3\n4,x\n", r"line 5, column 'y' \(got 'x'\): expected a number"),
        ("x,y\n1,4\n2,4\n", "'y' is 4 in all rows"),
        ("x,y\n1,4\n2,\n3,5\n4,NA\n", "line 3, column 'y': the target is missing in 2 rows"),
        ("x,y\n1,4\n2,inf\n", "line 3, column 'y' .*infinite"),
        ("x,y\n1,1e200\n2,3e200\n", "line 2, column 'y' .*too large"),
        ("x,y\n1,4\n-inf,5\n", "line 3, column 'x' .*infinite"),
        ("x,y\n1,4\n1e999,5\n", "line 3, column 'x' .*infinite"),
        ("x,y\n1,4\n?,5\n2,5\n", "line 3, column 'x': the value is missing"),
        ("x,y\n1,4\n,5\n2,5\n,6\n", r"line 3, column 'x': the value is missing \(2 cells.*--impute"),
    ],
)
def test_cells_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        encoder(read_table(written(tmp_path, text)), "y")


@pytest.mark.parametrize(
    ("values", "message"),
    [(["a", "a", "a"], "'y' is 'a' in all rows"), ([str(i) for i in range(51)], "51 different values.*regression")],
)
def test_classes_that_are_refused(values: list[str], message: str) -> None:
    table = Table(pd.DataFrame({"x": range(len(values)), "y": values}), "frame")
    with pytest.raises(InputError, match=message):
        ClassTarget.fit(table, "y", np.arange(len(values)))


def test_other_kinds_of_columns_are_refused() -> None:
    for values in (pd.to_timedelta(range(6), unit="D"), np.arange(6) * (1 + 2j)):
        frame = FRAME.assign(other=values)
        with pytest.raises(InputError, match="'other'"):
            choose_columns(Table(frame, "frame"), "price")


def test_complex_numbers_are_refused_wherever_they_are_read() -> None:
    """As the target, and in new rows, where the imaginary part would be dropped."""
    frame = FRAME.assign(price=FRAME["price"] * 1j, age=FRAME["age"] + 0j)
    with pytest.raises(InputError, match="'price'"):
        NumberTarget.fit(Table(frame, "frame"), "price", np.arange(6))
    with pytest.raises(InputError, match="'age'"):
        encoder(Table(FRAME, "frame")).inputs(Table(frame, "new"))


def test_new_rows_with_a_column_twice_are_refused() -> None:
    twice = pd.concat([FRAME, FRAME[["age"]]], axis=1)
    with pytest.raises(InputError, match="'age'"):
        encoder(Table(FRAME, "frame")).inputs(Table(twice, "new"))


# Dates and ids --------------------------------------------------------------------------------------------------------

DATES = {
    "1970-01-01": 0.0,
    "1970-01-02": 1.0,
    "2000/2/29": 11016.0,
    "0001-01-01": -719162.0,
    "1970-01-01 12:00": 0.5,
    "1970-01-01T06:00:00.0": 0.25,
    "1970-01-01T00:00:00Z": 0.0,
    "1970-01-01 12:00+02:00": 10 / 24,
    "1970-01-01 12:00-0130": 13.5 / 24,
    "2001-02-29": np.nan,
    "2001-13-01": np.nan,
    "2001-1-1 24:00": np.nan,
    "2001-1-1 extra": np.nan,
    "20010101": np.nan,
}


def test_days_since_the_epoch() -> None:
    np.testing.assert_allclose(days(pd.Series(list(DATES))), list(DATES.values()), rtol=0, atol=1e-9)


def dated(values: object) -> Table:
    return Table(pd.DataFrame({"day": values, "x": np.arange(28) % 5, "price": np.arange(28.0)}), "frame")


@pytest.mark.parametrize("kind", ["text", "datetime64", "with a zone", "date"])
def test_dates_become_days(kind: str) -> None:
    """Not 28 categories."""
    known = pd.date_range("2024-02-01", periods=28)
    values = {
        "text": known.strftime("%Y-%m-%d"),
        "datetime64": known,
        "with a zone": known.tz_localize("UTC"),
        "date": known.date,
    }
    table = dated(values[kind])
    columns = choose_columns(table, "price")
    assert (columns.numeric, columns.dates, columns.categories) == (("x",), ("day",), {})
    own = encoder(table)
    expected = StandardScaler().fit_transform(np.arange(28.0)[:, None])[:, 0]
    np.testing.assert_allclose(own.inputs(table)[:, 1], expected)
    restored = Encoder.from_state(json.loads(json.dumps(own.state())))
    np.testing.assert_array_equal(restored.inputs(table), own.inputs(table))
    with pytest.raises(InputError, match="'day'"):
        restored.inputs(dated("soon"))
    assert choose_columns(table, "price", drop=["day"]).names == ("x",)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%y", "%d.%m.%Y", "%d %b %Y", "%B %d, %Y", "%Y-%m", "%d-%b-%y"])
def test_dates_that_can_be_read_in_several_ways_are_refused(form: str) -> None:
    table = dated(pd.date_range("2021-02-01", periods=28, freq="33D").strftime(form))
    with pytest.raises(InputError, match=r"'day'.*--categorical 'day'"):
        choose_columns(table, "price")
    assert "day" in choose_columns(dated(["03/04/2024", "04/03/2024"] * 14), "price", categorical=["day"]).categories


def test_a_cell_among_dates_that_is_none_is_refused() -> None:
    values = [*pd.date_range("2024-02-01", periods=27).strftime("%Y-%m-%d"), "2024-02-30"]
    with pytest.raises(InputError, match="row 28, column 'day'"):
        choose_columns(dated(values), "price")
    with pytest.raises(InputError, match=r"row 28, column 'day'.*time zone"):
        choose_columns(dated([*(f"2024-02-{day:02}T10:00Z" for day in range(1, 28)), "2024-02-28"]), "price")


@pytest.mark.parametrize("name", ["id", "ID", "Id", "index", "customer_id", "customerId", "customerID", "Row"])
def test_ids_are_no_numbers(name: str) -> None:
    frame = pd.DataFrame({name: np.arange(20)[::-1], "x": np.arange(20) % 3, "price": np.arange(20.0)})
    with pytest.raises(InputError, match=f"'{name}'.*--drop '{name}'"):
        choose_columns(Table(frame, "frame"), "price")
    assert choose_columns(Table(frame, "frame"), "price", drop=[name]).numeric == ("x",)
    repeated = Table(frame.assign(**{name: np.arange(20) // 2}), "frame")  # not an id
    assert choose_columns(repeated, "price").numeric == (name, "x")


@pytest.mark.parametrize("name", ["year", "paid", "PAID", "width", "Unnamed: x"])
def test_numbers_that_all_differ_are_numbers(name: str) -> None:
    frame = pd.DataFrame({name: np.arange(20), "price": np.arange(20.0)})
    assert choose_columns(Table(frame, "frame"), "price").numeric == (name,)
    assert numbers_the_rows(Table(frame, "frame"), name)


# Cells of any length --------------------------------------------------------------------------------------------------


def test_cells_that_are_too_long_are_refused_where_they_are(tmp_path: Path) -> None:
    for text in ("x,y\n1,2\n1," + "9" * 140_000 + "\n", 'x,y\n1,2\n"' + "3,4\n" * 40_000):
        with pytest.raises(InputError, match=r"data\.csv, line 3"):
            read_table(written(tmp_path, text))


@pytest.mark.slow
def test_a_long_line_of_short_cells_is_no_long_cell(tmp_path: Path) -> None:
    """Read with any other separator, it would be."""
    names = [f"c{i}" for i in range(20_000)]
    table = read_table(written(tmp_path, ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"))
    assert table.names == names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"city": "Bonn"}, r"row 2, column 'city' \(got 'Bonn'\): not one of the 3 categories"),
        ({"age": "old"}, r"row 2, column 'age' \(got 'old'\): expected a number"),
        ({"member": "maybe"}, r"row 2, column 'member' \(got 'maybe'\): not one of .*false, true"),
        ({"income": None}, "row 2, column 'income': the value is missing"),
        ({"income": np.inf}, "row 2, column 'income' .*infinite"),
    ],
)
def test_new_rows_that_are_refused(change: dict, message: str) -> None:
    known = encoder(Table(FRAME, "frame"))
    new = FRAME.drop(columns="price").astype(object)
    for name, value in change.items():
        new.loc[1, name] = value
    with pytest.raises(InputError, match=message):
        known.inputs(Table(new, "new"))


def test_new_rows_with_other_columns() -> None:
    known = encoder(Table(FRAME, "frame"))
    turned = FRAME[["member", "city", "income", "age"]].assign(more=1)
    np.testing.assert_array_equal(known.inputs(Table(turned, "new")), known.inputs(Table(FRAME, "frame")))
    with pytest.raises(InputError, match="new lacks the columns 'age', 'city'"):
        known.inputs(Table(FRAME.drop(columns=["city", "age"]), "new"))
    with pytest.raises(InputError, match="new has no rows"):
        known.inputs(Table(FRAME.iloc[:0], "new"))
