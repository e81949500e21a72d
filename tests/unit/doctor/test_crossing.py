"""What is converted for whom and what cannot cross follows from era, version, isolation and capabilities."""

from typing import Any

import pytest

from gateway.config import Upstream
from gateway.doctor.crossing import Spoken, blocked, converted
from gateway.protocol.jsonrpc import encode, split

ALL: dict[str, Any] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
}
SERVED = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26")


def spoken(version: str, capabilities: dict[str, Any] | None = None, **settings: Any) -> Spoken:
    place = {} if "command" in settings else {"url": "http://a/mcp"}
    upstream = Upstream.model_validate({"prefix": "a", **place, **settings})
    era: Any = "modern" if version == SERVED[0] else "legacy"
    raw = encode(ALL if capabilities is None else capabilities)
    return Spoken("a", upstream, era, version, split(raw))


def whats(one: Spoken) -> list[str]:
    return [each.what for each in converted(one, SERVED)]


def barriers(one: Spoken, served: tuple[str, ...] = SERVED) -> dict[str, str]:
    """Return what cannot cross, and what to do next."""
    return {each.what: each.next for each in blocked(one, served)}


def test_a_modern_server_is_told_to_older_clients() -> None:
    """Its answers, questions and changes; a gateway that serves no older clients has nothing to say."""
    one = spoken("2026-07-28")
    assert whats(one) == ["requests and results", "questions to the user", "changes"]
    assert all(
        each.whom == "clients of 2025-11-25, 2025-06-18, 2025-03-26" for each in converted(one, SERVED)
    )
    assert list(converted(one, SERVED[:1])) == []
    assert barriers(one, SERVED[:1]) == {}
    assert barriers(one) == {
        "pages to visit (url elicitation) to clients of 2025-06-18, 2025-03-26": (
            "use a client of 2025-11-25 or newer"
        )
    }


def test_an_older_server_is_told_to_modern_clients() -> None:
    """And to older ones what they know of."""
    one = spoken("2025-11-25")
    assert whats(one) == [
        "requests and results",
        "questions to the user",
        "changes",
        "what came with its revision",
    ]
    assert "its sessions: one per caller" in next(converted(one)).how
    assert barriers(one)["its results into the cache"].startswith("set upstreams.a.cache.min_ttl: {")
    kept = spoken("2025-11-25", cache={"min_ttl": {"tools/list": 60.0}})
    assert "its results into the cache" not in barriers(kept)


@pytest.mark.parametrize(
    ("isolation", "asks"), [(None, False), ("shared", False), ("caller", True), ("session", True)]
)
def test_a_shared_process_asks_nobody(isolation: str | None, asks: bool) -> None:
    """The setting that would let it is named."""
    one = spoken("2025-06-18", command="x", isolation=isolation)
    what = "questions to the user (elicitation, sampling, roots)"
    assert barriers(one).get(what) == (None if asks else "set upstreams.a.isolation: session, or caller")
    assert ("questions to the user" in whats(one)) is asks
    assert "processes" in next(converted(one)).how
    assert ("scope: public" in barriers(one)["its results into the cache"]) is not asks  # nothing shares it


def test_changes_that_nobody_tells_of_are_named() -> None:
    """Of the lists it has, and of single resources."""
    one = spoken("2026-07-28", {"tools": {}, "prompts": {"listChanged": True}, "resources": {}})
    assert {"changes of its tools and resources", "updates of single resources"} < barriers(one).keys()
    silent = spoken("2026-07-28", {"tools": {"listChanged": "yes"}})
    assert "changes of its tools" in barriers(silent)
    assert "changes" not in whats(silent)


@pytest.mark.parametrize("isolation", ["caller", "session"])
def test_what_is_not_heard_of_a_callers_own_process_is_named(isolation: str) -> None:
    """That its lists changed is heard, whatever it speaks; but nobody subscribes to resources there."""
    for version in ("2025-11-25", "2026-07-28"):
        own = barriers(spoken(version, command="x", isolation=isolation))
        assert [each for each in own if "own process" in each] == [
            "updates of single resources in a caller's own process"
        ]
    shared = barriers(spoken("2025-11-25", command="x", isolation="shared"))
    over_http = barriers(spoken("2025-11-25", isolation=isolation))
    assert not [each for each in {**shared, **over_http} if "own process" in each]


@pytest.mark.parametrize(
    ("version", "pages", "audio"),
    [("2025-11-25", False, False), ("2025-06-18", True, False), ("2024-11-05", True, True)],
)
def test_what_a_revision_has_no_words_for_is_named(version: str, pages: bool, audio: bool) -> None:
    """Pages came with 2025-11-25, audio with 2025-03-26."""
    found = barriers(spoken(version))
    assert ("pages to visit (url elicitation)" in found) is pages
    assert ("audio in answers to its sampling requests" in found) is audio


def test_tasks_of_an_older_server_are_named() -> None:
    """Those of 2025-11-25 are not those of the extension."""
    assert "its tasks" in barriers(spoken("2025-11-25", {**ALL, "tasks": {}}))
    assert "its tasks" not in barriers(spoken("2026-07-28", {**ALL, "tasks": {}}))
