"""Everything at debug level, with secrets that are searched for in all that the gateway says (B42).

What it says is: its log as it is written, and before anything is taken out of it; metrics, status and
explain; the bodies and headers of refusals; what stands in Redis. Searched for are whole secrets, their
beginnings, and both in hex, in base64 and as URLs spell them.
"""

import asyncio
import io
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway import config
from gateway.protocol.call import Call, Principal
from gateway.support import logs
from tests.flows.test_explain import http
from tests.support.authorization_server import AuthorizationServer, failing, garbage, saying
from tests.support.canaries import Canaries
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer
from tests.support.redis import redis_server
from tests.support.running import Answer, Running, running, settings
from tests.support.scripted import CUT, Behaviour, Exchange, ScriptedUpstream, raw, sse, tool

ADMIN = {"admin": "127.0.0.1:0"}
PUBLIC = "https://mcp.example.com"
PROGRAM = (
    "import os, sys; print('key', os.environ['KEY'], sys.argv[1], file=sys.stderr, flush=True); sys.exit(3)"
)


@dataclass
class Watched:
    """Secrets, and whatever may show them."""

    secrets: Canaries = field(default_factory=Canaries)
    written: io.StringIO = field(default_factory=io.StringIO)
    """The log as it is written."""
    raw: list[str] = field(default_factory=list)
    """What the gateway's own code handed to the log."""
    said: list[str] = field(default_factory=list)
    """Everything else."""

    def refused(self, answer: Answer) -> Answer:
        """Keep what somebody who was refused was told."""
        self.said.append(f"{answer.headers} {answer.body!r} {answer.messages}")
        return answer

    async def look(self, gateway: Running) -> None:
        """Ask for everything that operators may ask for, and search."""
        self.said.append((await asyncio.to_thread(gateway.runtime.metrics.render)).decode())
        self.said.append(repr(gateway.gateway) + repr(gateway.runtime.pool) + repr(gateway.runtime.config))
        if gateway.addresses.admin is not None:
            for path in (
                "/status.json",
                "/metrics",
                "/readyz",
                "/explain?method=tools/list",
                "/catalogue.json?limit=500",
            ):
                self.said.append((await http(gateway, "GET", path)).body.decode())
        self.search()

    def search(self) -> None:
        """Fail for each secret that shows anywhere."""
        assert self.secrets.seen_in("\n".join(self.said)) == []
        assert self.secrets.seen_in("\n".join(self.raw)) == []
        assert self.secrets.seen_in(self.written.getvalue()) == []


