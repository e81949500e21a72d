"""Every kind of fault that the doctor knows, before it: it is told by its kind, with what to do next."""

import asyncio
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

from gateway.doctor.examine import examine
from gateway.doctor.findings import Report, document
from gateway.doctor.kinds import KINDS
from gateway.doctor.text import summary, tables
from tests.support.authorization_server import AuthorizationServer, failing
from tests.support.certificates import Authority, Pair
from tests.support.legacy_upstream import LegacyServer
from tests.support.redis import redis_server
from tests.support.running import settings
from tests.support.scripted import (
    CUT,
    Behaviour,
    ScriptedUpstream,
    cut,
    default,
    error,
    hang,
    listen,
    raw,
    redirect,
    result,
    sse,
    status,
    tool,
)

HTML = b"<html><body>Sign in</body></html>"
NOWHERE = "http://127.0.0.1:9/mcp"
RESOURCES = [{"uri": "a:0", "name": "0"}]
BROKEN = "import sys; print('DATABASE_URL is not set', file=sys.stderr); sys.exit(3)"
MUTE = "import sys; print('Listening...', flush=True); sys.stdin.read()"

# What a server answers to all it is asked -> the kind that is.
ANSWERS: Mapping[str, tuple[Behaviour, str]] = {
    "page": (status(200, HTML, "text/html"), "web-page"),
    "no-page": (status(404, HTML, "text/html"), "no-such-path"),
    "teapot": (status(418, HTML, "text/html"), "web-page"),
    "gone": (status(404), "no-such-path"),
    "getter": (status(405), "no-such-path"),
    "bad-gateway": (status(502, HTML, "text/html"), "server-error"),
    "broken": (status(500), "server-error"),
    "busy": (status(429), "too-many"),
    "moved": (redirect("https://elsewhere.example/mcp?key=SECRET", code=308), "redirected"),
    "moved-oddly": (redirect("/login", code=302), "redirected"),
    "loop": (redirect("/mcp", code=307), "redirected"),
    "ssh": (raw(b"SSH-2.0-OpenSSH_9\r\n\r\n"), "not-http"),
    "cutter": (cut(), "cut"),
    "half": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", CUT), "cut"),
    "no-json": (status(200, b"hello", "text/plain"), "not-mcp"),
    "bad-json": (status(200, b'{"jsonrpc"', "application/json"), "not-mcp"),
    "bad-stream": (sse(b"data: x\n\n"), "not-mcp"),
    "other-rpc": (result({"x": 1}), "not-mcp"),
    "brotli": (status(200, b"x", "application/json", Content_Encoding="br"), "encoding"),
    "unknown": (status(401), "credential-missing"),
    "silent-teapot": (status(418), "status"),
}
# What a server answers to one question, while it is well otherwise.
PARTLY: Mapping[str, tuple[str, Behaviour, str]] = {
    "failing": ("tools/list", error(-32603), "list-failed"),
    "hanging": ("tools/list", hang(), "list-slow"),
    "forbidding": ("tools/list", status(403), "list-refused"),
    "no-list": ("tools/list", result({"tools": "none"}), "list-invalid"),
    "invalid": ("tools/list", result({"tools": [{"name": "no-schema"}]}), "invalid-item"),
    "unserved": ("prompts/list", error(-32601), "not-served"),
    "unread": ("resources/read", error(-32602), "unreadable"),
    "deaf": ("subscriptions/listen", error(-32601), "unfollowed"),
    "early": ("", status(204, Date="Mon, 01 Jan 2035 00:00:00 GMT"), "clock"),
    "late": ("", status(204, Date="Mon, 01 Jan 2018 00:00:00 GMT"), "clock"),
    "fat": ("tools/list", status(200, b" " * 200_000, "application/json"), "too-large"),
}
PROGRAMS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "missing": ({"command": "no-such-command-anywhere"}, "no-program"),
    "unusable": ({"command": "/"}, "no-program"),
    "unrunnable": ({"command": sys.executable, "args": ["-c", "import sys; sys.exit(127)"]}, "not-started"),
    "homeless": ({"command": sys.executable, "cwd": "/no/such/folder"}, "no-folder"),
    "ending": ({"command": sys.executable, "args": ["-c", BROKEN]}, "ended"),
    "mute": ({"command": sys.executable, "args": ["-c", MUTE], "timeout": 0.5}, "silent-program"),
}
ELSEWHERE = {
    "audit-failed": "tests/flows/test_doctor.py",
    "audit-skipped": "tests/flows/test_doctor.py",
    "kept-private": "tests/flows/test_doctor.py",
    "shared-anyway": "tests/flows/test_doctor.py",
    "callers-token": "tests/flows/test_doctor.py",
    "extension-left-out": "tests/flows/test_doctor.py",
    "hidden": "tests/flows/test_doctor.py",
    "unused-setting": "tests/flows/test_doctor.py",
    "kept-tool-missing": "tests/flows/test_doctor.py",
    "redis-away": "tests/flows/test_doctor.py",
    "redis-refuses": "tests/flows/test_doctor.py",
    "slow": "tests/unit/doctor/test_findings.py",
    "no-token": "tests/flows/test_doctor_tokens.py",
    "tls": "tests/unit/doctor/test_diagnosis.py",
}
"""Kinds that others meet."""


