"""What a server answers a caller is the caller's, an error page too: the log names its kind and no more."""

import logging
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from tests.support.legacy_upstream import LegacyServer
from tests.support.running import ONCE, running
from tests.support.scripted import ScriptedUpstream, status, tool
from tests.support.sse_upstream import SseUpstream

PAGE = b"<h1>No such account of Ann's</h1>"
CALL = {"name": "alpha__add", "arguments": {}}


class RefusingSse(SseUpstream):
    """Takes no call, and says so at length."""

    async def _posted(self, request: web.Request) -> web.Response:
        if b"tools/call" in await request.read():
            return web.Response(status=500, body=PAGE, content_type="text/html")
        return await super()._posted(request)


@pytest.fixture(params=["modern", "legacy", "sse"])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    makes: dict[str, Callable[[], ScriptedUpstream | RefusingSse]] = {
        "modern": lambda: ScriptedUpstream(tools=[tool("add")]),
        "legacy": lambda: LegacyServer(tools=[tool("add")]),
        "sse": RefusingSse,
    }
    async with makes[request.param]() as upstream:
        if isinstance(upstream, ScriptedUpstream):
            upstream.on("tools/call", status(500, PAGE, "text/html"))
        yield upstream.url


@pytest.mark.parametrize("auth", ["none", "forward"])
async def test_an_error_page_for_a_caller_is_not_in_the_log(
    url: str, auth: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The status and the kind of it are (B42)."""
    caplog.set_level(logging.DEBUG)
    async with running({"alpha": {"url": url, "auth": auth}}, pace=ONCE) as gateway:
        name = "echo" if url.endswith("/sse") else "add"
        failed = await gateway.ask("tools/call", {**CALL, "name": f"alpha__{name}"}, token="ANN")
        assert "Ann" not in failed.error["message"]
    said = [one.getMessage() for one in caplog.records if "HTTP 500" in one.getMessage()]
    assert said
    assert "Ann" not in caplog.text


async def test_a_page_that_answers_the_gateway_itself_is_quoted(caplog: pytest.LogCaptureFixture) -> None:
    """It tells an operator what stands in the way."""
    async with ScriptedUpstream() as alpha:
        alpha.on("*", status(500, b"<h1>Out of order</h1>", "text/html"))
        async with running({"alpha": alpha}, pace=ONCE):
            pass
    assert "Out of order" in caplog.text
