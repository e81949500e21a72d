"""Updates of single resources: promised where the upstream grants them, told under the client's URI."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.listening import EVERY_LIST, TOOLS, TOOLS_CHANGED, UPDATED, listening, told, uris
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, error, hang, listen, tool

NOTES = "file:///notes"


def resource(uri: str) -> dict[str, Any]:
    return {"uri": uri, "name": uri}


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")], resources=[resource(NOTES)]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


async def test_an_update_is_told_under_the_exposed_uri(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-14: asked for upstream as the upstream spells it, told as the client does; read anew (L-17)."""
    async with listening(gateway, uris("alpha+file:///notes")) as stream:
        assert [wanted["resourceSubscriptions"] for wanted in await alpha.listening()] == [[NOTES]]
        await gateway.ask("resources/read", {"uri": "alpha+file:///notes"})
        await alpha.notify(UPDATED, uri=NOTES)
        assert await told(stream) == (UPDATED, "alpha+file:///notes")
        await gateway.ask("resources/read", {"uri": "alpha+file:///notes"})
        assert len(alpha.seen("resources/read")) == 2


async def test_only_who_asked_for_it_is_told(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-06: one upstream stream serves both, and each hears its own."""
    async with (
        listening(gateway, uris("alpha+file:///notes")) as one,
        listening(gateway, uris("alpha+file:///other"), id=2) as two,
    ):
        assert len(alpha.listens) == 1
        await alpha.notify(UPDATED, uri="file:///other")
        assert await told(two) == (UPDATED, "alpha+file:///other")
        await alpha.notify(UPDATED, uri=NOTES)
        assert await told(one) == (UPDATED, "alpha+file:///notes")


async def test_a_new_wish_opens_a_stream_before_the_old_one_is_closed(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-15: a listen cannot be amended, and nothing may fall between two of them."""
    await alpha.listening()
    old = alpha.listens[0]
    granting = asyncio.Event()
    alpha.once("subscriptions/listen", hang(granting, listen()))
    async with gateway.open("subscriptions/listen", {"notifications": uris("alpha+file:///notes")}) as stream:
        while len(alpha.seen("subscriptions/listen")) < 2:
            await alpha.arrived("subscriptions/listen")
        assert alpha.listens == [old]
        granting.set()
        assert (await stream.event())["params"]["notifications"] == uris("alpha+file:///notes")
        assert old.over is not alpha.listens[-1].over
        while old in alpha.listens:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)
        assert [one.wanted for one in alpha.listens] == [{**EVERY_LIST, **uris(NOTES)}]


async def test_what_nobody_wants_any_more_is_not_asked_for_any_more(alpha: ScriptedUpstream) -> None:
    """L-14: after a while, for who leaves often comes back."""
    async with running({"alpha": alpha}) as gateway:
        async with listening(gateway, uris("alpha+file:///notes")):
            await alpha.listening()
        while [one.wanted for one in alpha.listens] != [EVERY_LIST]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


async def test_who_comes_back_while_it_is_being_given_up_keeps_what_he_is_promised(
    alpha: ScriptedUpstream,
) -> None:
    """L-07, L-15: the stream that tells of it stays, though another was opened that does not."""
    opening = asyncio.Event()
    async with running({"alpha": alpha}, subscriptions={"debounce": 0.01}) as gateway:
        async with listening(gateway, uris("alpha+file:///notes")):
            await alpha.listening()
            while [one.wanted for one in alpha.listens] != [{**EVERY_LIST, **uris(NOTES)}]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            old, asked = alpha.listens[0], len(alpha.seen("subscriptions/listen"))
            alpha.once("subscriptions/listen", hang(opening, listen()))
        while len(alpha.seen("subscriptions/listen")) == asked:
            await alpha.arrived("subscriptions/listen")
        async with listening(gateway, uris("alpha+file:///notes")) as stream:
            opening.set()
            await alpha.listening(2)
            await alpha.only_one_listens()
            assert alpha.listens == [old]
            await alpha.notify(UPDATED, uri=NOTES)
            assert await told(stream) == (UPDATED, "alpha+file:///notes")