async def doctor(upstreams: Mapping[str, Any], **members: Any) -> Report:
    """Return a report of which every finding says what to do, and none says a secret."""
    report = await examine(settings(upstreams, **members))
    for one in report.findings:
        assert one.level == KINDS[one.kind].level
        assert (one.next is None) == (one.level == "note")
        assert "{" not in (one.next or "").replace("{min_ttl: {tools/list: 60s}}", "")
    assert "SECRET" not in repr(document(report)) + repr(list(tables(report)))
    return report


def kinds(report: Report, upstream: str | None) -> list[str]:
    return [one.kind for one in report.findings if one.upstream == upstream]


@asynccontextmanager
async def served(
    scripts: Mapping[str, Mapping[str, Behaviour]],
) -> AsyncIterator[dict[str, ScriptedUpstream]]:
    """Run a server for each script: what it answers to which method."""
    async with AsyncExitStack() as stack:
        servers = {}
        for name, script in scripts.items():
            server = ScriptedUpstream(tools=[tool("a")], resources=RESOURCES)
            servers[name] = await stack.enter_async_context(server)
            for method, behaviour in script.items():
                server.on(method, behaviour)
        yield servers


async def test_whatever_a_server_answers_is_told_by_its_kind() -> None:
    """All side by side, each with its own verdict, and one that is whole beside them."""
    scripts = {name: {"*": behaviour} for name, (behaviour, _) in ANSWERS.items()}
    async with served({**scripts, "whole": {}}) as servers:
        report = await doctor(servers)
    assert {name: kinds(report, name) for name in ANSWERS} == {
        name: [kind] for name, (_, kind) in ANSWERS.items()
    }
    verdicts = {one.upstream: one.verdict for one in report.upstreams}
    assert verdicts == dict.fromkeys(ANSWERS, "problem") | {"whole": "ok"}
    moved = next(one for one in report.findings if one.upstream == "moved")
    assert "to https://elsewhere.example/mcp, another origin" in moved.what
    assert summary(report).startswith(f"{len(ANSWERS) + 1} upstreams: 1 ok, {len(ANSWERS)} with problems; ")


async def test_what_one_question_meets_is_told_and_the_rest_is_examined() -> None:
    """A list that cannot be had costs no other, nor does a stream that is refused."""
    scripts = {name: {method: behaviour} for name, (method, behaviour, _) in PARTLY.items()}
    async with served(scripts) as servers:
        waits = {"hanging": {"url": servers["hanging"].url, "list_timeout": 4.0}}
        report = await doctor(servers | waits, limits={"message": 100_000})
    # On a busy machine a list may be slow, too.
    assert {name: set(kinds(report, name)) - {"slow"} for name in PARTLY} == {
        name: {kind} for name, (_, _, kind) in PARTLY.items()
    }
    assert {one.state for one in report.upstreams} == {"up"}
    clocks = {one.upstream: one.what for one in report.warnings if one.kind == "clock"}
    assert "s ahead of this machine's" in clocks["early"]
    assert "s behind this machine's" in clocks["late"]


