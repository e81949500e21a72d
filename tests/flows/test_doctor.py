"""The doctor before real upstreams: what it tells of each, what it finds wrong, and what an audit finds."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from gateway.cli import main
from gateway.doctor.asking import Token
from gateway.doctor.examine import examine
from gateway.doctor.findings import Audited, Report
from gateway.doctor.text import tables
from tests.support.authorization_server import AuthorizationServer, failing
from tests.support.legacy_upstream import LegacyServer
from tests.support.processes import ROOT
from tests.support.redis import redis_server
from tests.support.running import settings
from tests.support.scripted import (
    Behaviour,
    Exchange,
    ScriptedUpstream,
    default,
    error,
    hang,
    result,
    status,
    tool,
)

ANN = Token("ANN", "Bearer TOK-ANN-SECRET")
BOB = Token("BOB", "Bearer TOK-BOB-SECRET")
PROGRAM = ROOT / "tests" / "support" / "programs" / "server.py"
RESOURCES = [{"uri": f"a:{number}", "name": str(number)} for number in range(3)]


async def doctor(
    upstreams: Mapping[str, Any], *, tokens: Sequence[Token] = (), audited: bool = False, **members: Any
) -> Report:
    """Return a report, and see to it that no form of it holds a token."""
    options = {key: members.pop(key) for key in ("endpoint", "max_reads", "say") if key in members}
    report = await examine(settings(upstreams, **members), tokens=tokens, audited=audited, **options)
    assert "SECRET" not in json.dumps(asdict(report)) + repr(list(tables(report)))
    return report


def said(report: Report) -> list[str]:
    return [one.what for one in report.problems]


def noted(report: Report) -> str:
    return "\n".join(one.what for one in report.notes)


def forward(upstream: ScriptedUpstream, **cache: Any) -> dict[str, Any]:
    return {"url": upstream.url, "auth": "forward", "cache": cache}


def by_caller(**answers: Behaviour) -> Behaviour:
    """Answer each caller so: ann, bob, and whoever else."""

    async def behave(exchange: Exchange) -> None:
        caller = (exchange.received.header("authorization") or "").removeprefix("Bearer TOK-")
        await answers.get(caller.partition("-")[0].lower(), answers.get("other", default))(exchange)

    return behave


def text(words: str, scope: str = "public") -> Behaviour:
    return result({"contents": [{"uri": "a:0", "text": words}], "ttlMs": 60_000, "cacheScope": scope})


def findings(report: Report) -> list[tuple[str, str | None, str]]:
    assert report.audit is not None
    return [(one.method, one.target, one.kind) for each in report.audit for one in each.findings]


def audit_of(report: Report) -> Audited:
    assert report.audit is not None
    return report.audit[0]


async def test_a_healthy_upstream_is_described_and_nothing_is_to_be_mended() -> None:
    """State, era, version, auth, counts; per method what it says, what becomes of it and why."""
    async with ScriptedUpstream(tools=[tool("a"), tool("b")], resources=RESOURCES) as alpha:
        alpha.page_size = 1
        alpha.on("resources/read", text("x", "private"))
        told: list[str] = []
        report = await doctor({"alpha": alpha}, say=told.append)
        (one,) = report.upstreams
        assert (one.state, one.era, one.version, one.auth.result) == (
            "up",
            "modern",
            "2026-07-28",
            "none needed",
        )
        assert one.items == {"tools": 2, "prompts": 0, "resources": 3, "templates": 0}
        kept = {each.method: (each.ttl_said, each.scope_said, each.keeps) for each in one.cache}
        shared = ("60000", "public", "shared")
        assert kept == {
            "server/discover": shared,
            "tools/list": shared,
            "prompts/list": shared,
            "resources/list": shared,
            "resources/templates/list": shared,
            "resources/read": ("60000", "private", "own"),
            "tools/call": (None, None, "never"),
            "prompts/get": (None, None, "never"),
        }
        assert (report.found, report.redis, report.audit) == (0, None, None)
        assert told == ["alpha: asking", "alpha: up, tools 2, prompts 0, resources 3, templates 0"]


async def test_the_operators_rules_are_applied() -> None:
    """What is kept by a rule says so; a kept tool that is not there is to be mended."""
    async with ScriptedUpstream(tools=[tool("a")], ttl_ms=0) as alpha:
        cache = {"min_ttl": {"tools/list": 30.0}, "calls": {"a": {"ttl": 5.0}, "gone": {"ttl": 5.0}}}
        rules = {"rename": {"x": "y"}}
        report = await doctor({"alpha": {"url": alpha.url, "cache": cache, "tools": rules}})
        kept = {
            (each.method, each.target): (each.keeps, each.ttl, each.rules)
            for each in report.upstreams[0].cache
        }
        assert kept["tools/list", None] == ("own", 30, ("min_ttl",))
        assert kept["prompts/list", None] == ("never", 0, ())
        assert kept["tools/call", "a"] == ("own", 5, ("calls",))
        assert said(report) == ["cache.calls names gone, which it does not list"]
        unused = [one.what for one in report.warnings if one.kind == "unused-setting"]
        assert unused == ["tools.rename names x, which it does not list"]


async def test_servers_of_every_kind_are_described() -> None:
    """Era, transport and version as they were found out, what is converted, and what cannot cross."""
    async with ScriptedUpstream(tools=[tool("a")]) as modern, LegacyServer(tools=[tool("a")]) as older:
        program = {"command": sys.executable, "args": [str(PROGRAM), "--era", "legacy"]}
        report = await doctor({"modern": modern, "older": older, "program": program})
        seen = {one.upstream: (one.state, one.era, one.transport) for one in report.upstreams}
        assert seen == {
            "modern": ("up", "modern", "Streamable HTTP"),
            "older": ("up", "legacy", "Streamable HTTP"),
            "program": ("up", "legacy", "stdio"),
        }
        told = {one.upstream: one for one in report.upstreams}
        assert told["program"].version == "2025-06-18"
        barriers = {each.what: each.next for each in told["program"].blocked}
        asks = "questions to the user (elicitation, sampling, roots)"
        assert barriers[asks] == "set upstreams.program.isolation: session, or caller"
        assert asks not in {each.what for each in told["older"].blocked}
        assert "its results into the cache" in {each.what for each in told["older"].blocked}
        assert told["older"].converted[0].whom == "clients of 2026-07-28"
        assert report.found == 0
        words = repr(list(tables(report)))
        assert "program: what cannot cross" in words
        assert f"next: {barriers[asks]}" in words
        assert "modern: what is converted" in words


async def test_a_program_that_cannot_be_started_is_to_be_mended() -> None:
    """By the settings that start it."""
    report = await doctor({"gone": {"command": "/no/such/program"}})
    assert report.upstreams[0].state == "down"
    assert [one.next for one in report.problems] == [
        "install it, or write its whole path as upstreams.gone.command"
    ]


async def test_a_certificate_that_is_not_trusted_is_no_matter_of_the_url() -> None:
    """The advice is about trust, and says which check failed (B49)."""
    async with ScriptedUpstream() as plain:
        report = await doctor({"gone": plain.url.replace("http:", "https:")})
    (problem,) = report.problems
    assert "TLS: it speaks no TLS there" in problem.what
    assert problem.next == "write http: in upstreams.gone.url, or its port for TLS"


@pytest.mark.parametrize(
    ("code", "auth", "told", "next"),
    [
        (
            401,
            {"bearer": "hunter2"},
            "refused (HTTP 401)",
            "correct the credential under upstreams.alpha.auth",
        ),
        (403, {"bearer": "hunter2"}, "not allowed (HTTP 403)", "more rights"),
        (401, "none", "asked for (HTTP 401)", "write what it wants under upstreams.alpha.auth"),
    ],
)
async def test_a_credential_that_is_refused_is_told_from_one_that_may_not(
    code: int, auth: Any, told: str, next: str
) -> None:
    """401 and 403 are mended differently."""
    async with ScriptedUpstream() as alpha:
        alpha.on("*", status(code))
        report = await doctor({"alpha": {"url": alpha.url, "auth": auth}})
        assert report.upstreams[0].auth.result == told
        (problem,) = report.problems
        assert told in problem.what
        assert next in problem.next


async def test_a_forwarding_upstream_is_shown_the_callers_token_and_no_other_is() -> None:
    """Without one it tells what it wants; with one it is examined (Z-09)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream(tools=[tool("b")]) as beta:
        alpha.on("*", by_caller(ann=default, bob=status(403), other=status(401)))
        servers = {"alpha": forward(alpha), "beta": beta}
        for tokens, result_, tools in (
            ((), "wants the caller's token (HTTP 401)", None),
            ((ANN,), "accepted", 1),
            ((BOB,), "not allowed (HTTP 403)", None),
        ):
            report = await doctor(servers, tokens=tokens)
            assert (report.upstreams[0].auth.result, report.upstreams[0].items["tools"]) == (result_, tools)
            assert report.found == (tokens == (BOB,))
        assert "--token-env" in noted(await doctor(servers))
        assert not [one for one in beta.requests if one.header("authorization")]