@pytest.mark.parametrize("bound", [{"uris_per_upstream": 3}, {"upstream_uri_bytes": 11}])
async def test_of_more_than_an_upstream_shall_be_asked_for_the_rest_is_not_promised(
    alpha: ScriptedUpstream, bound: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """L-07, L-14: what is promised already stays, and who comes when somebody left finds room."""
    async with running({"alpha": alpha}, subscriptions=bound) as gateway:
        async with listening(gateway, uris("alpha+x:1", "alpha+x:2"), token="ANN") as ann:
            wanted, granted = uris("alpha+a:1", "alpha+a:2"), uris("alpha+a:1")
            async with listening(gateway, wanted, granted, token="BOB") as bob:
                async with listening(gateway, uris("alpha+a:0"), {}, token="EVE"):
                    (wish,) = {tuple(one.wanted["resourceSubscriptions"]) for one in alpha.listens}
                    assert sorted(wish) == ["a:1", "x:1", "x:2"]
                await alpha.notify(UPDATED, uri="x:2")
                assert await told(ann) == (UPDATED, "alpha+x:2")
                await alpha.notify(UPDATED, uri="a:1")
                assert await told(bob) == (UPDATED, "alpha+a:1")
            await gateway.subscribed(1)
            async with listening(gateway, uris("alpha+a:0"), token="EVE") as eve:
                await alpha.notify(UPDATED, uri="a:0")
                assert await told(eve) == (UPDATED, "alpha+a:0")
        assert await gateway.counted("upstream_listen_left_out_total") == 2
    assert len([one for one in caplog.records if "uris_per_upstream" in one.getMessage()]) == 1


async def test_what_the_upstream_does_not_grant_is_not_promised(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-07, L-16: lists are, for the gateway can tell of them itself."""
    alpha.on("subscriptions/listen", listen({"toolsListChanged": True}))
    wanted = {**TOOLS, **uris("alpha+file:///notes")}
    async with listening(gateway, wanted, TOOLS):
        pass


async def test_what_the_upstream_does_not_grant_in_time_is_not_promised(alpha: ScriptedUpstream) -> None:
    """A-36: the acknowledgement does not wait for a slow upstream longer than the setting says."""
    async with running({"alpha": alpha}, subscriptions={"acknowledge": 0.05}) as gateway:
        alpha.on("subscriptions/listen", hang())
        async with listening(gateway, {**TOOLS, **uris("alpha+file:///notes")}, TOOLS):
            pass


async def test_one_upstream_holds_up_no_other(alpha: ScriptedUpstream) -> None:
    """What is granted is told, though another upstream has not answered yet."""
    async with (
        ScriptedUpstream(resources=[resource(NOTES)]) as beta,
        running({"alpha": alpha, "beta": beta}, subscriptions={"acknowledge": 1.0}) as gateway,
        gateway.open("subscriptions/listen", {"notifications": uris("alpha+file:///notes")}),
    ):
        while "resourceSubscriptions" not in alpha.listens[-1].wanted:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
        beta.on("subscriptions/listen", hang())
        wanted = uris("alpha+file:///notes", "beta+file:///notes")
        async with listening(gateway, wanted, uris("alpha+file:///notes"), id=2) as stream:
            await alpha.notify(UPDATED, uri=NOTES)
            assert await told(stream) == (UPDATED, "alpha+file:///notes")


async def test_a_resource_the_upstream_chokes_on_costs_the_others_nothing(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """It refuses the listen as a whole: the one before stays."""
    async with listening(gateway, uris("alpha+file:///notes")) as stream:
        alpha.on("subscriptions/listen", error(-32602, "Unknown resource", http=400))
        async with listening(gateway, uris("alpha+nonsense:"), {}, id=2):
            await alpha.notify(UPDATED, uri=NOTES)
            assert await told(stream) == (UPDATED, "alpha+file:///notes")


async def test_resources_of_an_upstream_without_subscriptions_are_not_promised(
    alpha: ScriptedUpstream,
) -> None:
    """L-07, F-23."""
    alpha.capabilities = {"resources": {"listChanged": True}}
    async with running({"alpha": alpha}) as gateway, listening(gateway, uris("alpha+file:///notes"), {}):
        discovered = (await gateway.ask("server/discover")).result["capabilities"]
        assert discovered == {"resources": {"listChanged": True}}


async def test_what_belongs_to_nobody_here_is_not_promised(alpha: ScriptedUpstream) -> None:
    """Nor what another endpoint serves (L-07)."""
    endpoints: Any = {"/mcp": {"upstreams": ["alpha"]}, "/mcp/beta": {"upstreams": ["beta"]}}
    async with (
        ScriptedUpstream(resources=[resource(NOTES)]) as beta,
        running({"alpha": alpha, "beta": beta}, endpoints=endpoints) as gateway,
    ):
        odd = uris("beta+file:///notes", "gamma+file:///notes", "alpha+a\nb", "", "alpha+", "alpha+a:\ufffd")
        async with listening(gateway, odd, {}):
            pass


async def test_a_uri_left_as_it_is_leads_to_who_listed_it(alpha: ScriptedUpstream) -> None:
    """A-41: its owner is known by provenance alone."""
    page = "https://example.com/page"
    async with (
        ScriptedUpstream(resources=[resource(page)]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
        listening(gateway, uris(page)) as stream,
    ):
        assert {**EVERY_LIST, **uris(page)} in [one.wanted for one in beta.listens]
        await beta.notify(UPDATED, uri=page)
        assert await told(stream) == (UPDATED, page)


async def test_of_two_spellings_of_one_resource_one_is_promised_and_told(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-04, L-06: what is told is what was promised, and once."""
    page = "https://example.com/page"
    alpha.resources = [resource(page)]
    both = uris(f"alpha+{page}", page)
    async with listening(gateway, {**TOOLS, **both}, {**TOOLS, **uris(f"alpha+{page}")}) as stream:
        await alpha.notify(UPDATED, uri=page)
        assert await told(stream) == (UPDATED, f"alpha+{page}")
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_part_of_a_resource_is_told_to_who_asked_for_the_whole(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-21: under its own URI, and to nobody who asked for something else."""
    async with (
        listening(gateway, uris("alpha+file:///notes")) as whole,
        listening(gateway, uris("alpha+file:///notesbook"), id=2) as other,
    ):
        await alpha.notify(UPDATED, uri="file:///notes/monday")
        assert await told(whole) == (UPDATED, "alpha+file:///notes/monday")
        await alpha.notify(UPDATED, uri="file:///notesbook")
        assert await told(other) == (UPDATED, "alpha+file:///notesbook")


async def test_a_resource_nobody_asked_for_is_told_to_all_who_asked_for_any(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-21: the upstream may have its own spelling of one that was."""
    async with listening(gateway, uris("alpha+file:///notes")) as stream, listening(gateway, TOOLS, id=2):
        await alpha.notify(UPDATED, uri="file://localhost/notes")
        assert await told(stream) == (UPDATED, "alpha+file://localhost/notes")
        assert await gateway.counted('notices_total{fate="delivered"}') == 1


async def test_what_is_no_uri_is_told_to_nobody_who_did_not_ask_for_it(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-21: an upstream may list resources by names without a scheme, but it cannot spell others so."""
    async with listening(gateway, uris("alpha+file:///notes")) as stream:
        for uri in ("other", "::", "1:x", NOTES):
            await alpha.notify(UPDATED, uri=uri)
        assert await told(stream) == (UPDATED, "alpha+file:///notes")
        assert await gateway.counted('notices_total{fate="delivered"}') == 1


async def test_what_only_somebody_asked_for_who_left_is_told_to_nobody_else(alpha: ScriptedUpstream) -> None:
    """L-06, L-21: its upstream is asked for it a while longer, for who leaves may come back at once."""
    async with (
        running({"alpha": alpha}, subscriptions={"debounce": 0.5}) as gateway,
        listening(gateway, uris("alpha+file:///other")) as stream,
    ):
        async with listening(gateway, uris("alpha+file:///notes"), id=2):
            pass
        await gateway.subscribed(1)
        (upstream,) = alpha.listens
        assert upstream.wanted["resourceSubscriptions"] == [NOTES, "file:///other"]
        await upstream.notify(UPDATED, uri=NOTES)
        await upstream.notify(UPDATED, uri=f"{NOTES}/monday")
        await upstream.notify(UPDATED, uri="file:///other")
        assert await told(stream) == (UPDATED, "alpha+file:///other")


async def test_with_parent_only_what_was_asked_for_is_ever_named(alpha: ScriptedUpstream) -> None:
    """L-21: some clients end a subscription that names what was not acknowledged (A-09)."""
    settings = {"subresources": "parent"}
    async with (
        running({"alpha": alpha}, subscriptions=settings) as gateway,
        listening(gateway, uris("alpha+file:///notes")) as stream,
    ):
        await alpha.notify(UPDATED, uri="file://localhost/notes")
        await alpha.notify(UPDATED, uri="file:///notes/monday")
        assert await told(stream) == (UPDATED, "alpha+file:///notes")
