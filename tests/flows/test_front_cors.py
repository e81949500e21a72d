"""What browsers are told: preflights, and the headers on every answer (B36)."""

import pytest

from gateway.protocol.jsonrpc import McpError
from tests.support.front import Answers, post, serving

APP = "https://app.example"
ASKED = (
    "authorization, content-type, mcp-protocol-version, mcp-method, mcp-name, mcp-param-region,"
    " mcp-session-id, x-strange, mcp-param-\xe9"
)
CORS = {"origins": [APP]}


def preflight(origin: str = APP, path: str = "/mcp") -> bytes:
    """Return what a browser asks first, without credentials and body."""
    return post(
        verb="OPTIONS",
        path=path,
        content=b"",
        without=("content-type", "accept", "mcp-method", "mcp-protocol-version", "content-length"),
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers=ASKED,
    )


async def test_a_preflight_is_answered_before_authentication() -> None:
    """204 with the verb and the headers, those of any tool's own parameters included."""
    async with serving(Answers(), cors=CORS) as gateway:
        reply = await gateway.ask(preflight())
    assert (reply.status, reply.body) == (204, b"")
    assert reply.header("access-control-allow-origin") == APP
    assert reply.header("vary") == "Origin"
    assert reply.header("access-control-allow-methods") == "GET, POST, DELETE"
    allowed = (reply.header("access-control-allow-headers") or "").split(", ")
    assert {"authorization", "content-type", "accept", "mcp-protocol-version", "mcp-method"} <= set(allowed)
    assert "mcp-param-region" in allowed
    assert "x-strange" not in allowed
    assert all(name.isascii() for name in allowed)
    assert reply.header("access-control-allow-credentials") is None


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(origin=APP), 200),
        (post(origin=APP, path="/x"), 404),
        (post(origin=APP, verb="GET"), 405),
        (post(origin=APP, content_type="text/plain"), 415),
        (post(origin=APP, content=b"["), 400),
    ],
)
async def test_every_answer_carries_the_headers(request_: bytes, status: int) -> None:
    """A page cannot read an error without them."""
    async with serving(Answers(), cors=CORS) as gateway:
        reply = await gateway.ask(request_)
    assert reply.status == status
    assert reply.header("access-control-allow-origin") == APP
    exposed = (reply.header("access-control-expose-headers") or "").split(", ")
    assert exposed == [
        "WWW-Authenticate",
        "Retry-After",
        "Age",
        "Mcp-Gateway-Cache",
        "Mcp-Session-Id",
        "Mcp-Protocol-Version",
        "X-Request-Id",
    ]


async def test_errors_and_streams_carry_the_headers_too() -> None:
    """From a pipeline's error, and on an event stream."""
    async with serving(Answers(McpError(-32601, "no")), cors=CORS) as gateway:
        assert (await gateway.ask(post(origin=APP))).header("access-control-allow-origin") == APP
    async with serving(Answers(), cors=CORS) as gateway:
        reply = await gateway.ask(post("subscriptions/listen", origin=APP))
        assert reply.header("access-control-allow-origin") == APP


async def test_an_origin_off_the_list_gets_no_permission() -> None:
    """Neither one that is refused nor one that is let in for other reasons."""
    async with serving(Answers(), cors=CORS, origins=["https://other.example"]) as gateway:
        refused = await gateway.ask(preflight("https://evil.example"))
        assert (refused.status, refused.header("access-control-allow-origin")) == (403, None)
        known = await gateway.ask(preflight("https://other.example"))
        assert (known.status, known.header("access-control-allow-headers")) == (204, None)
        assert known.header("access-control-allow-origin") is None
        assert known.header("vary") == "Origin"


async def test_without_cors_there_is_no_word_of_it() -> None:
    """OPTIONS is a verb like any other then."""
    async with serving(Answers(), origins=[APP]) as gateway:
        assert (await gateway.ask(preflight())).status == 405
        reply = await gateway.ask(post(origin=APP))
    assert reply.status == 200
    assert reply.header("access-control-allow-origin") is None
    assert reply.header("vary") is None


async def test_the_pipeline_is_told_nothing_of_a_preflight() -> None:
    """And neither is the count of calls."""
    pipeline = Answers()
    async with serving(pipeline, cors=CORS) as gateway:
        await gateway.ask(preflight(path="/mcp/"))
        assert await gateway.answered() == {}
        assert await gateway.counted("rejected_total") == []
    assert pipeline.calls == []