async def test_what_does_not_work_is_told_of_each_and_stops_nobody() -> None:
    """A dead one, one at no address, one that hangs, one that refuses a list, one that is whole."""
    async with (
        ScriptedUpstream() as old,
        ScriptedUpstream(tools=[tool("a")]) as slow,
        ScriptedUpstream(tools=[tool("a")]) as odd,
        ScriptedUpstream(tools=[tool("a")]) as good,
    ):
        old.on("*", status(404))
        slow.on("tools/list", hang())
        odd.on("prompts/list", error(-32601))
        odd.on("resources/list", error(-32603))
        odd.on("tools/list", result({"tools": [tool("fine"), {"name": "broken"}]}))
        servers: dict[str, Any] = {
            "gone": "http://127.0.0.1:9/mcp", "old": old,
            "slow": {"url": slow.url, "list_timeout": 2.0}, "odd": odd, "good": good,
        }  # fmt: skip
        report = await doctor(servers)
        assert [one.state for one in report.upstreams] == ["down", "down", "up", "up", "up"]
        found = {one.upstream: [] for one in report.problems}
        for one in report.problems:
            assert one.next
            found[one.upstream].append(one.what)
        assert "connection failed" in found["gone"][0]
        assert "HTTP 404 to server/discover" in found["old"][0]
        assert "it refuses initialize: HTTP 404" in found["old"][0]
        assert found["slow"] == ["tools/list: no answer in time, its list_timeout is 2s"]
        assert sorted(what.partition(":")[0] for what in found["odd"]) == [
            "broken is left out of tools/list", "resources/list"
        ]  # fmt: skip
        assert "it declares prompts and does not serve prompts/list" in noted(report)
        assert "good" not in found
        assert report.upstreams[3].excluded[0][:2] == ("tools/list", "broken")