async def test_the_way_to_a_server_is_told_from_its_answers() -> None:
    """Where it ends: at the name, the port, the proxy, or at a server that says nothing."""
    async with served({"mute": {"*": hang()}, "whole": {}}) as servers:
        report = await doctor(
            {
                "nowhere": "http://no-such-host.invalid/mcp",
                "closed": NOWHERE,
                "proxied": {"url": "http://mcp.example/mcp", "proxy": "http://127.0.0.1:9"},
                "mute": {"url": servers["mute"].url, "timeout": 0.5},
                "whole": servers["whole"],
            }
        )
    assert {one.upstream: kinds(report, one.upstream) for one in report.upstreams} == {
        "nowhere": ["unknown-host"],
        "closed": ["refused"],
        "proxied": ["proxy"],
        "mute": ["silent"],
        "whole": [],
    }
    ways = {one.upstream: one.way for one in report.upstreams}
    assert all(way is not None for way in ways.values())
    steps = {
        name: tuple(getattr(way, step) is not None for step in ("resolved", "connected", "answered"))
        for name, way in ways.items()
    }
    assert steps == {
        "nowhere": (False, False, False),
        "closed": (True, False, False),
        "proxied": (True, False, False),
        "mute": (True, True, False),
        "whole": (True, True, True),
    }