class _Raw(logging.Handler):
    """Keeps what records of the gateway hold, arguments and tracebacks, before any filter on the way out."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("gateway"):
            self._kept.append(f"{logging.Formatter().format(record)} {vars(record)!r}")


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Everything at debug; afterwards the log is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    found = Watched()
    keeper = _Raw(found.raw)
    root.addHandler(keeper)
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)


@asynccontextmanager
async def gateway(watched: Watched, upstreams: Mapping[str, Any], **members: Any) -> AsyncIterator[Running]:
    """Run one whose log is set up as `serve` does it."""
    known = config.confidential(settings(upstreams, **members))
    logs.configure(config.Log(level="debug"), stream=watched.written, secrets=known)
    async with running(upstreams, settled=False, **members) as one:
        await one.gateway.settled()
        yield one


def echoing(status: int, content_type: str = "text/plain") -> Behaviour:
    """Answer with all that was sent, as some servers do when they are out of order."""

    async def behave(exchange: Exchange) -> None:
        got = exchange.received
        text = b"".join(b"%b: %b\n" % pair for pair in got.raw_headers) + got.path.encode() + got.body
        await exchange.respond(status, {"Content-Type": content_type}, [text], length=len(text))

    return behave


# Callers


async def test_no_way_to_prove_who_one_is_shows_in_what_is_said(watched: Watched) -> None:
    """Tokens that are signed, opaque, expired, of nobody; keys in either header; an issuer out of order."""
    secrets = watched.secrets
    keys = {"ci": {"hash": f"sha256:{sha256(secrets['key'].encode()).hexdigest()}"}}
    async with AuthorizationServer() as corp, AuthorizationServer(path="/open") as opaque:
        for server in (corp, opaque):
            server.extra = {"aud": f"{PUBLIC}/mcp"}
        opaque.client("gateway", secret=secrets["introspection"])
        ways = {
            "tokens": {
                "corp": {"issuer": corp.issuer},
                "open": {
                    "issuer": opaque.issuer,
                    "introspection_url": opaque.url("introspect"),
                    "client_id": "gateway",
                    "client_secret": secrets["introspection"],
                    "remember": "0s",
                },
            },
            "keys": keys,
            "key_header": "X-API-Key",
        }
        async with (
            ScriptedUpstream(tools=[tool("a")]) as alpha,
            gateway(watched, {"alpha": alpha}, authentication=ways, public_url=PUBLIC, **ADMIN) as one,
        ):
            signed = secrets.add("signed", corp.mint("alice"))
            secrets.add("claims of it", signed.split(".")[1])
            secrets.add("signature of it", signed.split(".")[2])
            token = secrets.add("opaque", opaque.opaque("alice"))
            for headers in (
                {"authorization": f"Bearer {signed}"},
                {"authorization": f"Bearer {token}"},
                {"authorization": f"Bearer {secrets['key']}"},
                {"x-api-key": secrets["key"]},
            ):
                listed = await one.ask("tools/list", headers=headers)
                assert listed.names == ["alpha__a"]
            for headers in (
                {"authorization": f"Bearer {secrets['nobody']}"},
                {"authorization": f"Bearer {signed[:-9]}{secrets['forged'][:9]}"},
                {"authorization": f"Bearer {secrets.add('old', corp.mint('bob', exp=1000))}"},
                {"authorization": f"Basic {secrets['basic']}"},
                {"authorization": f"Bearer {secrets['a space']} x"},
                {"authorization": secrets["bare"]},
                {"x-api-key": secrets["no key"]},
                {"authorization": f"Bearer {signed}", "x-api-key": secrets["key"]},
                {"cookie": f"session={secrets['cookie']}"},
            ):
                assert watched.refused(await one.ask("tools/list", headers=headers)).status in (400, 401)
            for behaviour in (failing(500, secrets["issuer said"].encode()), garbage()):
                opaque.on("introspect", behaviour)
                for _ in range(2):
                    watched.refused(await one.ask("tools/list", token=secrets["asked in vain"]))
            await watched.look(one)


async def test_what_a_request_holds_shows_in_nothing_that_is_logged(watched: Watched) -> None:
    """Arguments, names of sessions, queries; also of what is refused, and by clients of either era."""
    secrets = watched.secrets
    async with (
        ScriptedUpstream(tools=[tool("a")], resources=[{"uri": "a:1", "name": "r"}]) as alpha,
        gateway(watched, {"alpha": alpha}, **ADMIN) as one,
    ):
        arguments = {"password": secrets["argument"]}
        called = await one.ask(
            "tools/call", {"name": "alpha__a", "arguments": arguments}, token=secrets["token"]
        )
        assert called.status == 200
        for params in ({"name": secrets["name"]}, {"name": "alpha__a", "arguments": secrets["no object"]}):
            await one.ask("tools/call", params, token=secrets["token"], judged=False)
        await one.ask("resources/read", {"uri": f"alpha+a:1?key={secrets['uri']}"}, token=secrets["token"])
        query = f"/mcp?access_token={secrets['query']}"
        watched.refused(await one.ask("tools/list", path=query, token=secrets["token"]))
        async with LegacyClient(one.addresses.endpoints[0], token=secrets["token"]) as client:
            secrets.add("session", client.session or "")
            await client.ask("tools/call", {"name": "alpha__a", "arguments": arguments})
        watched.refused(
            await one.ask(
                "ping", headers={"mcp-session-id": secrets["no session"], "mcp-protocol-version": None}
            )
        )
        await watched.look(one)


async def test_a_bug_tells_nothing_of_the_request_it_meets(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that quotes the whole request: its text is written without the caller's credential."""
    secrets = watched.secrets
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        gateway(watched, {"alpha": {"url": alpha.url, "auth": {"bearer": secrets["own"]}}}, **ADMIN) as one,
    ):
        pipeline = one.runtime.pipelines["/mcp"]

        async def fail(call: Call, principal: Principal, emit: Any) -> None:
            raise RuntimeError(f"cannot go on with {principal.authorization} and {secrets['own']}")

        monkeypatch.setattr(pipeline, "handle", fail)
        failed = watched.refused(await one.ask("tools/list", token=secrets["token"]))
        assert failed.code == -32603
        assert "RuntimeError: cannot go on with *** and ***\n" in watched.written.getvalue()
        watched.raw.clear()  # which held what the exception says
        await watched.look(one)


# Upstreams


def upstreams_with_secrets(secrets: Canaries, alpha: ScriptedUpstream) -> dict[str, Any]:
    """Return every form in which a server is shown a secret over HTTP."""
    at = urlsplit(alpha.url)
    return {
        "bearer": {"url": alpha.url, "auth": {"bearer": secrets["bearer"]}},
        "headers": {"url": alpha.url, "auth": {"headers": {"X-Key": secrets["header"]}}},
        "forward": {"url": alpha.url, "auth": "forward"},
        "query": {"url": f"{at.scheme}://{at.netloc}{at.path}?api_key={secrets['query']}"},
    }


