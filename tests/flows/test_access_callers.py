"""What rules make of callers who proved who they are: by key, scope and claim, of either era (Z-04, Z-08)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest

from tests.support.authorization_server import AuthorizationServer
from tests.support.legacy_client import LegacyClient
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, result, tool

ANN, BOB, EVE = "mcpgw_ann_0123456789", "mcpgw_bob_0123456789", "mcpgw_eve_0123456789"
SCOPES = {"ann": (ANN, ["read"]), "bob": (BOB, ["admin"]), "eve": (EVE, [])}
KEYS = {
    name: {"hash": f"sha256:{sha256(key.encode()).hexdigest()}", "scopes": scopes}
    for name, (key, scopes) in SCOPES.items()
}
WAYS = {"keys": KEYS, "implies": {"admin": ["write"], "write": ["read"]}, "scopes": []}
RULES = [
    {"tools": ["payroll"], "callers": ["key:bob"]},
    {"tools": ["payroll"], "deny": True},
    {"tools": ["write"], "scopes": ["read", "write"]},
    {"tools": ["*"], "scopes": ["read"], "refusal": "list"},
    {},
]
SECRETS = {"keys": ["a-key-of-all-replicas"]}
UI = "io.modelcontextprotocol/ui"
PUBLIC = "https://mcp.example.com"


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(
        tools=[tool("look"), tool("write"), tool("payroll")],
        resources=[{"uri": "note://a", "name": "a"}],
    ) as alpha:
        yield alpha


@asynccontextmanager
async def ruled(alpha: Any, rules: Any = None, **members: Any) -> AsyncIterator[Running]:
    access = {"rules": RULES if rules is None else rules}
    settings: dict[str, Any] = {"authentication": WAYS, "secrets": SECRETS, "access": access, **members}
    async with running({"alpha": alpha}, **settings) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (ANN, ["alpha__look"]),
        (BOB, ["alpha__look", "alpha__write", "alpha__payroll"]),
        (EVE, ["alpha__look"]),
    ],
)
async def test_each_caller_is_shown_what_is_granted(alpha, token, shown):
    """Scopes include others as the operator says, and `list` shows what more scopes would give."""
    async with ruled(alpha) as gateway:
        for each in (ANN, BOB, EVE, token):
            listed = await gateway.ask("tools/list", token=each)
        assert listed.names == shown
        assert len(alpha.seen("tools/list")) == 1


@pytest.mark.parametrize(
    ("token", "name", "status", "scopes"),
    [
        (ANN, "look", 200, None),
        (ANN, "write", 403, "read write"),
        (BOB, "write", 200, None),
        (BOB, "payroll", 200, None),
        (EVE, "look", 403, "read"),
        (EVE, "write", 403, "read write"),
    ],
)
async def test_each_caller_may_call_what_is_granted(alpha, token, name, status, scopes):
    """And is told of all that it takes, what is held already included, for tokens replace each other."""
    async with ruled(alpha) as gateway:
        called = await gateway.ask("tools/call", {"name": f"alpha__{name}"}, token=token)
        assert called.status == status
        if scopes is not None:
            assert f'scope="{scopes}"' in (called.header("www-authenticate") or "")
            assert called.message["id"] == 1
            assert not alpha.seen("tools/call")


async def test_what_is_made_for_one_caller_is_there_for_all_who_are_shown_the_same(alpha):
    """Without another look at any server, and without anything of whoever is shown more."""
    async with ruled(alpha, [{"callers": ["key:bob"]}, {"tools": ["look"]}]) as gateway:
        await gateway.ask("tools/list", token=BOB)
        first = await gateway.ask("tools/list", token=ANN)
        second = await gateway.ask("tools/list", token=EVE)
        assert first.names == second.names == ["alpha__look"]
        assert first.result["tools"] == second.result["tools"]
        assert second.hints[1] == "private"
        assert (second.header("mcp-gateway-cache") or "").startswith("hit")
        assert len(alpha.seen("tools/list")) == 1


async def test_what_is_private_is_shared_with_nobody_though_it_looks_the_same(alpha):
    """Equal rights make no equal callers."""
    alpha.scope = "private"
    async with ruled(alpha, [{"tools": ["look"]}]) as gateway:
        for token in (ANN, EVE, ANN, EVE):
            await gateway.ask("tools/list", token=token)
        assert len(alpha.seen("tools/list")) == 2


async def test_a_kept_result_is_for_those_who_may_ask_for_it(alpha):
    """The cache is looked into by nobody else, even where the result is everybody's (C-21)."""
    kept = {"url": alpha.url, "cache": {"calls": {"write": {"ttl": "60s", "scope": "public"}}}}
    async with ruled(kept) as gateway:
        params = {"name": "alpha__write", "arguments": {}}
        await gateway.ask("tools/call", params, token=BOB)
        again = await gateway.ask("tools/call", params, token=BOB)
        assert (again.header("mcp-gateway-cache") or "").startswith("hit")
        assert (await gateway.ask("tools/call", params, token=EVE)).status == 403
        assert len(alpha.seen("tools/call")) == 1