async def test_an_address_that_nobody_answers_at_is_out_of_reach() -> None:
    """A connection that is never taken is told from one that is refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:
        first.setblocking(False)
        await asyncio.get_running_loop().sock_connect(first, full.getsockname())  # no place for a second
        url = f"http://127.0.0.1:{full.getsockname()[1]}/mcp"
        report = await doctor({"far": {"url": url, "timeout": 0.5}})
    assert kinds(report, "far") == ["unreachable"]


def speaking(pair: Pair, *, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


@contextmanager
def demanding(context: ssl.SSLContext) -> Iterator[int]:
    """Run a server that says what it misses, as most do and those of asyncio do not; give its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def test_each_check_of_tls_is_told_with_what_mends_it(tmp_path: Path) -> None:
    """Expired, untrusted, of another name, none at all, a client's wanted; or about to end (B49)."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    trust = {"ca_file": str(authority.file)}
    certificates = {
        "good": (authority.issue("127.0.0.1", days=90), trust),
        "ending": (authority.issue("127.0.0.1", days=1, file="ending"), trust),
        "expired": (authority.issue("127.0.0.1", days=-1, file="expired"), trust),
        "untrusted": (other.issue("127.0.0.1", days=90), trust),
        "misnamed": (authority.issue("elsewhere.example", days=90), trust),
    }
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Any] = {}
        for name, (pair, tls) in certificates.items():
            server = ScriptedUpstream(tools=[tool("a")], ssl_context=speaking(pair))
            upstreams[name] = {"url": (await stack.enter_async_context(server)).url, "tls": tls}
        strict = speaking(certificates["good"][0], client_ca=other.file)
        port = stack.enter_context(demanding(strict))
        upstreams["strict"] = {"url": f"https://127.0.0.1:{port}/mcp", "tls": trust}
        plain = await stack.enter_async_context(ScriptedUpstream())
        upstreams["plain"] = {"url": plain.url.replace("http:", "https:"), "tls": trust}
        upstreams["secret"] = {"url": upstreams["good"]["url"].replace("https:", "http:")}
        report = await doctor(upstreams)
    assert {one.upstream: kinds(report, one.upstream) for one in report.upstreams} == {
        "good": [],
        "ending": ["certificate-ends"],
        "expired": ["certificate-expired"],
        "untrusted": ["certificate-untrusted"],
        "misnamed": ["certificate-name"],
        "strict": ["client-certificate"],
        "plain": ["no-tls"],
        "secret": ["cut"],
    }
    assert report.upstreams[0].way is not None
    assert report.upstreams[0].way.secured is not None
    assert report.upstreams[1].verdict == "warning"


async def test_programs_are_told_by_how_they_fail_and_what_they_wrote() -> None:
    """Not there, not to be started, ended with a word on stderr, or mute but for what is no message (B28)."""
    report = await doctor({name: server for name, (server, _) in PROGRAMS.items()})
    assert {name: kinds(report, name) for name in PROGRAMS} == {
        name: [kind] for name, (_, kind) in PROGRAMS.items()
    }
    words = {one.upstream: " ".join(one.last_words) for one in report.upstreams}
    assert "stderr: DATABASE_URL is not set" in words["ending"]
    assert "Listening..." in words["mute"]
    ending = next(one for one in report.findings if one.upstream == "ending")
    assert "exit code 3" in ending.what
    assert "DATABASE_URL is not set" in ending.what


async def test_a_server_of_another_era_than_is_written_is_told() -> None:
    """Either way; and one that speaks nothing that the gateway knows."""
    async with served({"modern": {}, "future": {}}) as servers, LegacyServer(tools=[tool("a")]) as older:
        servers["future"].supported = ["2099-01-01"]
        report = await doctor(
            {
                "modern": {"url": servers["modern"].url, "era": "legacy"},
                "older": {"url": older.url, "era": "modern"},
                "future": servers["future"],
            }
        )
        older.faults.clear()  # it is asked what it cannot know, as was written
    assert {one.upstream: kinds(report, one.upstream)[0] for one in report.upstreams} == {
        "modern": "wrong-era",
        "older": "wrong-era",
        "future": "no-common-version",
    }


async def test_credentials_are_told_by_what_became_of_them() -> None:
    """Not known, or known and not allowed."""
    async with served({"stranger": {"*": status(401)}, "guest": {"*": status(403)}}) as servers:
        report = await doctor(
            {name: {"url": one.url, "auth": {"bearer": "SECRET-token-1"}} for name, one in servers.items()}
        )
    assert {one.upstream: kinds(report, one.upstream) for one in report.upstreams} == {
        "stranger": ["credential"],
        "guest": ["forbidden"],
    }


async def test_what_the_cache_and_clients_miss_is_a_warning() -> None:
    """No hints, names that clients cannot take, changes that are declared and not told."""
    async with (
        ScriptedUpstream(tools=[tool("a" * 80)], ttl_ms=0) as alpha,
        ScriptedUpstream(tools=[tool("a")]) as deaf,
        LegacyServer(tools=[tool("a")]) as older,
    ):
        deaf.on("subscriptions/listen", listen({}))
        report = await doctor(
            {
                "alpha": alpha,
                "deaf": deaf,
                "older": older,
                "kept": {"url": older.url, "cache": {"min_ttl": {"tools/list": 60.0}}},
                "never": {"url": alpha.url, "cache": {"max_ttl": 0.0}, "tools": {"allow": ["b"]}},
            }
        )
    found = {one.upstream: [two.kind for two in report.of(one.upstream)] for one in report.upstreams}
    assert found["alpha"] == ["uncacheable", "changed-name"]
    assert found["deaf"] == ["unfollowed"]
    assert "uncacheable" in found["older"]
    assert "uncacheable" not in found["kept"] + found["never"]
    assert report.verdict == "warning"
    assert report.found == 0
    assert {one.upstream: one.followed for one in report.upstreams}["alpha"] == (
        "tools",
        "prompts",
        "resources",
    )


async def test_odd_items_and_names_are_told() -> None:
    """Twice the same, cut of what nobody reads, a part that is missing, a name and a URI of two."""
    web = [{"uri": "https://x/", "name": "x"}]
    trimmed = tool("t", icons=[{"src": 5}])
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("a"), trimmed], resources=web) as alpha,
        ScriptedUpstream(tools=[tool("alpha__a")], resources=web) as beta,
        ScriptedUpstream() as bare,
    ):
        bare.capabilities = {}
        alpha.on(
            "prompts/list",
            result({"prompts": [], "_meta": {"mcp-gateway/missingUpstreams": ["inner"]}}),
        )
        report = await doctor({"alpha": alpha, "beta": {"url": beta.url, "prefix": ""}, "bare": bare})
    assert set(kinds(report, "beta")) == {"collision", "same-uri"}
    assert set(kinds(report, "alpha")) == {"repeated-item", "trimmed-item", "missing-part"}
    assert kinds(report, "bare") == ["no-capability"]


async def test_an_issuer_whose_keys_cannot_be_had_is_told_of_the_gateway() -> None:
    """It belongs to no upstream."""
    async with ScriptedUpstream() as alpha, AuthorizationServer() as corp:
        corp.on("metadata", failing(503))
        tokens = {"corp": {"issuer": corp.issuer}}
        report = await doctor(
            {"alpha": alpha}, authentication={"tokens": tokens}, public_url="https://gateway.example"
        )
    assert kinds(report, None) == ["issuer"]
    assert report.upstreams[0].verdict == "ok"
    assert report.verdict == "problem"


async def test_a_clock_of_an_issuer_that_tokens_do_not_bear_is_told() -> None:
    """By its `leeway`, which may be wider than another's."""
    async with ScriptedUpstream() as alpha, ScriptedUpstream() as corp:
        corp.on("", status(204, Date=formatdate(time.time() - 3600, usegmt=True)))
        tokens = {"corp": {"issuer": corp.origin}, "wide": {"issuer": f"{corp.origin}/x", "leeway": 7200.0}}
        report = await doctor(
            {"alpha": alpha}, authentication={"tokens": tokens}, public_url="https://gateway.example"
        )
    clocks = [one.what for one in report.findings if one.kind == "clock"]
    assert len(clocks) == 1
    assert clocks[0].startswith("issuer corp: its clock is ")
    assert clocks[0].endswith("s behind this machine's")
    assert report.upstreams[0].verdict == "ok"


