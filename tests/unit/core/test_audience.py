"""Who hears of what: by endpoint, by list, by resource, and inside one authorization context only (L-13)."""

from typing import Any, Literal

from gateway.core.audience import UPDATED, Audience, Followed, Place, Tracked
from gateway.core.router import Namespace
from gateway.core.subscription import Subscription
from gateway.protocol.call import Notice, Partition, UpstreamName
from gateway.protocol.jsonrpc import encode
from gateway.protocol.subscriptions import Wanted

ALPHA, BETA, OWN = UpstreamName("alpha"), UpstreamName("beta"), UpstreamName("own")
ANN, BOB = Partition("ann"), Partition("bob")
EVERYBODYS = Followed(ALPHA, None)


def audience(subresources: Literal["exact", "parent"] = "exact", **shown: Any) -> Audience:
    return Audience(
        {"/mcp": [ALPHA, BETA, OWN], "/beta": [BETA]},
        {name: Namespace(name, name) for name in (ALPHA, BETA, OWN)},
        [OWN],
        subresources=subresources,
        show=shown.get("show", lambda *_: None),
    )


def stream(
    hall: Audience,
    *uris: str,
    tools: bool = True,
    endpoint: str = "/mcp",
    caller: Partition | None = None,
    at: Followed = EVERYBODYS,
    extensions: frozenset[str] = frozenset(),
) -> Subscription:
    wanted = Wanted(tools=tools, uris=frozenset(f"alpha+{uri}" for uri in uris))
    made = Subscription(b"1", endpoint, caller, wanted, extensions)
    hall.add(made, {f"alpha+{uri}": Place(at, uri) for uri in uris})
    return made


def pending(*streams: Subscription) -> list[set[tuple[str, str]]]:
    return [set(one._pending) for one in streams]


def test_a_change_is_told_at_every_endpoint_that_serves_the_upstream() -> None:
    """And to nobody elsewhere, nor to who did not ask (L-06, L-19)."""
    hall = audience()
    mine, other, deaf = stream(hall), stream(hall, endpoint="/beta"), stream(hall, tools=False)
    tools = {("notifications/tools/list_changed", "")}
    assert hall.list_changed(EVERYBODYS, "tools") == (1, 0)
    assert pending(mine, other, deaf) == [tools, set(), set()]
    assert hall.list_changed(Followed(BETA, None), "tools") == (1, 1)
    assert pending(mine, other, deaf) == [tools, tools, set()]


def test_what_an_upstream_says_to_one_caller_is_for_that_caller() -> None:
    """L-13: where it sees its callers' own credentials."""
    hall = audience()
    ann, bob = stream(hall, caller=ANN), stream(hall, caller=BOB)
    assert hall.list_changed(Followed(OWN, ANN), "tools") == (1, 0)
    assert [bool(each) for each in pending(ann, bob)] == [True, False]
    assert hall.list_changed(EVERYBODYS, "tools") == (1, 1)


def test_an_update_is_told_inside_its_context_only() -> None:
    """Of the same resource of the same upstream."""
    hall = audience()
    ann = stream(hall, "a:1", caller=ANN, at=Followed(OWN, ANN))
    bob = stream(hall, "a:1", caller=BOB, at=Followed(OWN, BOB))
    assert hall.updated(Followed(OWN, ANN), "a:1") == (1, 0)
    assert pending(ann, bob) == [{(UPDATED, "alpha+a:1")}, set()]
    assert hall.all_updated(OWN) == (1, 1)


def test_a_part_is_told_to_who_asked_for_the_whole() -> None:
    """L-21: who asked for the part itself is told once."""
    hall = audience()
    whole, part, other = stream(hall, "f:///d"), stream(hall, "f:///d/x", "f:///d"), stream(hall, "f:///e")
    assert hall.updated(EVERYBODYS, "f:///d/x") == (2, 0)
    assert pending(whole, part, other) == [
        {(UPDATED, "alpha+f:///d/x")},
        {(UPDATED, "alpha+f:///d/x")},
        set(),
    ]


def test_with_parent_nothing_is_named_that_was_not_asked_for() -> None:
    """L-21, the other way."""
    hall = audience("parent")
    whole, other = stream(hall, "f:///d"), stream(hall, "f:///e")
    assert hall.updated(EVERYBODYS, "f:///d/x") == (1, 0)
    assert hall.updated(EVERYBODYS, "f:///z") == (0, 0)
    assert pending(whole, other) == [{(UPDATED, "alpha+f:///d")}, set()]