async def test_a_retry_is_judged_anew(alpha):
    """A state that the caller was given when he still might goes no further (M-09)."""
    schema = {"type": "object", "properties": {}}
    ask = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}
    alpha.on("tools/call", result({"resultType": "input_required", "inputRequests": {"q": ask}}))
    able = {"elicitation": {"form": {}}}
    params: dict[str, Any] = {"name": "alpha__look", "arguments": {}}
    async with ruled(alpha) as before:
        asked = await before.ask("tools/call", params, token=ANN, capabilities=able)
        state = asked.result["requestState"]
    alpha.reset("tools/call")
    retry = {**params, "requestState": state, "inputResponses": {"q": {"action": "decline"}}}
    before_now = len(alpha.seen("tools/call"))
    async with ruled(alpha, [{"tools": ["look"], "scopes": ["write"]}, {}]) as gateway:
        assert (await gateway.ask("tools/call", retry, token=ANN, capabilities=able)).status == 403
    async with ruled(alpha, [{"tools": ["look"], "deny": True}, {}]) as gateway:
        refused = await gateway.ask("tools/call", retry, token=ANN, capabilities=able)
        assert refused.error["message"] == "Unknown tool: alpha__look"
    assert len(alpha.seen("tools/call")) == before_now


async def test_a_cursor_shows_no_more_than_its_caller_may_see_now(alpha):
    """Whoever lost a right begins anew (F-20)."""
    alpha.tools = [tool(f"{kind}{n}") for n in range(3) for kind in ("look", "payroll")]
    limits = {"page_size": 2}
    async with ruled(alpha, [{}], limits=limits) as before:
        cursor = (await before.ask("tools/list", token=ANN)).result["nextCursor"]
        assert (await before.ask("tools/list", {"cursor": cursor}, token=ANN)).names
    async with ruled(alpha, [{"tools": ["look*"]}], limits=limits) as gateway:
        refused = await gateway.ask("tools/list", {"cursor": cursor}, token=ANN)
        assert refused.code == -32602
        assert b"payroll" not in refused.body


async def test_pages_that_are_kept_for_one_sight_are_for_no_other(alpha):
    """F-21, Z-08: the same person with fewer scopes is not given the next page of what more had shown."""
    alpha.tools = [tool(f"{kind}{n}") for n in range(3) for kind in ("look", "payroll")]
    async with AuthorizationServer() as corp:
        corp.extra = {"aud": f"{PUBLIC}/mcp"}
        ways = {"tokens": {"corp": {"issuer": corp.issuer}}}
        rules = [{"tools": ["payroll*"], "scopes": ["pay"], "refusal": "hide"}, {}]
        limits = {"page_size": 2}
        async with ruled(alpha, rules, authentication=ways, public_url=PUBLIC, limits=limits) as gateway:
            rich, poor = corp.mint("alice", scope="pay"), corp.mint("alice")
            cursor = (await gateway.ask("tools/list", token=rich)).result["nextCursor"]
            assert (
                "alpha__payroll1" in (await gateway.ask("tools/list", {"cursor": cursor}, token=rich)).names
            )
            refused = await gateway.ask("tools/list", {"cursor": cursor}, token=poor)
            assert refused.code == -32602
            assert b"payroll" not in refused.body


async def test_a_bare_name_does_not_lead_to_what_is_hidden(alpha):
    """K-10: an MCP App's own name for a tool counts where the tool may be known of."""
    alpha.capabilities["extensions"] = {UI: {}}
    names = {"bare_name_fallback": True}
    async with ruled(alpha, names=names, extensions=[UI]) as gateway:
        told = [await gateway.ask("tools/call", {"name": name}, token=ANN) for name in ("payroll", "absent_")]
        bodies = [
            answer.body.replace(name, b"*")
            for answer, name in zip(told, (b"payroll", b"absent_"), strict=True)
        ]
        assert bodies[0] == bodies[1]
        assert (await gateway.ask("tools/call", {"name": "write"}, token=ANN)).status == 403
        assert (await gateway.ask("tools/call", {"name": "payroll"}, token=BOB)).status == 200


async def test_rules_go_by_what_trusted_servers_say_of_their_tools(alpha):
    """And take the others' tools for the worst."""
    alpha.tools = [tool("look", annotations={"readOnlyHint": True}), tool("write")]
    async with ScriptedUpstream(tools=[tool("look", annotations={"readOnlyHint": True})]) as beta:
        upstreams = {"alpha": {"url": alpha.url, "trust_annotations": True}, "beta": beta}
        rules = [{"annotations": {"readOnlyHint": True}}]
        async with running(upstreams, authentication=WAYS, access={"rules": rules}) as gateway:
            assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__look"]
            statuses = {
                name: (await gateway.ask("tools/call", {"name": name}, token=ANN)).status
                for name in ("alpha__look", "alpha__write", "beta__look")
            }
            assert statuses == {"alpha__look": 200, "alpha__write": 400, "beta__look": 400}
            assert not beta.seen("tools/call")


