"""What one upstream answers, by mischance or ill will, costs the others and their callers nothing."""

import pytest

from gateway.core import catalogue
from gateway.core.lists import parse_page
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, status, tool


async def test_a_retry_after_of_any_year_costs_no_list():
    """Its upstream is missing, as with any other 503 (U-27, B01)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        beta.on("tools/list", status(503, Retry_After="Mon, 01 Jan 99999999999 00:00:00 GMT"))
        listed = await gateway.ask("tools/list")
        assert (listed.names, listed.missing) == (["alpha__a"], ["beta"])


@pytest.mark.parametrize("others", [1, 0])
async def test_a_bug_that_one_answer_hits_is_that_upstreams_failure(others, monkeypatch, caplog):
    """Whoever reads the log learns whose answer it was, and where it hurt; the others are listed (B01)."""

    def trips(method, result):
        if b"trap" in bytes(result):
            raise ZeroDivisionError("stumbled")
        return parse_page(method, result)

    monkeypatch.setattr(catalogue, "parse_page", trips)
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream(tools=[tool("trap")]) as beta:
        upstreams = {"alpha": alpha, "beta": beta} if others else {"beta": beta}
        async with running(upstreams) as gateway:
            listed = await gateway.ask("tools/list")
            if others:
                assert (listed.names, listed.missing) == (["alpha__a"], ["beta"])
            else:
                assert (listed.code, "upstream beta" in listed.error["message"]) == (-32603, True)
                assert "stumbled" not in listed.error["message"]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "beta" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


ODD = {
    "icons": [{"src": "https://x.example/i.png", "theme": "blue"}, {"src": ""}],
    "annotations": {"priority": 2, "audience": ["bot"], "title": 5, "readOnlyHint": True},
    "execution": {"taskSupport": "maybe"},
    "size": 1.5,
}


async def test_decorations_no_client_could_read_cost_no_list_and_no_item(caplog):
    """The official types would refuse the lists of all upstreams; what was left out is told (B11)."""
    async with (
        ScriptedUpstream(
            tools=[tool("t", **ODD)],
            prompts=[{"name": "p", **ODD}],
            resources=[{"uri": "a:b", "name": "r", **ODD}],
            templates=[{"uriTemplate": "a:{b}", "name": "m", **ODD}],
        ) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            (item,) = (await gateway.ask(method)).items
            assert item["icons"] == [{"src": "https://x.example/i.png"}], method
        assert await gateway.counted('dropped_total{upstream="alpha",what="member"}') == 4
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in told if text.startswith("upstream alpha: ")]) == 4