def test_too_many_parts_are_the_whole() -> None:
    """Bounded, and nothing is lost."""
    hall = audience()
    whole = stream(hall, "f:///d")
    for number in range(1000):
        hall.updated(EVERYBODYS, f"f:///d/{number}")
    (keys,) = pending(whole)
    assert len(keys) == 257
    assert (UPDATED, "alpha+f:///d") in keys


def test_a_uri_left_as_it_is_is_remembered_as_shown() -> None:
    """A-41: reading it leads to who told of it."""
    shown: list[object] = []
    hall = audience(show=lambda *what: shown.append(what))
    stream(hall, "https://a/d", caller=ANN)
    hall.updated(EVERYBODYS, "https://a/d/x")
    assert shown == [("/mcp", ANN, "https://a/d/x", ALPHA)]


def test_what_belongs_to_an_extension_is_for_who_declared_it() -> None:
    """L-22: and what belongs to none reaches nobody."""
    hall = audience()
    knows = stream(hall, tools=False, extensions=frozenset({"com.example/x"}))
    plain = stream(hall)
    news = Notice("notifications/com.example/x/news", {"n": b"1", "_meta": b"{}"})
    assert hall.foreign(EVERYBODYS, news) == (1, 0)
    assert hall.foreign(EVERYBODYS, Notice("notifications/odd", {})) == (0, 0)
    assert [[method for method, _ in keys] for keys in pending(knows, plain)] == [
        ["notifications/com.example/x/news"],
        [],
    ]


def test_too_much_of_what_nobody_understands_is_dropped() -> None:
    """L-20: the stream was opened for something else, and goes on."""
    hall = audience()
    streams = [stream(hall, extensions=frozenset({"com.example/x"})) for _ in range(2)]
    heard = [
        hall.foreign(EVERYBODYS, Notice("notifications/com.example/x/n", {"n": b"%d" % number}))
        for number in range(300)
    ]
    assert heard == [(2, 0)] * 256 + [(2, 2)] * 44
    assert hall.list_changed(EVERYBODYS, "tools") == (2, 0)
    assert [each.ended for each in streams] == [None, None]


def test_what_nobody_understands_is_bounded_by_its_size_and_kept_once_for_all() -> None:
    """L-20: an upstream may send 32 MiB in one notice."""
    hall = audience()
    one, two = (stream(hall, extensions=frozenset({"com.example/x"})) for _ in range(2))
    lost = 0
    for number in range(100):
        pad = {"pad": b'"%d%s"' % (number, b"x" * 100_000)}
        lost += hall.foreign(EVERYBODYS, Notice("notifications/com.example/x/n", pad))[1]
    assert lost == 2 * 90
    assert sum(len(news.behind) for news in one._pending.values()) < 2**20
    assert all(one._pending[key] is news for key, news in two._pending.items())
    assert max(len(key[1]) for key in one._pending) == 64


def test_of_a_task_nothing_older_is_told_than_was_told() -> None:
    """T-10: a look that took its time saw what is over, and no task comes back from its end."""
    hall, at = audience(), EVERYBODYS
    listener = Subscription(b"1", "/mcp", None, Wanted())
    hall.add(listener, {}, {"T": Tracked(at, "t", lambda notice: notice)})

    def task(status: str, second: int | str = "") -> Notice:
        time = f"2026-01-01T00:00:0{second}Z" if second != "" else "soon"
        return Notice("notifications/tasks", {"status": encode(status), "lastUpdatedAt": encode(time)})

    assert hall.task(at, "t", task("working", 5))
    assert not hall.looked(at, "t", task("working", 9), notices=0)
    assert not hall.looked(at, "t", task("working", 4), notices=1)
    assert hall.looked(at, "t", task("working", 5), notices=1)
    assert hall.looked(at, "t", task("input_required"), notices=1)
    assert not hall.looked(at, "t", task("working", 4), notices=1)
    assert hall.looked(at, "t", task("completed", 6), notices=1)
    assert not hall.task(at, "t", task("working", 7))
    assert not hall.task(at, "t", task("failed", 7))
    assert hall.task(at, "t", task("completed", 6))
    assert hall.notices_of(at, "t") == 4
    assert b'"completed"' in listener._pending["notifications/tasks", "T"].behind
    hall.remove(listener)
    assert not hall.task(at, "t", task("completed", 6))
    assert not hall.looked(at, "t", task("completed", 6), notices=0)


def test_of_who_left_nothing_is_kept() -> None:
    """B29: counts and tables are what they were before."""
    hall = audience()
    before = repr(hall)
    streams = [stream(hall, "a:1", "a:2", caller=ANN) for _ in range(10)]
    hall.narrow(streams[0], {})
    for each in streams:
        hall.remove(each)
    assert repr(hall) == before
    assert list(hall) == []
    assert hall._uris == hall._places == hall._lists == hall._callers == {}
