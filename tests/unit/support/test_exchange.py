"""What is gathered of one request on its way, and where."""

import asyncio
import re
from contextvars import Context, copy_context

import pytest

from gateway.support import access, exchange


def alone(test: object) -> None:
    """Run a piece of a test in a context of its own."""
    Context().run(test)  # type: ignore[arg-type]


def test_an_exchange_has_an_id_of_its_own() -> None:
    """No two are alike, and none could be taken for a word of HTTP or of a log."""
    ids = {Context().run(exchange.begin, "http").id for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", id) for id in ids)


@pytest.mark.parametrize(
    "given", ["a", "2f1b6c0e-8c1c-4f0a-9d43-7b9f6a1c2d3e", "Root.1~2_3-4", "x" * 64], ids=len
)
def test_an_id_that_came_with_the_request_is_kept(given: str) -> None:
    """Who gave it finds it again."""
    assert Context().run(exchange.begin, "http", given).id == given


@pytest.mark.parametrize("given", ["", "-a", "a b", "a\tb", "a\nb", "x" * 65, 'a"b', "a,b", "ä", "a=b"])
def test_an_id_that_may_mean_something_is_replaced(given: str) -> None:
    """It goes into a header and into a log."""
    assert Context().run(exchange.begin, "http", given).id != given


def test_each_notes_its_share_of_the_exchange_it_works_for() -> None:
    """Look-ups, calls and names, without anybody handing it around."""

    def work() -> None:
        one = exchange.begin("http")
        exchange.looked_up("alpha", "tools/list", "hit", "fresh", 2.9)
        exchange.called("alpha", "tools/call", "ok", 0.0123456)
        exchange.named("alpha__add")
        assert exchange.current() is one
        assert one.lookups == [exchange.Looked("alpha", "tools/list", "hit", "fresh", 2)]
        assert one.calls == [exchange.Called("alpha", "tools/call", "ok", 12.346)]
        assert one.name == "alpha__add"

    alone(work)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "a\x1b[0m", "\ud800", "ä", "x" * 129])
def test_an_odd_name_of_an_upstream_s_own_is_not_noted(name: str) -> None:
    """It is to stand in a line of text, between spaces."""

    def work() -> None:
        one = exchange.begin("http")
        exchange.named(name)
        assert one.name == ""

    alone(work)


def test_of_very_many_upstreams_only_the_number_is_noted() -> None:
    """A list of a hundred upstreams has a line like any other."""

    def work() -> None:
        one = exchange.begin("http")
        for number in range(100):
            exchange.looked_up(f"u{number}", "tools/list", "miss", "absent")
            exchange.called(f"u{number}", "tools/list", "ok", 0.1)
        assert (len(one.lookups), len(one.calls), one.unnoted) == (16, 16, 168)

    alone(work)


def test_nothing_is_noted_once_it_is_over_nor_where_there_is_none() -> None:
    """What goes on in the background has no part in it any more."""

    def work() -> None:
        exchange.called("alpha", "tools/list", "ok", 0.1)
        one = exchange.begin("http")
        access.use(None)
        access.tell(one)
        exchange.called("alpha", "tools/list", "ok", 0.1)
        exchange.looked_up("alpha", "tools/list", "hit", "fresh")
        assert exchange.current() is None
        assert (one.calls, one.lookups, one.unnoted) == ([], [], 0)

    alone(work)


async def test_tasks_note_it_where_they_were_begun_unless_they_work_for_everybody() -> None:
    """A context is copied, the exchange is the same."""
    one = exchange.begin("http")

    async def share() -> None:
        exchange.called("alpha", "tools/list", "ok", 0.1)

    async def everybodys() -> None:
        exchange.detach()
        exchange.called("beta", "subscriptions/listen", "ok", 0.1)

    await asyncio.gather(asyncio.Task(share()), asyncio.Task(everybodys(), context=copy_context()))
    assert [call.upstream for call in one.calls] == ["alpha"]
