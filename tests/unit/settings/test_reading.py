"""Files of a configuration that are none: nobody waits for them for ever, and they end."""

import os
import threading
from pathlib import Path

import pytest

from gateway.settings.reading import content_of


def test_a_file_is_read_to_its_bound(tmp_path: Path) -> None:
    """And one byte more, which says that it is too long."""
    file = tmp_path / "f"
    file.write_bytes(b"x" * 200_000)
    assert content_of(file, 200_000) == b"x" * 200_000
    assert content_of(file, 100_000) == b"x" * 100_001
    assert len(content_of(Path("/dev/zero"), 100_000)) == 100_001
    with pytest.raises(IsADirectoryError):
        content_of(tmp_path, 10)


def test_a_pipe_into_which_nobody_writes_is_empty(tmp_path: Path) -> None:
    """Whoever opens it otherwise waits for a writer, for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert content_of(tmp_path / "pipe", 10) == b""


def test_a_pipe_is_read_until_its_writer_has_ended() -> None:
    """As the shell makes them, `<(envsubst < gateway.yaml)`; the text may come in pieces."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"upstreams:")

        def end() -> None:
            os.write(writing, b" {}")
            os.close(writing)

        later = threading.Thread(target=end)
        later.start()
        assert content_of(Path(f"/dev/fd/{reading}"), 100) == b"upstreams: {}"
        later.join()
    finally:
        os.close(reading)


def test_a_writer_that_does_not_end_is_left() -> None:
    """What it wrote may be half of it."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"upstreams:")
        with pytest.raises(TimeoutError, match="does not come to an end"):
            content_of(Path(f"/dev/fd/{reading}"), 100, patience=0.05)
    finally:
        os.close(reading)
        os.close(writing)
