"""A file is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dnn2gp.support import files
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import open_regular, prepare_folder, write_whole


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


@pytest.fixture(params=["fifo", "socket", "device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file that is none; of a device only the mode, since nothing may happen to a real one."""
    path = tmp_path / "special"
    if os.name != "posix":
        pytest.skip("special files are those of POSIX")
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.touch()
        request.getfixturevalue("monkeypatch").setattr(files, "_kind", lambda mode: "a device")
    return path


def test_special_files_are_not_replaced(special: Path) -> None:
    before = special.stat()
    link = special.with_name("link")
    link.symlink_to(special)
    for path in (special, link):
        with pytest.raises(InputError, match=path.name):
            write_whole(path, writer("new"))
    assert os.path.samestat(special.stat(), before)
    assert names(special.parent) == ["link", "special"]


def test_special_files_are_not_opened(special: Path) -> None:
    with pytest.raises(FileFormatError, match="special"):
        open_regular(special)


def test_a_file_exchanged_while_it_is_opened_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    """Regular when its kind is looked up, a FIFO when it is opened."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda path, *flags: open_file(tmp_path / "fifo", *flags))
    with pytest.raises(FileFormatError, match="FIFO"):
        open_regular(tmp_path / "file")


def test_a_target_that_becomes_special_while_writing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def write(place: Path) -> None:
        place.write_text("new")
        os.mkfifo(path)

    with pytest.raises(InputError, match="FIFO"):
        write_whole(path, write)
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_the_mode_of_the_replaced_file_is_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.txt"
    path.touch()
    path.chmod(mode)
    seen: list[int] = []

    def write(place: Path) -> None:
        seen.append(place.stat().st_mode & 0o077)
        place.unlink()  # some writers create their own file
        place.write_text("new")

    write_whole(path, write)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert seen == [0], "others could read it while it was written"


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    def private(place: Path) -> None:
        place.write_text("new")
        place.chmod(0o600)

    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a.txt", private)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_a_ring_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="a"):
        write_whole(tmp_path / "a", writer("new"))


def test_prepare_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