async def test_a_report_as_json_has_a_form_that_is_kept() -> None:
    """Scripts go by it: docs/doctor.md describes every key."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        written = document(await doctor({"alpha": alpha, "gone": NOWHERE}))
    assert set(written) == {
        "format", "ok", "verdict", "upstream_verdicts", "levels", "endpoints", "redis", "issuers",
        "upstreams", "names", "audit", "findings", "seconds",
    }  # fmt: skip
    assert (written["format"], written["ok"], written["verdict"]) == (1, False, "problem")
    assert written["upstream_verdicts"] == {"ok": 1, "warning": 0, "problem": 1}
    assert written["levels"] == {"problem": 1, "warning": 0, "note": 0}
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")

    def names(part: object) -> set[str]:
        if isinstance(part, dict):
            return {key for key in part if "/" not in key}.union(*map(names, part.values()))
        if isinstance(part, list | tuple):
            return set().union(*map(names, part))
        return set()

    assert {name for name in names(written) if f"`{name}`" not in page} == set()


async def test_a_redis_that_takes_longer_than_it_is_waited_for_is_a_warning() -> None:
    """It works, and requests go on without it."""
    async with redis_server() as server, ScriptedUpstream(tools=[tool("a")]) as alpha:
        report = await doctor(
            {"alpha": alpha},
            cache={"redis": server.url, "redis_timeout": 1e-6},
            secrets={"keys": ["0123456789abcdef-key"]},
        )
    assert (kinds(report, None), report.redis) == (["redis-slow"], "works")


async def test_a_server_that_does_not_say_again_what_it_can_do_is_told() -> None:
    """It answered the probe; then the caller's own question fails."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.once("server/discover", default)
        alpha.on("server/discover", error(-32603))
        report = await doctor({"alpha": alpha})
    assert kinds(report, "alpha") == ["discover"]
    assert report.upstreams[0].items["tools"] == 1


def test_every_kind_is_met_by_a_test() -> None:
    """Here, or in the file that is named."""
    here = Path(__file__).read_text("utf-8")
    quoted = set(re.findall(r'"([a-z-]+)"', here.partition("def test_every_kind_is_met_by_a_test")[0]))
    assert set(KINDS) - quoted == {"bug", "too-long"}  # which no server brings about
    assert set(ELSEWHERE) <= set(KINDS)
