"""When files count as changed: as soon as they hold something else and nobody is writing any more."""

import os
from pathlib import Path

import pytest

from gateway.watching import Watch, content, look, passes_once


def watched(*files: Path) -> Watch:
    """Return a watch of files that were read just now, and looked at until nothing was news."""
    watch = Watch(content(files))
    while not watch.looked(look(files)):
        pass
    assert not watch.differs(content(files))
    return watch


def changed(watch: Watch) -> bool:
    """Look twice, as time goes by."""
    watch.looked(look(watch.files))
    return watch.looked(look(watch.files)) and watch.differs(content(watch.files))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text("a")
    return file


def test_nothing_is_read_again_that_is_as_it_was(file: Path) -> None:
    """Nor what was merely touched, or written once more."""
    watch = watched(file)
    assert not changed(watch)
    os.utime(file, ns=(1, 1))
    assert not changed(watch)


def test_what_still_changes_is_waited_for(file: Path) -> None:
    """A file that is half written is not read."""
    watch = watched(file)
    for size in range(2, 5):
        file.write_text("b" * size)
        assert not watch.looked(look([file]))
    assert watch.looked(look([file]))
    assert watch.differs(content([file]))
    assert not watch.looked(look([file])), "once for each change"


def test_an_editor_that_renames_is_noticed(file: Path) -> None:
    """Another file of the same length and time has the name."""
    watch = watched(file)
    at = file.stat().st_mtime_ns
    other = file.with_suffix(".new")
    other.write_text("b")
    os.utime(other, ns=(at, at))
    other.replace(file)
    assert changed(watch)


def test_a_folder_that_is_swapped_behind_a_link_is_noticed(tmp_path: Path) -> None:
    """As Kubernetes does with a ConfigMap: the file is a link into `..data`, which is a link, too."""
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "gateway.yaml").write_text(version)
    data, file = tmp_path / "..data", tmp_path / "gateway.yaml"
    data.symlink_to("..1")
    file.symlink_to("..data/gateway.yaml")
    watch = watched(file)
    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").replace(data)
    assert changed(watch)


def test_a_file_that_is_gone_and_comes_back_as_it_was_is_no_change(file: Path) -> None:
    """Some editors move the old one away first."""
    watch = watched(file)
    file.rename(file.with_suffix(".old"))
    assert not watch.looked(look([file]))
    file.write_text("a")
    assert not changed(watch)


def test_a_file_that_stays_away_is_a_change(file: Path) -> None:
    """Whoever reads it says what is wrong."""
    watch = watched(file)
    file.unlink()
    assert changed(watch)


def test_a_file_that_may_be_read_at_last_is_noticed(file: Path) -> None:
    """Neither its time nor its length is another one then."""
    watch = Watch({file: None})
    while not watch.looked(look([file])):
        pass
    file.chmod(0o640 if file.stat().st_mode & 0o777 != 0o640 else 0o600)
    assert changed(watch)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are none here")
def test_a_pipe_is_not_waited_for(file: Path) -> None:
    """It takes the place of the file, nobody writes to it, and it is gone again."""
    watch = watched(file)
    assert not passes_once(file)
    file.unlink()
    assert not passes_once(file)
    os.mkfifo(file)
    assert passes_once(file)
    assert changed(watch)
    assert content([file]) == {file: None}
