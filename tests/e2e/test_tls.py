"""The gateway as a process that speaks TLS, and the official SDK's client before it."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.certificates import Authority, Pair
from tests.support.processes import gateway
from tests.support.scripted import ScriptedUpstream, tool


@asynccontextmanager
async def client(url: str, authority: Authority, pair: Pair | None, mode: Any) -> AsyncIterator[Client]:
    """Connect the SDK's client, which trusts this authority alone and shows this certificate."""
    trust = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        trust.load_cert_chain(pair.certificate, pair.key)
    async with (
        httpx2.AsyncClient(verify=trust, timeout=20) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=mode, cache=None, read_timeout_seconds=20
        ) as connected,
    ):
        yield connected


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdk_calls_over_tls_with_a_certificate(tmp_path: Path, mode: Any) -> None:
    """In either era; one that is replaced meanwhile interrupts nothing, and nobody comes in without."""
    authority = Authority(tmp_path)
    server, alice = authority.issue("127.0.0.1"), authority.issue("alice")
    following = authority.issue("127.0.0.1", file="following")
    settings = (
        f"tls: {{cert_file: {server.certificate}, key_file: {server.key}, "
        f"client_ca_file: {authority.file}, reload: 20ms}}\n"
        "authentication: {certificates: {source: tls, names: [alice]}}\n"
    )
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        with gateway(f"{{alpha: {upstream.url}}}", settings) as running:
            url = running.endpoint.replace("http:", "https:")
            assert url in running.program.written()
            async with client(url, authority, alice, mode) as connected:
                assert [one.name for one in (await connected.list_tools()).tools] == ["alpha__a"]
                shutil.copy(following.key, server.key)
                shutil.copy(following.certificate, server.certificate)
                async with asyncio.timeout(15):
                    while "was read again" not in running.program.written():  # noqa: ASYNC110  # a process sets no event
                        await asyncio.sleep(0.05)
                assert not (await connected.call_tool("alpha__a", {})).is_error
            async with client(url, authority, alice, mode) as connected:
                assert [one.name for one in (await connected.list_tools()).tools] == ["alpha__a"]
            async with httpx2.AsyncClient(verify=ssl.create_default_context(cafile=authority.file)) as http:
                assert (await http.post(url, json={})).status_code == 401