async def test_odd_names_are_told_of_every_endpoint() -> None:
    """Cut, collided, hidden, and an https URI that two list."""
    long, web = "x" * 80, [{"uri": "https://x/", "name": "x"}]
    async with (
        ScriptedUpstream(tools=[tool(long), tool("a.b"), tool("fine"), tool("no")], resources=web) as alpha,
        ScriptedUpstream(tools=[tool("alpha__fine")], resources=web) as beta,
    ):
        servers = {
            "alpha": {"url": alpha.url, "prefix": "alpha", "tools": {"deny": ["no"]}},
            "beta": {"url": beta.url, "prefix": ""},
        }
        report = await doctor(servers, endpoints={"/mcp": {}, "/one": {"upstreams": ["alpha"]}})
        shown = {(one.endpoint, one.original): one.why for one in report.names}
        assert set(shown) == {(path, name) for path in ("/mcp", "/one") for name in (long, "a.b")}
        assert "longer than 64" in shown["/mcp", long]
        assert "characters" in shown["/mcp", "a.b"]
        collision, web_uri = said(report)
        assert "/mcp: its tool alpha__fine is shown as alpha__fine_" in collision
        assert web_uri == "/mcp: it lists https://x/, which alpha lists too and is asked for"
        assert "/one hides no, by upstreams.alpha.tools" in noted(report)
        endpoints = {"/mcp": {}, "/one": {"upstreams": ["alpha"]}}
        report = await doctor(servers, endpoint="/one", endpoints=endpoints)
        assert [one.upstream for one in report.upstreams] == ["alpha"]
        assert {one.endpoint for one in report.names} == {"/one"}
        assert said(report) == []