@pytest.mark.parametrize(
    "behaviour",
    [
        *(
            pytest.param(echoing(status), id=f"echo {status}")
            for status in (200, 400, 401, 403, 404, 500, 503)
        ),
        pytest.param(echoing(200, "application/json"), id="no JSON"),
        pytest.param(echoing(200, "text/event-stream"), id="no events"),
        pytest.param(sse(b"data: {\n\n", CUT), id="cut stream"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", CUT), id="cut body"),
    ],
)
async def test_no_credential_of_an_upstream_shows_however_it_fails(
    watched: Watched, behaviour: Behaviour
) -> None:
    """Lists, calls and reads of servers that say back what they were sent, or break off."""
    secrets = watched.secrets
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        upstreams = upstreams_with_secrets(secrets, alpha)
        async with gateway(watched, upstreams, **ADMIN) as one:
            await one.ask("tools/list", token=secrets["token"])
            alpha.on("*", behaviour)
            for name in upstreams:
                params = {"name": f"{name}__a", "arguments": {"q": secrets["argument"]}}
                watched.refused(await one.ask("tools/call", params, token=secrets["token"]))
                read = {"uri": f"{name}+a:1"}
                watched.refused(await one.ask("resources/read", read, token=secrets["token"]))
            watched.refused(await one.ask("prompts/list", token=secrets["token"]))
            await watched.look(one)


@pytest.mark.parametrize("code", [200, 401, 403, 500])
async def test_no_token_that_was_obtained_shows(watched: Watched, code: int) -> None:
    """The gateway's own and one exchanged for the caller's, of a server that says back what it was sent.

    The authorization server works at first, and then refuses, and says back what it was sent as well.
    """
    secrets = watched.secrets
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        corp.client("gw", secrets["client"])
        client = {"client_id": "gw", "client_secret": secrets["client"], "issuer": corp.issuer}
        upstreams = {
            "own": {"url": alpha.url, "auth": {"client_credentials": client}},
            "each": {"url": alpha.url, "auth": {"token_exchange": client}},
        }
        token = secrets.add("caller", corp.mint("ann", aud="https://gw.example/mcp"))
        secrets.add("its claims", token.split(".")[1])
        async with gateway(watched, upstreams, **ADMIN) as one:
            assert len((await one.ask("tools/list", token=token)).names) == 2
            for number, received in enumerate(alpha.requests):
                shown = (received.header("authorization") or "").removeprefix("Bearer ")
                for part in shown.split(".")[1:]:
                    secrets.add(f"obtained {number} {part[:4]}", part)
            alpha.on("*", echoing(code))
            for _ in range(2):
                for name in upstreams:
                    called = await one.ask("tools/call", {"name": f"{name}__a"}, token=token)
                    watched.refused(called)
                corp.on("token", saying({"error": "invalid_grant", "error_description": token}, status=400))
            await watched.look(one)


async def test_no_session_of_an_older_server_shows(watched: Watched) -> None:
    """Opened with a credential, used, forgotten by its server, opened anew."""
    secrets = watched.secrets
    async with LegacyServer(tools=[tool("a")]) as alpha:
        upstream = {"url": alpha.url, "auth": {"bearer": secrets["bearer"]}}
        async with gateway(watched, {"alpha": upstream}, **ADMIN) as one:
            await one.ask("tools/call", {"name": "alpha__a"}, token=secrets["token"])
            assert alpha.sessions
            for number, session in enumerate([*alpha.sessions]):
                secrets.add(f"session {number}", str(session))
            alpha.forget()
            await one.ask("tools/call", {"name": "alpha__a"}, token=secrets["token"])
            alpha.on("tools/call", echoing(500))
            await one.ask("tools/call", {"name": "alpha__a"}, token=secrets["token"])
            await watched.look(one)


async def test_what_a_program_is_given_shows_in_none_of_its_lines(watched: Watched) -> None:
    """It writes its environment and its arguments to stderr, and ends."""
    secrets = watched.secrets
    program = {
        "command": sys.executable,
        "args": ["-c", PROGRAM, f"--token={secrets['argument']}"],
        "env": {"KEY": secrets["variable"]},
    }
    async with gateway(watched, {"alpha": program}, **ADMIN) as one:
        watched.refused(await one.ask("tools/list"))
        assert "key ***" in watched.written.getvalue()
        await watched.look(one)


# Redis


async def test_redis_shows_no_credential_and_nothing_private(watched: Watched) -> None:
    """Neither in its keys nor in its values: entries, sessions, changes and locks are sealed (C-25)."""
    secrets = watched.secrets
    kept = {"min_ttl": {"tools/list": 60, "resources/read": 60}}
    async with (
        redis_server() as redis,
        ScriptedUpstream(
            tools=[tool("a", description=secrets["description"])],
            resources=[{"uri": "a:1", "name": "r"}],
            ttl_ms=60_000,
            scope="private",
        ) as alpha,
    ):
        own = {"url": alpha.url, "auth": {"bearer": secrets["bearer"]}, "cache": kept}
        members = {
            "cache": {"redis": redis.url, "private_in_redis": True},
            "secrets": {"keys": [secrets["ring"]]},
        }
        async with gateway(watched, {"alpha": own}, **members, **ADMIN) as one:
            while (await one.admin("/status.json"))[1]["cache"]["redis"] != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            listed = await one.ask("tools/list", token=secrets["token"])
            assert secrets["description"] in json.dumps(listed.items)
            await one.ask("resources/read", {"uri": "alpha+a:1"}, token=secrets["token"])
            async with LegacyClient(one.addresses.endpoints[0], token=secrets["token"]) as client:
                secrets.add("session", client.session or "")
                await client.ask("tools/list")
            found = 0
            for key in await redis.ask("KEYS", "*"):
                watched.said.append(repr(key) + repr(await redis.ask("DUMP", key)))
                found += 1
            assert found
            await watched.look(one)
