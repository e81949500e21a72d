"""What is built from a configuration, how it starts, and what it tells operators."""

import asyncio
import json
from collections.abc import Mapping
from typing import get_args

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel, SecretStr

from gateway import app
from gateway.config import MASKED_FROM, confidential
from gateway.protocol.call import Reason
from gateway.runtime import build, fingerprints
from gateway.server import Gateway
from gateway.support.seal import Seal
from tests.support.running import ONCE, running, settings
from tests.support.scripted import ScriptedUpstream, default, hang, status, tool

SECRET = "s3cret-token-of-the-gateway"


async def test_it_listens_where_it_says():
    """Port 0 becomes a real one, for every endpoint."""
    async with ScriptedUpstream() as alpha:
        paths = {"/mcp": {}, "/two": {}}
        async with running({"alpha": alpha}, endpoints=paths, admin="127.0.0.1:0") as gateway:
            one, two = gateway.addresses.endpoints
            assert one.endswith("/mcp")
            assert two.endswith("/two")
            assert one.removesuffix("/mcp") == two.removesuffix("/two")
            assert ":0/" not in one
            assert gateway.addresses.admin is not None


async def test_an_address_that_is_taken_leaves_nothing_running():
    """The start fails with OSError; the admin listener that was already there is closed again."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as first:
        taken = first.addresses.endpoints[0].removeprefix("http://").removesuffix("/mcp")
        second = Gateway(build(settings({"alpha": alpha}, listen=taken, admin="127.0.0.1:0")))
        with pytest.raises(OSError, match="in use"):
            await second.start()
        assert repr(second.runtime.background) == "<Background []>"


async def test_it_is_ready_once_every_upstream_was_tried_or_the_wait_is_over():
    """A dead upstream does not hold it, a silent one only for startup_wait."""
    async with ScriptedUpstream() as alpha, ScriptedUpstream() as silent:
        silent.on("server/discover", hang())
        upstreams = {"alpha": alpha, "silent": silent}
        async with running(upstreams, settled=False, startup_wait=0.2) as gateway:
            assert gateway.gateway.phase() == "starting"
            await gateway.gateway.settled()
            assert gateway.gateway.phase() == "ready"
            assert gateway.status("silent").state == "starting"


async def test_the_status_tells_names_and_numbers_and_no_secret():
    """Neither a credential nor an address (B42)."""
    async with ScriptedUpstream(tools=[tool("a"), tool("b")]) as alpha:
        upstreams = {"alpha": {"url": alpha.url, "auth": {"bearer": SECRET}}}
        async with running(upstreams, admin="127.0.0.1:0") as gateway:
            await gateway.ask("tools/list", token="TOK-A")
            _, told = await gateway.admin("/status.json")
            assert told["phase"] == "ready"
            assert told["endpoints"] == {"/mcp": ["alpha"]}
            assert told["upstreams"]["alpha"]["state"] == "up"
            assert told["upstreams"]["alpha"]["in_state_seconds"] >= 0
            assert told["upstreams"]["alpha"]["http_status"] is None
            assert told["upstreams"]["alpha"]["listed"] == {"tools/list": 2}
            assert told["cache"]["entries"] == 1
            for shown in (json.dumps(told), repr(gateway.gateway), repr(gateway.runtime.catalogue)):
                assert SECRET not in shown
                assert "TOK-A" not in shown
                assert alpha.url not in shown
            assert repr(gateway.gateway).startswith("<Gateway ready <HttpFront 127.0.0.1:")


async def test_the_status_tells_which_http_status_an_upstream_is_down_for():
    """The number alone: a detail may name an address."""
    async with ScriptedUpstream() as alpha:
        alpha.on("server/discover", status(503))
        async with running({"alpha": alpha}, admin="127.0.0.1:0") as gateway:
            _, told = await gateway.admin("/status.json")
            assert told["upstreams"]["alpha"]["error"] == Reason.STATUS.value
            assert told["upstreams"]["alpha"]["http_status"] == 503


async def test_an_upstream_has_a_metric_before_it_was_ever_up():
    """An alert on what never came up needs a series."""
    async with ScriptedUpstream() as silent:
        silent.on("server/discover", hang())
        async with running({"silent": silent}, settled=False) as gateway:
            await silent.arrived("server/discover")
            assert gateway.status("silent").state == "starting"
            shown = await asyncio.to_thread(gateway.runtime.metrics.render)
            assert b'mcp_gateway_upstream_up{upstream="silent"} 0.0' in shown


async def test_the_tools_command_lists_what_clients_see_and_what_keeps_others_away():
    """The upstreams are reached once, nothing is listened on."""
    async with (
        ScriptedUpstream(tools=[tool("a", description="An a."), {"name": "broken"}]) as alpha,
        ScriptedUpstream() as dead,
    ):
        await dead.stop()
        listing = await app.list_tools(settings({"alpha": alpha, "dead": dead}), "/mcp")
        assert listing.tools == (app.ToolLine("alpha__a", "alpha", "a", "An a."),)
        assert len(listing.problems) == 2
        assert any(problem.startswith("upstream dead:") for problem in listing.problems)
        assert any("broken" in problem for problem in listing.problems)


async def test_the_tools_command_shows_what_a_client_sees():
    """Names, descriptions and order of its tools/list, with every rule of upstream and endpoint applied."""
    async with (
        ScriptedUpstream(tools=[tool("z", description="Own."), tool("a"), tool("m")]) as alpha,
        ScriptedUpstream(tools=[tool("b", description="B."), tool("hidden")]) as beta,
    ):
        upstreams = {
            "zeta": {"url": alpha.url, "tools": {"describe": {"a": "Of zeta."}, "rename": {"m": "c"}}},
            "beta": {"url": beta.url, "tools": {"deny": ["hidden"]}},
        }
        rules = {"describe": {"zeta__z": "Of the endpoint."}, "rename": {"beta__b": "b"}}
        endpoints = {"/mcp": {"tools": rules}}
        async with running(upstreams, endpoints=endpoints) as gateway:
            seen = (await gateway.ask("tools/list")).result["tools"]
        listing = await app.list_tools(settings(upstreams, endpoints=endpoints), "/mcp")
    assert [(one.name, one.description) for one in listing.tools] == [
        (one["name"], one.get("description", "")) for one in seen
    ]
    assert [one.original for one in listing.tools] == ["z", "a", "m", "b"]
    assert {"Of the endpoint.", "Of zeta.", "B."} <= {one.description for one in listing.tools}


async def test_the_tools_command_waits_for_an_upstream_that_is_about_to_start():
    """For `startup_wait`: a list alone waits for `list_timeout`, and a program may take longer to start."""
    begun = asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as slow:
        slow.once("server/discover", hang(begun, default))
        config = settings({"slow": {"url": slow.url, "list_timeout": 1.0}}, startup_wait=30.0)
        listing = asyncio.create_task(app.list_tools(config, "/mcp"))
        await slow.arrived("server/discover")
        done, _ = await asyncio.wait({listing}, timeout=1.5)
        assert not done
        begun.set()
        assert [one.name for one in (await listing).tools] == ["slow__a"]


async def test_the_tools_command_says_why_there_are_none():
    """Every upstream is down: no traceback."""
    async with ScriptedUpstream() as dead:
        await dead.stop()
        listing = await app.list_tools(settings({"dead": dead}), "/mcp")
        assert listing.tools == ()
        assert [problem.startswith("upstream dead:") for problem in listing.problems] == [True]


async def test_the_tools_command_asks_no_redis():
    """It shares nothing: a Redis that is away neither delays it nor is told of it."""
    came = asyncio.Event()
    listener = await asyncio.start_server(lambda *_: came.set(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    cache = {"redis": f"redis://127.0.0.1:{port}"}
    secrets = {"keys": ["0123456789abcdef-key"]}
    async with listener, ScriptedUpstream(tools=[tool("a")]) as alpha:
        listing = await app.list_tools(settings({"alpha": alpha}, cache=cache, secrets=secrets), "/mcp")
    assert [one.name for one in listing.tools] == ["alpha__a"]
    assert not came.is_set()


async def test_a_stopped_gateway_leaves_no_task_behind():
    """Whatever its upstreams were doing."""
    before = asyncio.all_tasks()
    async with ScriptedUpstream() as alpha, ScriptedUpstream() as silent:
        silent.on("server/discover", hang())
        async with running({"alpha": alpha, "silent": silent}, settled=False, pace=ONCE) as gateway:
            await silent.arrived("server/discover")
        assert repr(gateway.runtime.background) == "<Background []>"
    assert asyncio.all_tasks() == before


async def test_tools_are_listed_as_rules_show_them_to_a_caller() -> None:
    """With what they keep from him, and why; without a caller rules are set aside."""
    rules = [
        {"callers": ["key:ci"], "tools": ["b"], "scopes": ["write"], "refusal": "list"},
        {"tools": ["a"]},
    ]
    async with ScriptedUpstream(tools=[tool("a"), tool("b"), tool("c")]) as alpha:
        keys = {"ci": {"hash": f"sha256:{'0' * 64}", "scopes": ["admin"]}}
        ways = {"keys": keys, "implies": {"admin": ["more"], "more": ["write"]}}
        config = settings({"alpha": alpha}, access={"rules": rules}, authentication=ways)
        everything = await app.list_tools(config, "/mcp")
        assert [tool.original for tool in everything.tools] == ["a", "b", "c"]
        assert everything.kept == ()
        ann = await app.list_tools(config, "/mcp", caller="key:ann")
        assert [tool.original for tool in ann.tools] == ["a"]
        denied = "hidden: access.default denies it"
        assert dict(ann.kept) == {"alpha__b": denied, "alpha__c": denied}
        ci = await app.list_tools(config, "/mcp", caller="key:ci")
        assert [tool.original for tool in ci.tools] == ["a", "b"]
        assert dict(ci.kept) == {"alpha__c": denied}


def obtaining(**members):
    """Return a configuration whose upstream is given tokens."""
    client = {"client_id": "gw", "client_secret": SECRET, "issuer": "https://as.example", **members}
    return settings({"alpha": {"url": "https://mcp.example/mcp", "auth": {"client_credentials": client}}})


def test_what_an_authorization_server_is_shown_is_kept_out_of_the_log():
    """The secret, and parameters that may be one; a name that anybody may know stays (B42)."""
    parameters = {"api_key": "another-s3cret", "audience": "https://mcp.example", "n": "1"}
    assert confidential(obtaining(parameters=parameters)) == [SECRET, "another-s3cret"]
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    lines = key.decode().split("\n")[1:-2]
    hidden = confidential(obtaining(client_secret=None, client_key=key.decode()))
    assert hidden == [line for line in lines if len(line) >= MASKED_FROM]
    assert hidden


def test_what_is_cached_belongs_to_the_client_that_asked():
    """Another client, secret or scope may be answered otherwise: what was kept is then another's."""
    seal = Seal(["k" * 32], now=lambda: 0.0)
    kept = {
        fingerprints(obtaining(**members), seal)["alpha"]
        for members in ({}, {"client_id": "other"}, {"client_secret": "another-s3cret"}, {"scopes": ["a"]})
    }
    assert len(kept) == 4
    assert fingerprints(obtaining(), seal) == fingerprints(obtaining(), seal)


