"""The official SDK's OAuth client finds its way in by what the gateway says alone, also behind a proxy.

It is refused, reads the metadata, finds the authorization server, registers, has its user sent there, and
comes back with a token for the gateway (Z-02, Z-03, Z-04, B37).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx2
import pytest
from aiohttp import web
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import CallToolResult, TextContent
from pydantic import AnyUrl

from tests.support.authorization_server import AuthorizationServer
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, tool

BACK = "http://127.0.0.1:1/callback"
Mode = Literal["auto", "legacy"]


class Storage:
    """Where the client keeps what it was given."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.provider: OAuthClientProvider | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Follows the client's user to the authorization server and back; he consents to everything."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self._back = ""

    async def go(self, url: str) -> None:
        self.asked.append(parse_qs(urlsplit(url).query))
        async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as answer:
            assert answer.status == 302
            self._back = answer.headers["Location"]

    async def come_back(self) -> AuthorizationCodeResult:
        said = {name: values[0] for name, values in parse_qs(urlsplit(self._back).query).items()}
        return AuthorizationCodeResult(code=said["code"], state=said["state"], iss=said["iss"])


@asynccontextmanager
async def client(url: str, storage: Storage, browser: Browser, mode: Mode = "auto") -> AsyncIterator[Client]:
    """Connect the official client to an endpoint that it knows nothing of but the URL."""
    auth = OAuthClientProvider(
        url,
        OAuthClientMetadata(redirect_uris=[AnyUrl(BACK)], client_name="a client"),
        storage,
        redirect_handler=browser.go,
        callback_handler=browser.come_back,
    )
    storage.provider = auth
    async with (
        httpx2.AsyncClient(auth=auth, timeout=20) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=mode, cache=None, read_timeout_seconds=20
        ) as found,
    ):
        yield found


@pytest.fixture
async def corp() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        yield server


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a"), tool("b")]) as upstream:
        yield upstream


@asynccontextmanager
async def guarded(
    corp: AuthorizationServer, alpha: ScriptedUpstream, **members: Any
) -> AsyncIterator[Running]:
    """Run a gateway that takes the tokens of an authorization server."""
    authentication = {"tokens": {"corp": {"issuer": corp.issuer}}, **members.pop("authentication", {})}
    async with running({"alpha": alpha}, authentication=authentication, **members) as gateway:
        yield gateway


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_finds_its_way_in(
    corp: AuthorizationServer, alpha: ScriptedUpstream, mode: Mode
) -> None:
    """Discovery, registration, authorization code with PKCE, and a token for this endpoint and no other."""
    async with guarded(corp, alpha, authentication={"scopes": ["mcp"]}) as gateway:
        (url,) = gateway.addresses.endpoints
        storage, browser = Storage(), Browser()
        async with client(url, storage, browser, mode) as found:
            listed = await found.list_tools()
            assert [one.name for one in listed.tools] == ["alpha__a", "alpha__b"]
            assert said(await found.call_tool("alpha__a", {}))
        (asked,) = browser.asked
        assert (asked["resource"], asked["scope"]) == ([url], ["mcp"])
        assert asked["code_challenge_method"] == ["S256"]
        assert storage.tokens is not None
        assert {received.header("authorization") for received in alpha.requests} == {None}


async def test_a_token_that_ended_is_renewed_without_its_user(
    corp: AuthorizationServer, alpha: ScriptedUpstream
) -> None:
    """The session of an older client goes on with the new one, and so does what it was given."""
    async with guarded(corp, alpha) as gateway:
        (url,) = gateway.addresses.endpoints
        storage, browser = Storage(), Browser()
        async with client(url, storage, browser, "legacy") as found:
            assert storage.tokens is not None
            first = storage.tokens.access_token
            assert storage.provider is not None
            storage.provider.context.token_expiry_time = 1.0  # long ago
            assert said(await found.call_tool("alpha__a", {}))
            assert storage.tokens.access_token != first
        assert len(browser.asked) == 1


async def test_a_scope_that_is_missing_is_asked_for(
    corp: AuthorizationServer, alpha: ScriptedUpstream
) -> None:
    """Z-04: the client steps up by the 403 of one call, and makes it again."""
    rules = [{"tools": ["b"], "scopes": ["write"], "refusal": "list"}, {"tools": ["a"]}]
    async with guarded(corp, alpha, access={"rules": rules}) as gateway:
        (url,) = gateway.addresses.endpoints
        storage, browser = Storage(), Browser()
        async with client(url, storage, browser) as found:
            assert said(await found.call_tool("alpha__a", {}))
            assert len(browser.asked) == 1
            assert said(await found.call_tool("alpha__b", {}))
        first, second = browser.asked
        assert "write" not in first.get("scope", [""])[0]
        assert "write" in second["scope"][0].split()


# Behind a proxy


@asynccontextmanager
async def proxy(prefix: str, *, keeps: bool) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Run a reverse proxy that serves the gateway below a path, which it takes away or keeps.

    Yields its address, and where it finds the gateway: to be filled in as `to`.
    """
    where: dict[str, str] = {}

    async def hand_on(request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path.startswith(f"{prefix}/") and not keeps:
            path = path.removeprefix(prefix)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length", "connection", "transfer-encoding")
        }
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, where["to"] + path, data=await request.read(), headers=headers
            ) as answer,
        ):
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in ("transfer-encoding", "content-length", "connection")
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    runner = web.ServerRunner(web.Server(hand_on))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}", where
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_proxy_may_serve_the_gateway_below_a_path(
    corp: AuthorizationServer, alpha: ScriptedUpstream, *, keeps: bool
) -> None:
    """B37: the token is for the URL that the client knows, whatever the proxy makes of the path."""
    async with proxy("/tools/gw", keeps=keeps) as (outside, where):
        public = f"{outside}/tools/gw"
        async with guarded(corp, alpha, public_url=public) as gateway:
            (inside,) = gateway.addresses.endpoints
            where["to"] = inside.removesuffix("/mcp")
            storage, browser = Storage(), Browser()
            async with client(f"{public}/mcp", storage, browser) as found:
                assert said(await found.call_tool("alpha__a", {}))
            (asked,) = browser.asked
            assert asked["resource"] == [f"{public}/mcp"]


def said(result: CallToolResult) -> str:
    """Return the text of a result that is no error."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert not result.is_error
    return block.text