async def test_what_rules_keep_from_everybody_is_told() -> None:
    """With the rule; what somebody may be let use is nothing to mend."""
    resources = [{"uri": "note://x", "name": "x"}]
    async with ScriptedUpstream(tools=[tool("a"), tool("b"), tool("c")], resources=resources) as alpha:
        rules = [
            {"tools": ["a"], "callers": ["corp:*"], "deny": True},
            {"tools": ["b"], "deny": True},
            {"tools": ["*"], "scopes": ["read"]},
        ]
        notes = noted(await doctor({"alpha": alpha}, access={"rules": rules}))
        assert "/mcp keeps b from everybody, by access.rules[1]" in notes
        assert "/mcp keeps note://x from everybody, by access.default" in notes
        assert not any("keeps a" in note or "keeps c" in note for note in notes)


async def test_issuers_are_asked_what_a_verification_would() -> None:
    """Whether tokens of callers can be verified, and what to correct otherwise."""
    async with ScriptedUpstream() as alpha, AuthorizationServer() as corp, AuthorizationServer() as other:
        other.client("gw", "SECRET")
        asked = {"introspection_url": other.url("introspect"), "client_id": "gw", "client_secret": "SECRET"}
        tokens = {"corp": {"issuer": corp.issuer}, "other": {"issuer": other.issuer, **asked}}
        public = {"public_url": "https://gateway.example"}
        report = await doctor({"alpha": alpha}, authentication={"tokens": tokens}, **public)
        good = {"corp": "has 1 key(s), for RS256", "other": "answers questions about tokens"}
        assert (report.issuers, said(report)) == (good, [])
        assert dict(tables(report))["issuers of tokens"] == list(good.items())
        corp.on("metadata", failing(503))
        other.clients.clear()
        report = await doctor({"alpha": alpha}, authentication={"tokens": tokens}, **public)
        assert [one.partition(": http")[0] for one in said(report)] == [
            "issuer corp: its keys cannot be fetched",
            "issuer other: it cannot be asked about tokens",
        ]
        assert "authentication.tokens.corp" in report.problems[0].next


REDIS_RIGHTS = (
    "~mcpgw:1:* &mcpgw:1:bus:* -@all +eval +evalsha +time +type +exists +del +unlink +pexpire +pttl +hset "
    "+hget +hmget +hlen +hdel +hvals +zadd +zrem +zrangebyscore +zremrangebyscore +publish +subscribe +info"
)


async def doctor_of_redis(url: str) -> Report:
    """Return what is said of a Redis; a dead one costs the upstream nothing."""
    secrets = {"keys": ["0123456789abcdef-key"]}
    async with ScriptedUpstream() as alpha:
        report = await doctor({"alpha": alpha}, cache={"redis": url}, secrets=secrets)
    assert report.upstreams[0].state == "up"
    assert {one.upstream for one in report.problems} <= {None}
    return report


async def test_a_redis_that_does_all_works_and_nothing_is_left_there() -> None:
    """Also for a user with no more rights than the documentation lists; its being away is to be mended."""
    async with redis_server() as server:
        await server.ask("ACL", "SETUSER", "gw", "on", ">SECRET-pw", "resetkeys", *REDIS_RIGHTS.split())
        report = await doctor_of_redis(server.url)
        assert (report.redis, report.found) == ("works", 0)
        report = await doctor_of_redis(server.url.replace("unix://", "unix://gw:SECRET-pw@"))
        assert (report.redis, report.found) == ("works", 0)
        assert await server.keys() == []
        await server.kill()
        report = await doctor_of_redis(server.url)
        assert (report.redis or "").startswith("redis does not answer: ConnectionError")
        assert report.found == 1
        assert report.problems[0].next.startswith("start it, or correct cache.redis")


