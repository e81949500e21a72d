"""What is remembered of the lists that each caller was shown last."""

from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, tool


async def test_callers_who_are_shown_the_same_share_what_is_remembered():
    """Forty contexts of an upstream that knows its callers, one list; another list is another one."""
    async with ScriptedUpstream(tools=[tool("a"), tool("b")], scope="private") as alpha:
        upstream = {"url": alpha.url, "auth": "forward"}
        async with running({"alpha": upstream}) as gateway:
            for number in range(40):
                assert len((await gateway.ask("tools/list", token=f"TOK-{number}")).names) == 2
            assert len(alpha.seen("tools/list")) == 40
            known = gateway.runtime.catalogue.remembered
            assert known[:2] == (40, 1)
            alpha.tools = [tool("c")]
            await gateway.ask("tools/list", token="TOK-new")
            assert gateway.runtime.catalogue.remembered[:2] == (41, 2)