def test_every_secret_that_a_configuration_can_hold_is_known_to_the_log():
    """Whatever is declared a secret anywhere in the models, one of each (B42)."""
    client = {"client_id": "c", "issuer": "https://as.example", "client_secret": "secret-client"}
    issuer = {
        "issuer": "https://as.example",
        "introspection_url": "https://as.example/i",
        "client_id": "c",
        "client_secret": "secret-issuer",
    }
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signing = {"client_id": "c", "issuer": "https://as.example", "client_key": key.decode()}
    made = settings(
        {
            "a": {"url": "http://127.0.0.1:1/", "auth": {"bearer": "secret-bearer"}},
            "b": {"url": "http://127.0.0.1:1/", "auth": {"headers": {"X-Key": "secret-header"}}},
            "c": {"url": "http://127.0.0.1:1/", "auth": {"client_credentials": client}},
            "d": {"url": "http://127.0.0.1:1/", "auth": {"token_exchange": client}},
            "e": {"url": "http://127.0.0.1:1/", "auth": {"client_credentials": signing}},
            "f": {"command": "true", "env": {"KEY": "secret-variable"}},
        },
        cache={"redis": "redis://:secret-redis@127.0.0.1:1"},
        secrets={"keys": ["secret-ring-of-keys"]},
        authentication={"tokens": {"corp": issuer}},
        public_url="https://gw.example",
    )
    places = {place: secret for place, secret in secrets_in(made)}
    assert set(declared(type(made))) == {place.rpartition(".")[2].partition("[")[0] for place in places}
    known = confidential(made)
    for place, secret in places.items():
        assert all(line in known for line in secret.splitlines() if "-----" not in line), place


def secrets_in(part, place=""):
    """Yield where in a model a secret stands, and what it is."""
    match part:
        case SecretStr():
            yield place, part.get_secret_value()
        case BaseModel():
            for name in type(part).model_fields:
                yield from secrets_in(getattr(part, name), f"{place}.{name}")
        case Mapping():
            for name, one in part.items():
                yield from secrets_in(one, f"{place}[{name}]")
        case list():
            for one in part:
                yield from secrets_in(one, place)


def declared(kind):
    """Yield the names of the fields that are declared to hold secrets, in a model and all below it."""
    for name, field in kind.model_fields.items():
        for inner in kinds_in(field.annotation):
            if inner is SecretStr:
                yield name
            elif isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from declared(inner)


def kinds_in(annotation):
    inner = get_args(annotation)
    return [annotation] if not inner else [kind for one in inner for kind in kinds_in(one)]
