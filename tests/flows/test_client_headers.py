"""Nothing of a client's headers reaches an upstream, whatever is spoken with it and shown to it (B06)."""

import pytest

from tests.support.authorization_server import AuthorizationServer
from tests.support.legacy_upstream import LegacyServer
from tests.support.running import ONCE, running
from tests.support.scripted import ScriptedUpstream, tool

SENT = {
    "cookie": "s=CANARY-cookie",
    "mcp-session-id": "CANARY-session",
    "connection": "keep-alive, X-Secret",
    "x-secret": "CANARY-hop",
    "x-api-key": "CANARY-key",
    "proxy-authorization": "Basic CANARY-proxy",
    "x-forwarded-for": "203.0.113.7",
    "x-forwarded-host": "CANARY.example",
    "forwarded": "for=203.0.113.7;host=CANARY.example",
    "referer": "https://CANARY.example/",
    "user-agent": "CANARY-agent",
    "accept-encoding": "br",
    "accept-language": "x-CANARY",
    "last-event-id": "CANARY-event",
    "x-client-cert": "CANARY-certificate",
}
"""Besides the caller's own token."""
OURS = {
    "host",
    "user-agent",
    "accept-encoding",
    "accept",
    "content-type",
    "content-length",
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
    "authorization",
    "x-own",
}
"""All that an upstream is sent."""


def auths(corp):
    client = {"client_id": "gw", "client_secret": "s3cret-of-the-gateway", "issuer": corp.issuer}
    return {
        "none": "none",
        "bearer": {"bearer": "own-bearer"},
        "headers": {"headers": {"X-Own": "own-header"}},
        "forward": "forward",
        "credentials": {"client_credentials": client},
        "exchange": {"token_exchange": client},
    }


def check(upstreams, corp, token):
    """Compare all that arrived with what may arrive."""
    for name, upstream in upstreams.items():
        assert upstream.requests, name
        for received in upstream.requests:
            shown = dict(received.raw_headers)
            assert {key.decode().lower() for key in shown} <= OURS, name
            whole = repr(received.raw_headers).encode() + received.body
            assert b"CANARY" not in whole, name
            assert b"203.0.113.7" not in whole, name
            assert b"br" not in shown[b"Accept-Encoding"].replace(b" ", b"").split(b","), name
            assert shown[b"Host"].decode() in upstream.url, name
            assert (token.encode() in whole) <= (name == "forward"), name
    assert all("CANARY" not in repr(dict(asked.request.headers)) + str(asked.fields) for asked in corp.asked)
    exchanged = [asked.form["subject_token"] for asked in corp.seen("token") if "subject_token" in asked.form]
    assert exchanged == [token]


@pytest.mark.parametrize("kind", [ScriptedUpstream, LegacyServer])
async def test_no_header_of_a_client_reaches_any_upstream(kind):
    """Lists, calls and streams, to servers of either era."""
    async with AuthorizationServer() as corp:
        corp.client("gw", "s3cret-of-the-gateway")
        token = corp.mint("ann")
        upstreams = {name: kind(tools=[tool("t")], scope="private") for name in auths(corp)}
        for upstream in upstreams.values():
            await upstream.start()
        try:
            settings = {
                name: {"url": upstreams[name].url, "auth": auth, "cache": {"share_public": False}}
                for name, auth in auths(corp).items()
            }
            async with running(settings, pace=ONCE) as gateway:
                listed = await gateway.ask("tools/list", token=token, headers=SENT)
                assert len(listed.names) == len(upstreams)
                for name in upstreams:
                    called = await gateway.ask(
                        "tools/call", {"name": f"{name}__t"}, token=token, headers=SENT
                    )
                    assert called.status == 200, name
                wish = {"notifications": {"toolsListChanged": True}}
                async with gateway.open("subscriptions/listen", wish, token=token, headers=SENT) as stream:
                    await stream.event()
            check(upstreams, corp, token)
        finally:
            for upstream in upstreams.values():
                await upstream.stop()
