"""Numbers in a file: read at any moment they are whole, and they outlive the process that counted."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.support.ledger import Ledger, read_ledger

SMALL = 4096
"""The least that a file can be mapped by."""

COUNTING = """
import os, sys
from pathlib import Path
from gateway.support.ledger import Ledger
from gateway.support.metrics import Metrics

metrics = Metrics(version="1", ledger=Ledger.create(Path(sys.argv[1])))
for n in range(1000):
    metrics.exchange_started("/mcp")
    metrics.exchange("/mcp", "tools/call", "ok", 0.5)
    metrics.rejected("/mcp", "rate")
print("counted", flush=True)
while True:
    metrics.upstream_up("alpha", True)
"""


@pytest.mark.parametrize("size", [1, 18])
def test_what_is_counted_is_read_at_once(tmp_path: Path, size: int) -> None:
    """By the same process or another: it is the same file."""
    ledger = Ledger.create(tmp_path / "one")
    cell = ledger.cell("hits", ("alpha", "täglich"), size)
    assert len(cell) == size
    cell[0] += 2
    cell[-1] += 0.5
    expected = [2.5] if size == 1 else [2.0, *[0.0] * (size - 2), 0.5]
    assert read_ledger(tmp_path / "one") == {("hits", ("alpha", "täglich")): expected}
    assert repr(ledger) == "<Ledger one, 1 cells, 1 segments>"


def test_the_file_is_new_and_its_owners_alone(tmp_path: Path) -> None:
    """Nobody counts in what another left."""
    Ledger.create(tmp_path / "one")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Ledger.create(tmp_path / "one")
    assert read_ledger(tmp_path / "none") == {}
    (tmp_path / "empty").touch()
    assert read_ledger(tmp_path / "empty") == {}


def test_where_there_is_no_room_for_a_file_it_is_counted_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway serves without metrics rather than not at all, and goes on once there is room."""
    folder = tmp_path / "full"
    ledger = Ledger.create(folder / "one")
    cell = ledger.cell("hits", ("alpha",), 1)
    cell[0] += 1
    assert cell[0] == 1
    assert read_ledger(folder / "one") == {}
    assert caplog.messages == [
        f"no space for more metrics in {folder}/one, some will be missing: No such file or directory"
    ]
    folder.mkdir()
    ledger.cell("hits", ("beta",), 1)[0] += 2
    assert read_ledger(folder / "one") == {("hits", ("beta",)): [2.0]}
    assert (folder / "one").stat().st_mode & 0o777 == 0o600


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["make", "make", "count", "release"]),
            st.text(max_size=40),
            st.sampled_from([1, 5, 18]),
        ),
        max_size=200,
    )
)
def test_a_reader_sees_what_is_there_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    """Over many segments, with cells that are released and places that are used again."""
    path = tmp_path_factory.mktemp("ledger") / "one"
    ledger = Ledger.create(path, segment=SMALL)
    cells = {}
    for what, name, size in steps:
        key = f"m{size}", (name,)
        if what == "make" and key not in cells:
            cells[key] = ledger.cell(*key, size)
        elif what == "count" and key in cells:
            cells[key][size // 2] += 1
        elif what == "release" and key in cells:
            del cells[key]
            ledger.release(*key)
    assert read_ledger(path, segment=SMALL) == {key: list(cell) for key, cell in cells.items()}


def test_a_place_is_used_again_and_begins_at_zero(tmp_path: Path) -> None:
    """Upstreams may come and go for years."""
    path = tmp_path / "one"
    ledger = Ledger.create(path, segment=SMALL)
    for n in range(1000):
        ledger.cell("calls", (f"up{n}",), 18)[3] += 7
        ledger.release("calls", (f"up{n}",))
    assert path.stat().st_size == SMALL
    ledger.cell("calls", ("last",), 18)
    assert read_ledger(path, segment=SMALL) == {("calls", ("last",)): [0.0] * 18}


def test_what_finds_no_space_is_counted_for_this_process_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and nobody's request fails for it."""
    ledger = Ledger.create(tmp_path / "one", segment=SMALL, most=2)
    cells = [ledger.cell("calls", (f"up{n}",), 18) for n in range(100)]
    for cell in cells:
        cell[0] += 1
    ledger.cell("calls", ("x" * SMALL,), 1)[0] += 1
    ledger.release("calls", ("up99",))
    read = read_ledger(tmp_path / "one", segment=SMALL)
    assert 0 < len(read) < 100
    assert all(numbers[0] == 1.0 for numbers in read.values())
    assert caplog.text.count("no space for more metrics") == 1


def test_without_any_room_a_process_counts_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves all the same, and its numbers are in the file as soon as there is room."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        ledger = Ledger.create(tmp_path / "one")
        ledger.cell("calls", ("alpha",), 1)[0] += 1
    assert read_ledger(tmp_path / "one") == {}
    assert caplog.text.count("no space for more metrics in") == 1
    ledger.cell("calls", ("beta",), 1)[0] += 2
    assert read_ledger(tmp_path / "one") == {("calls", ("beta",)): [2.0]}
    nowhere = Ledger.create(tmp_path / "none" / "one")
    nowhere.cell("calls", ("alpha",), 1)[0] += 1
    assert read_ledger(tmp_path / "none" / "one") == {}


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    """A hole in a mapped file would end the process with SIGBUS when it is filled."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n" + (
        "from pathlib import Path\n"
        "from gateway.support.ledger import Ledger, read_ledger\n"
        "ledger = Ledger.create(Path(sys.argv[1]))\n"
        "cells = [ledger.cell('calls', (f'up{n}',), 18) for n in range(3000)]\n"
        "for cell in cells: cell[0] += 1\n"
        "print(len(read_ledger(Path(sys.argv[1]))))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path / "one")], capture_output=True, text=True, check=True
    )
    assert 500 < int(ran.stdout) < 3000
    assert ran.stderr.count("no space for more metrics") == 1


def test_nothing_is_lost_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """It has no last word, and needs none."""
    path = tmp_path / "one"
    process = subprocess.Popen([sys.executable, "-c", COUNTING, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "counted\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    read = read_ledger(path)
    assert read["mcp_gateway_rejected_total", ("/mcp", "rate")] == [1000.0]
    timing = read["mcp_server_operation_duration_seconds", ("/mcp", "tools/call", "")]
    assert (sum(timing[:-1]), timing[-1]) == (1000.0, 500.0)
    assert read["mcp_gateway_requests_in_flight", ("/mcp",)] == [0.0]


def _churn(path: Path, ready: "multiprocessing.synchronize.Event", done: "multiprocessing.synchronize.Event"):
    ledger = Ledger.create(path, segment=SMALL)
    ready.set()
    n = 0
    while not done.is_set():
        n += 1
        names = [f"{n % 97}-{part}" for part in range(5)]
        for name in names:
            ledger.cell("calls", (name,), 3)[0] = 1.0
        for name in names:
            ledger.release("calls", (name,))
    os._exit(0)


def test_a_reader_never_sees_half_a_record(tmp_path: Path) -> None:
    """While another process makes, counts and releases as fast as it can."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_churn, args=(tmp_path / "one", ready, done))
    process.start()
    try:
        assert ready.wait(15)
        seen = 0
        for _ in range(2000):
            for (name, values), numbers in read_ledger(tmp_path / "one", segment=SMALL).items():
                seen += 1
                assert name == "calls"
                assert [part.isdecimal() for part in values[0].split("-")] == [True, True]
                assert numbers in ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    finally:
        done.set()
        process.join(10)
    assert seen
    assert process.exitcode == 0
