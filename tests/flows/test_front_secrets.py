"""No part of a caller's credential reaches a log record, a metric or an answer (B42)."""

import asyncio
import base64
import logging

import pytest

from gateway.protocol.call import (
    Answer,
    Call,
    Challenge,
    Emit,
    Principal,
    Reason,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.support.logs import quiet_aiohttp
from tests.support.front import Answers, post, serving

CANARY = "canary-5f1d0c9a7b3e"
TRACES = (
    CANARY,
    CANARY.encode().hex(),
    base64.b64encode(CANARY.encode()).decode().rstrip("="),
    base64.b64encode(b"x" + CANARY.encode()).decode()[4:-4],
)
BIG = f"Bearer {CANARY}" + "x" * 9_000


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All loggers at debug, aiohttp's and asyncio's too, filtered as in production."""
    quiet_aiohttp()
    caplog.set_level(logging.DEBUG)
    for name in ("aiohttp.server", "aiohttp.web", "aiohttp.access", "asyncio", "gateway"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def spoken(records: list[logging.LogRecord]) -> str:
    """Return all that a handler could get out of the records, formatted and raw."""
    form = logging.Formatter()
    return "\n".join(f"{form.format(record)} {vars(record)!r}" for record in records)


@pytest.mark.parametrize(
    "request_",
    [
        post(authorization=BIG),
        post(authorization=BIG, verb="GET"),
        post(authorization=BIG, content=b"["),
        post(authorization=BIG, host="evil.example"),
        post(authorization=f"Bearer {CANARY}" + "x" * 70_000),
        post(authorization=f"Bearer {CANARY}\x01"),
        post(authorization=f"Bearer {CANARY}\x00"),
        post(authorization=f"Bearer {CANARY}\xe9"),
        post(authorization=f"Bearer {CANARY}", extra=(("Authorization", f"Bearer {CANARY}2"),)),
        post(path=f"/mcp?access_token={CANARY}"),
        post(path=f"/{CANARY}\x01"),
        post(extra=((f"Bad header {CANARY}", "x"),)),
        post(content_length=CANARY),
        post(content=f'{{"{CANARY}'.encode()),
        f"{CANARY} /mcp HTTP/1.1\r\n\r\n".encode(),
        f"GET /mcp HTTP/{CANARY}\r\n\r\n".encode(),
        b"\x16\x03\x01" + CANARY.encode() + b"\r\n\r\n",
    ],
)
async def test_no_request_leaves_its_token_behind(
    request_: bytes, everything: pytest.LogCaptureFixture
) -> None:
    """Whole, as hex or as base64, at debug level, however broken the request."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(request_)
        metrics = "\n".join(await gateway.counted(""))
    assert reply.status < 500
    for trace in TRACES:
        assert trace not in spoken(everything.records)
        assert trace not in metrics
        assert trace not in reply.body.decode()
        assert trace not in str(reply.headers)


@pytest.mark.parametrize(
    "failure",
    [
        UpstreamUnavailable(UpstreamName("alpha"), Reason.CREDENTIALS, "answered 401"),
        Challenge(UpstreamName("alpha"), 401, "invalid_token", None),
        RuntimeError("a bug"),
    ],
)
async def test_no_failing_call_tells_the_token(
    failure: Exception, everything: pytest.LogCaptureFixture
) -> None:
    """The principal holds the credential, and prints none."""

    async def fail(call: Call, principal: Principal, emit: Emit) -> Answer:
        logging.getLogger("gateway.core").debug("asked by %r", principal)
        raise failure

    async with serving(Answers(fail)) as gateway:
        reply = await gateway.ask(post(authorization=BIG))
    assert everything.records
    for trace in TRACES:
        assert trace not in spoken(everything.records)
        assert trace not in reply.body.decode()


async def test_a_client_that_leaves_is_no_reason_to_quote_it(everything: pytest.LogCaptureFixture) -> None:
    """Neither in the middle of its head nor of its body."""
    async with serving(Answers()) as gateway:
        for cut in (200, 9_500):
            async with gateway.connect() as client:
                client.send(post(authorization=BIG, content=b" " * 5000)[:cut])
                await client.writer.drain()
                await asyncio.sleep(0)
        await gateway.until_idle()
    assert CANARY not in spoken(everything.records)
