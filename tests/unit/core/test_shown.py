"""What replicas gave to clients is known to all of them until clients are told of its change."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core.audience import Followed
from gateway.core.capabilities import Profile, digest_of
from gateway.core.shown import Shown
from gateway.protocol.call import UpstreamName
from gateway.support.notebook import LocalNotebook, Unavailable
from gateway.support.tasks import Background

ALPHA = UpstreamName("alpha")
AT = Followed(ALPHA, None)
TOOLS = "tools/list"
PLAIN = Profile(b"{}", digest_of(b"{}"))
RICH = Profile(b'{"x":{}}', digest_of(b'{"x":{}}'))


class Away(LocalNotebook):
    """A notebook that is out of reach for as long as it is told to be."""

    away = False

    def _look(self, name):  # type: ignore[no-untyped-def] # as it is there
        if self.away:
            raise Unavailable("away")
        return super()._look(name)


@pytest.fixture
async def background() -> AsyncIterator[Background]:
    background = Background()
    yield background
    await background.close(1.0)


async def noted(shown: Shown) -> None:
    while "<Shown 0 " not in repr(shown):  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)


async def test_what_one_gave_another_knows_until_it_was_told(background: Background) -> None:
    """And what was given since stays, though it looks the same; another upstream's settings are another's."""
    notebook = LocalNotebook()
    one, two = (Shown(notebook, background, {ALPHA: "s"}) for _ in range(2))
    one.note(AT, TOOLS, PLAIN, b"a")
    one.note(AT, TOOLS, RICH, b"b")
    await noted(one)
    assert await two.given(AT, TOOLS) == {(PLAIN, b"a"), (RICH, b"b")}
    assert await two.given(AT, "prompts/list") == set()
    assert await Shown(notebook, background, {ALPHA: "t"}).given(AT, TOOLS) == set()
    stale = await two.stale(AT, [TOOLS])
    one.note(AT, TOOLS, PLAIN, b"a")
    await noted(one)
    await two.told(AT, stale, {})
    assert await two.given(AT, TOOLS) == {(PLAIN, b"a")}


async def test_what_a_list_looks_like_now_is_not_outdated(background: Background) -> None:
    """Whoever found it changed has been given it already, and others may have been."""
    shown = Shown(LocalNotebook(), background, {ALPHA: "s"})
    shown.note(AT, TOOLS, PLAIN, b"a")
    await noted(shown)
    shown.note(AT, TOOLS, PLAIN, b"b")
    await noted(shown)
    await shown.told(AT, await shown.stale(AT, [TOOLS]), {f"{TOOLS} {PLAIN.digest}".encode(): b"b"})
    assert await shown.given(AT, TOOLS) == {(PLAIN, b"b")}


async def test_what_cannot_be_compared_is_not_known(background: Background) -> None:
    """Capabilities of any size are not kept, nor any number of them."""
    shown = Shown(LocalNotebook(), background, {ALPHA: "s"})
    shown.note(AT, TOOLS, Profile(b"x" * 5000, "x"), b"a")
    await noted(shown)
    assert await shown.given(AT, TOOLS) is None
    for number in range(300):
        shown.note(AT, "prompts/list", Profile(b"%d" % number, str(number)), b"a")
        await noted(shown)
    assert await shown.given(AT, "prompts/list") is None


async def test_what_nobody_can_read_or_note_now_is_noted_later(background: Background) -> None:
    """A Redis that is away does not lose what is given meanwhile."""
    notebook = Away()
    shown = Shown(notebook, background, {ALPHA: "s"})
    notebook.away = True
    shown.note(AT, TOOLS, PLAIN, b"a")
    assert await shown.given(AT, TOOLS) is None
    assert await shown.stale(AT, [TOOLS]) == {}
    await shown.told(AT, {TOOLS: frozenset({b"x"})}, {})
    notebook.away = False
    await noted(shown)
    assert await shown.given(AT, TOOLS) == {(PLAIN, b"a")}