@pytest.mark.parametrize(
    ("change", "refused", "missing"),
    [
        ("resetchannels", "hear what replicas tell each other", "the right &mcpgw:1:bus:*"),
        (
            "resetchannels &mcpgw:1:bus:other",
            "hear what replicas tell each other",
            "the right &mcpgw:1:bus:*",
        ),
        ("-subscribe", "hear what replicas tell each other", "the right +subscribe"),
        ("-publish", "tell other replicas of changes", "the right +publish"),
        ("-evalsha", "run scripts", "the right +evalsha"),
        ("-eval", "run scripts", "the right +eval"),
        ("-hset", "tell other replicas of changes, count changes, let", "the right +hset"),
        ("-hmget", "keep results", "the right +hmget"),
        ("-pttl", "keep results, let one replica fetch for all", "the right +pttl"),
        ("-zrem", "tell other replicas of changes", "the right +zrem"),
        ("-hdel", "let one replica listen for all", "the right +hdel"),
        ("-hvals", "note what older clients need", "the right +hvals"),
        ("-unlink", "keep results, let one replica fetch for all, forget results", "the right +unlink"),
        ("resetkeys ~other:*", "run scripts", "the right ~mcpgw:1:*"),
        ("resetkeys ~mcpgw:1:{* ~mcpgw:1:bus:*", "count requests for all replicas", "the right ~mcpgw:1:*"),
        ("resetkeys ~mcpgw:1:* >other <SECRET-pw", "in", "correct the user and the password"),
    ],
)
async def test_what_a_user_of_redis_may_not_is_said_with_the_right_it_lacks(
    change: str, refused: str, missing: str
) -> None:
    """Redis answers such a user, and nothing would ever be cached."""
    async with redis_server() as server:
        for rights in (f"on >SECRET-pw resetkeys resetchannels {REDIS_RIGHTS}", change):
            await server.ask("ACL", "SETUSER", "gw", *rights.split())
        report = await doctor_of_redis(server.url.replace("unix://", "unix://gw:SECRET-pw@"))
        assert f"redis does not let the gateway {refused}" in (report.redis or "")
        assert [one.what for one in report.problems] == (report.redis or "").split("; ")
        assert all(missing in one.next for one in report.problems)


@pytest.mark.parametrize(
    ("command", "said", "missing"),
    [
        ("REPLICAOF 127.0.0.1 1", "ReadOnlyError", "it only copies another"),
        ("CONFIG SET maxmemory 1mb", "OutOfMemoryError", "raise its maxmemory"),
    ],
)
async def test_a_redis_that_takes_no_writes_is_no_redis_that_works(
    command: str, said: str, missing: str
) -> None:
    """It answers every question, and would keep nothing."""
    async with redis_server() as server:
        await server.ask(*command.split())
        report = await doctor_of_redis(server.url)
        assert "keep results" in (report.redis or "") or "count changes" in (report.redis or "")
        assert any(said in one.what and missing in one.next for one in report.problems)


async def test_a_redis_that_hangs_costs_a_deadline() -> None:
    """One, not one for each thing that would be tried."""
    async with redis_server() as server:
        server.freeze()
        report = await doctor_of_redis(server.url)
        assert report.redis == "redis does not answer: no answer in 2s"
        server.thaw()


# The audit


async def test_what_is_public_and_each_callers_own_is_found() -> None:
    """A list, a discover and a read; what is private, or one and the same, is not."""
    async with ScriptedUpstream(tools=[tool("a")], resources=RESOURCES) as alpha:
        alpha.on(
            "tools/list",
            by_caller(
                ann=result({"tools": [tool("a"), tool("admin")], "ttlMs": 1000, "cacheScope": "public"}),
                bob=result({"tools": [tool("a")], "ttlMs": 900, "cacheScope": "public"}),
            ),
        )
        alpha.on("resources/read", by_caller(ann=text("of SECRET ann"), bob=text("of bob")))
        report = await doctor({"alpha": forward(alpha)}, tokens=[ANN, BOB], audited=True)
        assert findings(report) == [
            ("tools/list", None, "differs"),
            *((("resources/read", f"a:{number}", "differs")) for number in range(3)),
        ]
        first = audit_of(report).findings[0]
        assert "tools/admin" in first.what
        assert first.next == "upstreams.alpha.cache: {share_public: false}"
        assert report.found == 4
        assert audit_of(report).callers == "ANN and BOB"
        alpha.on("resources/read", by_caller(ann=text("ann", "private"), bob=text("bob", "private")))
        report = await doctor({"alpha": forward(alpha)}, tokens=[ANN, BOB], audited=True)
        assert findings(report) == [("tools/list", None, "differs")]
        assert audit_of(report).private == 3


