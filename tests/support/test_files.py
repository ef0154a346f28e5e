"""A file is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dnn2gp.support.errors import InputError
from dnn2gp.support.files import prepare_folder, write_whole


def writer(text: str, then: BaseException | None = None) -> Callable[[Path], None]:
    """Writes the text, then fails with `then`."""

    def write(place: Path) -> None:
        place.write_text(text)
        if then is not None:
            raise then

    return write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_alone_in_its_folder(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", writer("new"))
    assert (tmp_path / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a longer old text")
    write_whole(tmp_path / "a.txt", writer("new"))
    assert (tmp_path / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    seen: list[str] = []

    def write(place: Path) -> None:
        place.write_text("new")
        seen.append(path.read_text())

    write_whole(path, write)
    assert seen == ["old"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_failure_leaves_things_as_they_were(tmp_path: Path, failure: BaseException, old: str | None) -> None:
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_text(old)
    with pytest.raises(type(failure)):
        write_whole(path, writer("half a", failure))
    assert names(tmp_path) == ([] if old is None else ["a.txt"])
    assert old is None or path.read_text() == old


def test_the_temporary_file_is_in_the_same_folder_with_the_same_ending(tmp_path: Path) -> None:
    places: list[Path] = []

    def write(place: Path) -> None:
        places.append(place)
        place.write_text("new")

    write_whole(tmp_path / "picture.png", write)
    assert places[0].parent == tmp_path
    assert places[0].suffix == ".png"
    assert places[0].name != "picture.png"


def test_the_contents_are_on_the_disk_before_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("fsync"), fsync(file))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b))[1])
    write_whole(tmp_path / "a.txt", writer("new"))
    assert events == ["fsync", "replace"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.txt"
    real.parent.mkdir()
    real.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    write_whole(link, writer("new"))
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", writer("new"))
    (tmp_path / "b.txt").write_text("ordinary")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing does not exist"):
        write_whole(tmp_path / "missing" / "a.txt", writer("new"))


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        write_whole(tmp_path / "file" / "a.txt", writer("new"))


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        write_whole(tmp_path / "folder", writer("new"))


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="permission"):
        write_whole(tmp_path / "a.txt", writer("new"))
    assert names(tmp_path) == []


def test_prepare_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
