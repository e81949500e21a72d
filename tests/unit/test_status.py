"""What several processes of one gateway say becomes one status, in whatever order they are asked."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.status import (
    Cache,
    Failure,
    Hint,
    Latency,
    Load,
    Settings,
    Status,
    Upstream,
    Use,
    Worker,
    latency_of,
    merged,
    read,
)

BOUNDS = ("0.01", "0.1", "1.0", "+Inf")


def said(upstreams: Mapping[str, Upstream] | None = None, **other: Any) -> Status:
    """Return what one process says."""
    whole: dict[str, Any] = {"version": "1", "phase": "ready", "now": 10.0, "started": 1.0, **other}
    return Status(upstreams=dict(upstreams or {}), **whole)


def counted(*counts: int) -> dict[str, int]:
    return dict(zip(BOUNDS, counts, strict=True))


def test_quantiles_are_those_of_prometheus() -> None:
    """Even within a bucket, and no more than the last bound for what is beyond it."""
    latency = latency_of(counted(0, 10, 10, 0))
    assert (latency.count, latency.p50, latency.p95) == (20, 0.1, 0.91)
    assert latency_of(counted(0, 0, 0, 3)).p50 == 1.0
    assert latency_of({}) == latency_of(counted(0, 0, 0, 0)) == Latency()


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4))
def test_quantiles_of_added_buckets_lie_between_those_of_each(counts: list[int]) -> None:
    """A merged latency is none that no process saw."""
    one, two = latency_of(counted(*counts)), latency_of(counted(5, 5, 5, 5))
    both = merged([said({"a": Upstream(latency=one)}), said({"a": Upstream(latency=two)})])
    seen = [each for each in (one.p95, two.p95) if each is not None]
    p95 = both.upstreams["a"].latency.p95
    assert p95 is not None
    assert min(seen) <= p95 <= max(seen)


def test_numbers_are_added_up() -> None:
    """Also those of which one process has none."""
    one = said(
        {"a": Upstream(active=1, sessions=Use(open=2, most=5), calls={"ok": 3}, lookups={"hit": 1})},
        load=Load(requests=Use(open=1, most=10)),
        cache=Cache(entries=1, bytes=10, most=100, saved=2, lookups={"hit": 2}, reasons={"ttl": 1}),
    )
    two = said(
        {"a": Upstream(active=2, sessions=Use(open=1, most=5), calls={"ok": 1, "error": 1})},
        load=Load(requests=Use(open=4, most=10)),
        cache=Cache(entries=2, bytes=5, most=100, saved=1, lookups={"miss": 1}),
    )
    whole = merged([one, two])
    alpha = whole.upstreams["a"]
    assert (alpha.active, alpha.sessions, alpha.calls) == (3, Use(open=3, most=10), {"ok": 4, "error": 1})
    assert whole.load.requests == Use(open=5, most=20)
    assert whole.load.streams.most is None
    assert whole.cache == Cache(
        entries=3, bytes=15, most=200, saved=3, lookups={"hit": 2, "miss": 1}, reasons={"ttl": 1}
    )


def test_the_worst_is_what_an_operator_sees() -> None:
    """An upstream is up when it is for every process, and its last error is the latest of all."""
    good = Upstream(state="up", era="modern", followed="following", since=5)
    bad = Upstream(
        state="down",
        error="connection failed",
        breaker="open",
        since=7,
        last_error=Failure(error="connection failed", at=8.0),
    )
    early = msgspec.structs.replace(good, last_error=Failure(error="no answer in time", at=3.0))
    for order in ([early, bad, good], [good, bad, early], [bad, early, good]):
        alpha = merged([said({"a": each}) for each in order]).upstreams["a"]
        assert (alpha.state, alpha.error, alpha.breaker, alpha.since) == (
            "down",
            "connection failed",
            "open",
            7,
        )
        assert (alpha.era, alpha.followed) == ("modern", "following")
        assert alpha.last_error == Failure(error="connection failed", at=8.0)


def test_what_was_heard_last_counts() -> None:
    """A process that read a list long ago knows less than one that read it lately."""
    old = Upstream(listed={"tools/list": 90}, hints={"tools/list": Hint(ttl_ms=1, received=1.0)})
    new = Upstream(listed={"tools/list": 2}, hints={"tools/list": Hint(ttl_ms=2, received=2.0)})
    none = Upstream()
    for order in ([old, new, none], [none, new, old]):
        alpha = merged([said({"a": each}) for each in order]).upstreams["a"]
        assert (alpha.listed, alpha.hints["tools/list"].ttl_ms) == ({"tools/list": 2}, 2)


@pytest.mark.parametrize(
    ("phases", "phase"),
    [
        (["ready", "starting"], "ready"),
        (["ready", "degraded"], "degraded"),
        (["starting", "draining"], "starting"),
        (["draining", "draining"], "draining"),
    ],
)
def test_some_that_serve_are_enough(phases: list[str], phase: str) -> None:
    """While one is restarted the others serve; whose Redis is away is worth a look."""
    assert merged([said(phase=each) for each in phases]).phase == phase
    assert merged([said(phase=each) for each in phases], phase="draining").phase == "draining"


def test_a_configuration_is_in_force_once_everybody_has_it() -> None:
    """What is wrong anywhere is told; the endpoints and upstreams are those of the newest."""
    old = said({"a": Upstream()}, config=Settings(generation=1, loaded=1.0))
    new = said(
        {"b": Upstream()},
        config=Settings(generation=2, loaded=9.0, problem="line 3", needs_restart=("listen",)),
    )
    whole = merged([new, old])
    assert whole.config == Settings(generation=1, loaded=1.0, problem="line 3", needs_restart=("listen",))
    assert list(whole.upstreams) == ["b"]
    assert merged([new, new]).config.needs_restart == ("listen",)


def test_workers_are_as_their_supervisor_says() -> None:
    """One process alone has none; with none that answers there is nothing to say."""
    assert merged([said()]).workers is None
    workers = [Worker(number=1, state="ready", pid=12), Worker(number=2, state="down", restarts=3)]
    assert merged([said()], workers=workers).workers == workers
    with pytest.raises(ValueError, match="no process"):
        merged([])


def test_redis_is_down_where_one_process_cannot_reach_it() -> None:
    """And none where none is configured."""
    up, down, none = (said(cache=Cache(redis=state)) for state in ("up", "down", None))
    assert merged([up, down]).cache.redis == "down"
    assert merged([up, none]).cache.redis == "up"
    assert merged([none, none]).cache.redis is None


def test_one_process_says_the_same_merged() -> None:
    """And what it wrote is read as it was, beside whatever a newer version adds."""
    upstream = Upstream(
        state="up",
        latency=latency_of(counted(1, 2, 3, 4)),
        hints={"tools/list": Hint(ttl_ms=5, received=1.0)},
        listed={"tools/list": 3},
    )
    one = said({"a": upstream}, config=Settings(generation=4, loaded=2.0), cache=Cache(entries=1, redis="up"))
    assert merged([one]) == one
    written = msgspec.json.encode(one)
    assert read(written) == one
    assert read(written[:-1] + b',"novel":[1]}') == one


statuses = st.builds(
    said,
    st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.builds(
            Upstream,
            state=st.sampled_from(["up", "down", "starting"]),
            since=st.integers(0, 5),
            active=st.integers(0, 5),
            calls=st.dictionaries(st.sampled_from(["ok", "error"]), st.integers(0, 9)),
            followed=st.sampled_from(["idle", "following", "refused"]),
        ),
    ),
    cache=st.builds(Cache, entries=st.integers(0, 9), redis=st.sampled_from(["up", "down", None])),
)


@given(st.lists(statuses, min_size=3, max_size=3))
def test_it_does_not_matter_who_is_merged_first(three: list[Status]) -> None:
    """Processes of one configuration may be merged one after the other."""
    names = {name for each in three for name in each.upstreams}
    filled = [
        msgspec.structs.replace(
            each, upstreams={name: each.upstreams.get(name, Upstream()) for name in names}
        )
        for each in three
    ]
    one, two, more = filled
    assert merged([merged([one, two]), more]) == merged([one, merged([two, more])]) == merged(filled)