@pytest.mark.parametrize("refusal", [status(401), status(403), error(-32602, "no"), error(-32002)])
async def test_a_public_result_that_one_caller_is_refused_is_found(refusal: Behaviour) -> None:
    """From the cache everybody would be given it."""
    async with ScriptedUpstream(resources=RESOURCES[:1]) as alpha:
        alpha.on("resources/read", by_caller(ann=text("x"), bob=refusal))
        report = await doctor({"alpha": forward(alpha)}, tokens=[ANN, BOB], audited=True)
        assert findings(report) == [("resources/read", "a:0", "refused")]
        assert audit_of(report).findings[0].what.startswith("BOB is refused it")


async def test_what_differs_from_fetch_to_fetch_is_unstable_not_a_leak() -> None:
    """Also where callers cannot be told apart, which is said."""
    async with ScriptedUpstream(resources=RESOURCES[:1]) as alpha:
        count = iter(range(1000))

        async def moving(exchange: Exchange) -> None:
            await text(f"reading {next(count)}")(exchange)

        alpha.on("resources/read", moving)
        for server in (forward(alpha), alpha):
            report = await doctor({"alpha": server}, tokens=[ANN, BOB], audited=True)
            assert findings(report) == [("resources/read", "a:0", "unstable")]
            assert audit_of(report).findings[0].next.startswith("no leak by itself")
        assert "all callers are one and the same to it" in noted(report)
        assert audit_of(report).callers == "two fetches alike"
        static = [one for one in alpha.requests if not one.header("authorization")]
        assert static


async def test_what_the_settings_keep_private_already_is_a_note_and_what_they_share_is_audited() -> None:
    """Not the upstream's word counts, but what the cache does."""
    async with ScriptedUpstream(resources=RESOURCES[:1]) as alpha:
        alpha.on("resources/read", by_caller(ann=text("ann"), bob=text("bob")))
        servers = {"alpha": forward(alpha, share_public=False)}
        report = await doctor(servers, tokens=[ANN, BOB], audited=True)
        assert (findings(report), report.found) == ([], 0)
        assert "resources/read a:0 is called public and is not" in noted(report)
        alpha.on("resources/read", by_caller(ann=text("ann", "private"), bob=text("bob", "private")))
        report = await doctor({"alpha": forward(alpha, scope="public")}, tokens=[ANN, BOB], audited=True)
        assert findings(report) == [("resources/read", "a:0", "differs")]
        assert audit_of(report).findings[0].next.startswith("take `scope: public` out of")


async def test_with_one_token_the_other_caller_has_none() -> None:
    """Who is served from the cache, too; with two it is a note; with none nothing can be told apart."""
    async with ScriptedUpstream(resources=RESOURCES[:1]) as alpha:
        alpha.on("*", by_caller(other=status(401), ann=default, bob=default))
        servers = {"alpha": forward(alpha)}
        report = await doctor(servers, tokens=[ANN], audited=True)
        assert ("resources/read", "a:0", "refused") in findings(report)
        assert "a caller without a token is refused it (HTTP 401)" in audit_of(report).findings[0].what
        report = await doctor(servers, tokens=[ANN, BOB], audited=True)
        assert findings(report) == []
        assert "it refuses callers without a token (HTTP 401)" in noted(report)
        report = await doctor(servers, audited=True)
        assert "give two callers' with --token-env A --token-env B" in noted(report)


async def test_reads_are_bounded_and_what_was_left_is_said() -> None:
    """No more than --max-reads, and none at 0."""
    async with ScriptedUpstream(resources=RESOURCES) as alpha:
        for most in (2, 0):
            alpha.requests.clear()
            report = await doctor({"alpha": forward(alpha)}, tokens=[ANN, BOB], audited=True, max_reads=most)
            asked = alpha.seen("resources/read")
            assert len(asked) == 2 * most + 1  # one to see the hints
            assert audit_of(report).unread == 3 - most
            assert f"{3 - most} of 3 resources were not read: --max-reads {most}" in noted(report)


