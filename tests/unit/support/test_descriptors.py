"""How many clients can be connected while files are left for upstreams."""

import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.support.descriptors import SPARE, connections_of_clients, room_for


@pytest.mark.parametrize(
    ("wanted", "upstream", "files", "clients"),
    [
        (20_000, 100, 1_000_000, 20_000),
        (20_000, 100, 1024, 724),
        (20_000, 5000, 1024, 412),
        (10, 100, 1024, 10),
        (20_000, 100, 100, 1),
    ],
)
def test_clients_leave_files_for_upstreams(wanted: int, upstream: int, files: int, clients: int) -> None:
    """Whoever opens connections without end must not cut the gateway off from its upstreams."""
    assert connections_of_clients(wanted, upstream, files) == clients


@given(st.integers(1, 100_000), st.integers(0, 100_000), st.integers(0, 2_000_000))
def test_what_clients_and_upstreams_take_fits(wanted: int, upstream: int, files: int) -> None:
    """However many files there are; with hardly any, one client at least is let in."""
    clients = connections_of_clients(wanted, upstream, files)
    assert 1 <= clients <= wanted
    if files >= SPARE + 2:
        assert clients + min(upstream, (files - SPARE) // 2) + SPARE <= files


@pytest.fixture
def few_files() -> Iterator[int]:
    """Allow few files, and as many as before in the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, hard))
    yield 700
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_files_are_asked_for_where_there_are_too_few(few_files: int) -> None:
    """The system allows more than it gives unasked."""
    assert room_for(600, 100) == 600
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600 + 100 + SPARE