async def test_claims_of_a_token_choose_its_rules(alpha):
    """Tokens of one person may say different things; each request counts for itself."""
    async with AuthorizationServer() as corp:
        corp.extra = {"aud": f"{PUBLIC}/mcp"}
        ways = {"tokens": {"corp": {"issuer": corp.issuer}}}
        rules = [
            {"callers": ["corp:*"], "claims": {"realm.roles": ["payroll"]}},
            {"tools": ["look"], "scopes": ["read"]},
        ]
        async with ruled(alpha, rules, authentication=ways, public_url=PUBLIC) as gateway:
            granted = corp.mint("alice", realm={"roles": ["x", "payroll"]})
            plain = corp.mint("alice", scope="read")
            poor = corp.mint("alice")
            assert len((await gateway.ask("tools/list", token=granted)).names) == 3
            assert (await gateway.ask("tools/list", token=plain)).names == ["alpha__look"]
            assert (await gateway.ask("tools/list", token=poor)).names == []
            assert (await gateway.ask("tools/call", {"name": "alpha__look"}, token=poor)).status == 403


async def test_in_a_batch_each_refusal_names_the_scopes_it_takes(alpha):
    """Z-04: there is one status and one challenge for all of it, and neither would be about one call."""
    async with (
        ruled(alpha) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], "2025-03-26", token=ANN) as ann,
    ):
        await ann.initialize()
        calls = [
            {
                "jsonrpc": "2.0",
                "id": id,
                "method": "tools/call",
                "params": {"name": f"alpha__{name}", "arguments": {}},
            }
            for id, name in enumerate(("look", "write"), 7)
        ]
        async with ann.post(json.dumps(calls).encode()) as exchange:
            await exchange.whole()
        answers = {one["id"]: one for one in exchange.messages}
        assert "result" in answers[7]
        assert answers[8]["error"]["data"] == {"scopes": ["read", "write"]}
        assert len(alpha.seen("tools/call")) == 1


async def test_to_older_clients_what_is_hidden_is_what_nobody_has(alpha):
    """Also where they subscribe to it, or call a method of an extension."""
    rules = [
        {"resources": ["note://a"], "methods": ["com.example/hidden"], "deny": True},
        {"resources": ["note://scoped"], "scopes": ["admin"]},
        {},
    ]
    async with ruled(alpha, rules) as gateway:
        async with LegacyClient(gateway.addresses.endpoints[0], "2025-11-25", token=ANN) as ann:
            await ann.initialize()
            for name in ("a", "absent"):
                assert await ann.result("resources/subscribe", {"uri": f"alpha+note://{name}"}) == {}
            async with ann.open("resources/subscribe", {"uri": "alpha+note://scoped"}) as refused:
                assert (await refused.begun()).status == 403
            hidden, unknown = [await ann.error(f"com.example/{name}") for name in ("hidden", "absent")]
            assert unknown["message"] == "Method not found: com.example/absent"
            assert hidden == {**unknown, "message": "Method not found: com.example/hidden"}
            assert not alpha.seen("com.example/hidden")
        asked = [one.wanted.get("resourceSubscriptions", []) for one in alpha.listens]
        assert "note://a" not in [uri for uris in asked for uri in uris]


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_older_clients_are_held_to_the_same_rules(alpha, version):
    """In lists, calls, reads and subscriptions, with the same refusals."""
    rules = [*RULES[:-1], {"resources": ["note://*"], "callers": ["key:bob"]}]
    async with ruled(alpha, rules) as gateway:
        url = gateway.addresses.endpoints[0]
        async with LegacyClient(url, version, token=ANN) as ann, LegacyClient(url, version, token=BOB) as bob:
            assert "resources" not in (await ann.initialize())["result"]["capabilities"]
            assert "resources" in (await bob.initialize())["result"]["capabilities"]
            assert [one["name"] for one in (await ann.result("tools/list"))["tools"]] == ["alpha__look"]
            assert len((await bob.result("tools/list"))["tools"]) == 3
            hidden = await ann.error("tools/call", {"name": "alpha__payroll", "arguments": {}})
            unknown = await ann.error("tools/call", {"name": "alpha__absent_", "arguments": {}})
            assert hidden["code"] == unknown["code"]
            assert hidden["message"].replace("payroll", "absent_") == unknown["message"]
            assert await bob.result("tools/call", {"name": "alpha__payroll", "arguments": {}})
            assert await bob.result("resources/read", {"uri": "alpha+note://a"})
            assert await bob.result("resources/subscribe", {"uri": "alpha+note://a"}) == {}
            for method in ("resources/read", "resources/subscribe"):
                place = {"uri": "alpha+note://a"}
                hidden = await ann.error(method, place)
                unknown = await ann.error(method, {"uri": "zeta+note://a"})
                assert hidden["code"] == unknown["code"]
                assert hidden["message"] == unknown["message"]
            assert len(alpha.seen("resources/read")) == 1
            async with ann.open("tools/call", {"name": "alpha__write", "arguments": {}}) as refused:
                assert (await refused.begun()).status == 403
                assert 'scope="read write"' in refused.headers["www-authenticate"]