async def test_what_could_not_be_compared_is_to_be_mended() -> None:
    """An audit that saw nothing must not say that all is well; one failure is asked about again."""
    async with ScriptedUpstream(resources=RESOURCES[:1]) as alpha:
        for answers in ({"ann": text("x"), "bob": status(500)}, {"other": status(500)}):
            alpha.on("resources/read", by_caller(**{"ann": status(500), "bob": status(500)} | answers))
            report = await doctor({"alpha": forward(alpha)}, tokens=[ANN, BOB], audited=True)
            assert "resources/read a:0 could not be compared" in said(report)[0]
        alpha.on("resources/read", text("x"))
        alpha.once("resources/read", default, status(501), status(501))
        report = await doctor({"alpha": forward(alpha)}, tokens=[ANN, BOB], audited=True)
        assert (report.found, audit_of(report).compared) == (0, 6)


async def test_what_an_upstream_does_not_have_is_said() -> None:
    """No list is asked for that it does not declare."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.capabilities = {"tools": {}, "extensions": {"com.example/x": {}}}
        report = await doctor({"alpha": alpha})
        assert report.upstreams[0].items == {
            "tools": 1,
            "prompts": None,
            "resources": None,
            "templates": None,
        }
        assert "it declares no prompts and no resources" in noted(report)
        assert "com.example/x, which is not among `extensions`" in noted(report)
        assert not alpha.seen("resources/list")


# As a command


async def test_the_command_prints_a_table_or_json_and_no_token(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    """Exit code 1 when something is to be mended; progress and the last word go to stderr."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ANN", "TOK-ANN-SECRET")
    monkeypatch.setenv("BOB", "TOK-BOB-SECRET")
    async with ScriptedUpstream(tools=[tool("a")], resources=RESOURCES[:1]) as alpha:
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"upstreams: {{alpha: {{url: '{alpha.url}', auth: forward, cache: {{share_public: true}}}}}}"
        )
        asked = ["doctor", "--config", str(file), "--audit", "--token-env", "ANN", "--token-env", "BOB"]
        assert await asyncio.to_thread(main, asked) == 0
        out, err = capsys.readouterr()
        assert out.splitlines()[0] == "upstreams"
        assert "alpha  ok       up     modern  2026-07-28  forward: accepted" in out
        assert "1 upstream: 1 ok; " in out.splitlines()[-1]
        assert "alpha: what is cached" in out
        assert "0 found" in out
        assert "... alpha: 1 of 1 resources compared" in err
        alpha.on("resources/read", by_caller(ann=text("ann"), bob=text("bob")))
        assert await asyncio.to_thread(main, asked) == 1
        out, err = capsys.readouterr()
        assert "next: upstreams.alpha.cache: {share_public: false}" in out
        assert err.splitlines()[-2:] == [
            "error: 1 thing to be mended", "next: do what the lines beginning with next say"
        ]  # fmt: skip
        assert await asyncio.to_thread(main, [*asked, "--json"]) == 1
        out, err = capsys.readouterr()
        report = json.loads(out)
        assert (report["ok"], report["audit"][0]["findings"][0]["kind"]) == (False, "differs")
        assert report["upstreams"][0]["items"]["tools"] == 1
        assert "SECRET" not in out + err + caplog.text


@pytest.mark.parametrize(
    ("arguments", "next"),
    [
        (["--endpoint", "/nope"], "use --endpoint /mcp"),
        (["--token-env", "NOT_SET"], "export NOT_SET=TOKEN"),
        (["--audit", "--token-env", "SAME", "--token-env", "SAME"], "those of two callers"),
        (["--token-env", "A", "--token-env", "B"], "two go with --audit"),
        (["--audit", "--token-env", "A", "--token-env", "B", "--token-env", "C"], "two callers are compared"),
    ],
)
def test_a_wrong_question_is_said_and_asks_nobody(
    arguments: list[str],
    next: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2."""
    monkeypatch.setenv("SAME", "TOK-ANN-SECRET")
    file = tmp_path / "gateway.yaml"
    file.write_text("upstreams: {a: 'http://127.0.0.1:9/mcp'}")
    assert main(["doctor", "--config", str(file), *arguments]) == 2
    assert next in capsys.readouterr().err
