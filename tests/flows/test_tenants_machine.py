"""Two tenants and a caller without a name, two replicas, one Redis, servers of every kind: any interleaving.

Whatever happens, nobody is sent a byte of another's: not in a body, a stream, a header or the text of an
error, not in hex or base64. What belongs to a tenant is known by words of its own (tests/support/marks).
Redis, which a monitor listens to, the log, the metrics and the status hold no token and nothing private in
clear. And each is given its own right answer, whatever the others do.

In half of the runs tokens are what they are called, and whoever has another one is another caller. In the
other half they are JWTs of a real issuer, rules say who may use what, and a new token of the same person goes
on with what its old one began.

`TENANTS=500 pytest --hypothesis-profile=search tests/flows/test_tenants_machine.py -s` looks deeper.
"""

import asyncio
import io
import json
import logging
import os
import re
import sys
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway import config
from gateway.protocol.methods import METHODS
from gateway.support import logs
from tests.support.authorization_server import AuthorizationServer
from tests.support.legacy_client import message as legacy_message
from tests.support.marks import Search, Tenant
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Clock, Running, running
from tests.support.scripted import META
from tests.support.tenants import Exchange, Leak, Link, Monitor, Party, Wires, examine, modern
from tests.support.tenants_upstreams import KEYS, TASKS, Premises, only_of

EXAMPLES = int(os.environ.get("TENANTS", "5"))
STEPS = 40
PATIENCE = 60.0
"""The longest one step may take; only a request that is starved takes so long."""

PROGRAM = str(Path(__file__).parents[1] / "support" / "programs" / "server.py")
AUDIENCE = "https://gw.example/mcp"
EXCHANGER = "gw0secret4b8e6d2f1a"
GATEWAY = "gw0token9f2c7a1e5b"
"""The credential that is the gateway's own at the server `shared`."""

REPLICAS = st.sampled_from((0, 1))
WHO = st.sampled_from(("ann", "bob"))
ANYBODY = st.sampled_from(("ann", "ann", "bob", "bob", "nobody"))
ERAS = st.sampled_from(("modern", "modern", "legacy"))
ASKING = st.sampled_from(("own", "swap", "shared", "old"))
KEPT = st.booleans()
MANY = st.integers(0, 10**6)
HINTS = (
    {"ttlMs": 60_000, "cacheScope": "private"},
    {"ttlMs": 60_000, "cacheScope": "public"},
    {"ttlMs": 20, "cacheScope": "private"},
    {"ttlMs": 0, "cacheScope": "private"},
    {"ttlMs": 60_000},
    {"ttlMs": 60_000, "cacheScope": "shared"},
    {},
)
ABLE = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}
ACCEPT = {"action": "accept", "content": {"name": "N"}}
LISTS = tuple(KEYS)
_NUMBER = re.compile(rb"number-(\d+)\.")


@dataclass
class Session:
    """A session of an older client."""

    party: Party
    token: str | None
    id: str
    asked: dict[str, str] = field(default_factory=dict)


@dataclass
class Held:
    """A call that waits at its server, or a stream that stays."""

    party: Party
    at: int
    exchange: Exchange
    nonce: str = ""
    server: str = ""
    session: Session | None = None
    id: Any = 1
    uris: tuple[str, ...] = ()


@dataclass
class Asked:
    """A question that somebody was put."""

    party: Party
    token: str | None
    params: Mapping[str, Any]
    state: str
    keys: tuple[str, ...]
    nonce: str
    server: str


@dataclass
class Task:
    """A call that goes on in the background."""

    party: Party
    token: str | None
    id: str
    own: str


class Totals:
    """What was tried altogether."""

    examples = steps = exchanges = searched = 0


class TenantsMachine(RuleBasedStateMachine):
    """One run; server and loop are shared by all of them."""

    redis: ClassVar[RedisServer]
    loop: ClassVar[asyncio.AbstractEventLoop]
    seed: ClassVar[int] = 0

    @initialize(
        verified=st.booleans(),
        by_person=st.booleans(),
        private_in_redis=st.booleans(),
        forwarded=st.booleans(),
        program_era=st.sampled_from(["modern", "legacy"]),
        apart=st.sampled_from(["caller", "session"]),
        numbered=st.booleans(),
        page_size=st.sampled_from([4, 1000]),
    )
    def begin(
        self,
        verified: bool,
        by_person: bool,
        private_in_redis: bool,
        forwarded: bool,
        program_era: str,
        apart: str,
        numbered: bool,
        page_size: int,
    ) -> None:
        """Of lists that differ each time all is fresh, of equal ones all is kept, whole ones in one piece."""
        Totals.examples += 1
        TenantsMachine.seed += 1
        self.verified, self.by_person = verified, by_person
        self.private_in_redis, self.forwarded = private_in_redis, forwarded
        self.numbered, self.page_size = numbered, page_size
        self.program_era, self.apart = program_era, apart
        self.tenants = [Tenant("ann", self.seed), Tenant("bob", self.seed)]
        self.parties = {one.name: Party(one) for one in self.tenants} | {"nobody": Party(None)}
        for party in self.parties.values():
            party.foreign = Search([one for one in self.tenants if one is not party.tenant])
        self.secrets = Search(self.tenants, ["token", "data"])
        self.tokens = Search(self.tenants, ["token"])
        self.wires = Wires()
        self.wall = Clock(1_800_000_000.0)
        self.expired: set[str] = set()
        self.links: list[Link] = []
        self.nonces = 0
        self.sessions: list[Session] = []
        self.held: list[Held] = []
        self.listens: list[Held] = []
        self.asked: list[Asked] = []
        self.tasks: list[Task] = []
        self.cursors: list[tuple[Party, str, str]] = []
        self.notes: dict[tuple[str, str], set[str | None]] = {}
        self.owners: dict[int, str] = {}
        self.log = io.StringIO()
        self.stack = AsyncExitStack()
        self.replicas: list[tuple[Running, AsyncExitStack]] = []
        self.handlers = list(logging.getLogger().handlers), logging.getLogger().level
        logs.configure(config.Log(level="debug"), stream=self.log)
        self.do(self.open())

    async def open(self) -> None:
        await self.redis.ask("FLUSHALL")
        self.premises = Premises(list(self.parties.values()), GATEWAY)
        self.premises.old.forwarded = self.forwarded
        premises = self.premises
        for one in (premises.own, premises.swap, premises.shared, premises.old):
            await self.stack.enter_async_context(one)
        self.monitor = Monitor(f"{self.redis.folder}/redis.sock")
        await self.monitor.start()
        self.issuer = await self.stack.enter_async_context(AuthorizationServer(now=self.wall))
        self.issuer.client("gw", EXCHANGER)
        self.premises.restricted, self.premises.numbered = self.verified, self.numbered
        for name in ("ann", "bob"):
            self.credential(self.parties[name])
        for at in (0, 1):
            place = f"{self.redis.folder}/{self.seed}-{at}.sock"
            self.links.append(Link(f"{self.redis.folder}/redis.sock", place))
            await self.links[at].start()
        self.replicas = list(await asyncio.gather(self.replica(0), self.replica(1)))

    def credential(self, party: Party) -> None:
        """Give somebody a token, and let `own` know it."""
        assert party.tenant is not None
        word = f"{party.tenant.word('token')}.{len(party.tokens)}"
        if self.verified:
            scope = f"docs:{party.name}"
            word = self.issuer.mint(self.subject(party.tenant), aud=AUDIENCE, scope=scope, jti=word)
        party.tokens.append(word)
        self.premises.credentials[party.tokens[-1]] = party.name

    def subject(self, tenant: Tenant) -> str:
        return f"{tenant.name}-{tenant.word('subject')}"

    def same(self, party: Party, token: str | None) -> bool:
        """Whether what somebody was handed with this token is still his."""
        return self.verified or token == party.token

    def policy(self) -> dict[str, Any]:
        """Return how callers are known, and what each of them may use."""
        if not self.verified:
            return {}
        ann, bob = self.tenants
        tool, uri = only_of(ann)[0], only_of(bob)[1]
        return {
            "authentication": {
                "tokens": {"corp": {"issuer": self.issuer.issuer, "audiences": [AUDIENCE]}},
                "anonymous": True,
            },
            "access": {
                "rules": [
                    {"upstreams": ["shared"], "tools": [tool], "callers": [f"corp:{self.subject(ann)}"]},
                    {"upstreams": ["shared"], "tools": [tool], "deny": True},
                    {
                        "upstreams": ["shared"],
                        "resources": [uri],
                        "scopes": ["docs:bob"],
                        "refusal": "hide",
                    },
                ],
                "default": "allow",
            },
        }

    def swapping(self) -> dict[str, Any]:
        """Return the server that is shown what the issuer gives in exchange for a caller's token."""
        if not self.verified:
            return {}
        client = {
            "issuer": self.issuer.issuer,
            "client_id": "gw",
            "client_secret": EXCHANGER,
            "anonymous": True,
        }
        return {"swap": {"url": self.premises.swap.url, "auth": {"token_exchange": client}}}

    def server(self, name: str) -> str:
        """Return a server of this name, or the one that stands in where there is none."""
        return name if self.verified or name != "swap" else "own"

    async def replica(self, at: int) -> tuple[Running, AsyncExitStack]:
        premises, stack = self.premises, AsyncExitStack()
        kept: dict[str, Any] = {"calls": {"kept": {"ttl": 60.0}}}
        by_person = {"partition": "subject"} if self.verified and self.by_person else {}
        floor = {"min_ttl": {**dict.fromkeys(LISTS, 60.0), "resources/read": 60.0}}
        program = {"command": sys.executable, "args": [PROGRAM, "--era", self.program_era]}
        gateway = running(
            {
                "own": {"url": premises.own.url, "auth": "forward", "cache": kept},
                "shared": {
                    "url": premises.shared.url,
                    "auth": {"bearer": GATEWAY},
                    "cache": {**kept, **by_person},
                },
                "old": {
                    "url": premises.old.url,
                    "auth": "forward" if self.forwarded else "none",
                    "isolation": self.apart,
                    "cache": floor,
                },
                **self.swapping(),
                "prog": {**program, "isolation": self.apart, "cache": {**floor, **by_person}},
                "pipe": {**program, "isolation": "shared", "cache": floor},
            },
            endpoints={"/mcp": {}, "/shared": {"upstreams": ["shared"]}},
            cache={
                "redis": self.links[at].url,
                "redis_timeout": 5.0,
                "redis_budget": 5.0,
                "private_in_redis": self.private_in_redis,
                "stale_if_error": 60.0,
            },
            limits={"page_size": self.page_size},
            secrets={"keys": ["0123456789abcdef-key"]},
            startup_wait=15.0,
            admin="127.0.0.1:0",
            wall_clock=self.wall,
            **self.policy(),
        )
        return await stack.enter_async_context(gateway), stack

    # Asking

    def do(self, work: Awaitable[Any]) -> Any:
        """Run something to its end, in bounded time."""
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def who(self, name: str) -> Party:
        return self.parties[name]

    def address(self, at: int, path: str = "/mcp") -> str:
        """Return where an endpoint of a replica is."""
        (found,) = [one for one in self.replicas[at][0].addresses.endpoints if one.endswith(path)]
        return found

    def nonce(self, party: Party) -> str:
        """Return a text of somebody's that was never used."""
        self.nonces += 1
        word = "free" if party.tenant is None else party.tenant.word("data")
        return f"{word}-{self.nonces}"

    async def send(
        self,
        party: Party,
        at: int,
        era: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = 1,
        meta: Mapping[str, Any] | None = None,
        session: Session | None = None,
        guessed: tuple[str, ...] = (),
        kept: bool = False,
        after: Exchange | None = None,
        path: str = "/mcp",
        **headers: str | None,
    ) -> Exchange:
        """Make a request and return what will come of it."""
        row = METHODS.get(method)
        if era == "modern":
            named = row.named_by if row is not None else None
            body, head = modern(method, params, named, id=id, capabilities=ABLE, meta=meta)
        else:
            session = session or await self.session(party, at)
            members = dict(params or {}) | ({"_meta": dict(meta)} if meta else {})
            body = legacy_message(method, members, id=id)
            head = {"mcp-session-id": session.id, "mcp-protocol-version": "2025-11-25"}
        return await self.wires.send(
            party,
            self.address(at, path),
            "POST",
            body,
            {**head, **headers},
            about=f"{era} {method} {json.dumps(params)[:200]}",
            guessed=guessed,
            kept=kept,
            after=after,
        )

    async def ask(
        self, party: Party, at: int, era: str, method: str, *params: Any, **options: Any
    ) -> Exchange:
        """Make a request and return it with its whole answer."""
        exchange = await self.send(party, at, era, method, *params, **options)
        await exchange.over()
        self.examine(exchange)
        assert exchange.status in (200, 202, 400, 403, 404), (exchange, bytes(exchange.raw))
        return exchange

    async def session(self, party: Party, at: int) -> Session:
        """Return somebody's session, a new one if there is none that holds."""
        for one in self.sessions:
            if one.party is party and self.same(party, one.token):
                return one
        return await self.greet(party, at)

    async def greet(self, party: Party, at: int) -> Session:
        """Begin a session."""
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {"form": {}}},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        exchange = await self.wires.send(
            party,
            self.address(at),
            "POST",
            legacy_message("initialize", params, id=1),
            {},
            about="initialize",
        )
        await exchange.over()
        self.examine(exchange)
        assert exchange.status == 200, (exchange, bytes(exchange.raw))
        if party.tenant is not None:
            assert party.tenant.word("data") in exchange.result["instructions"]
        session = Session(party, party.token, exchange.headers["mcp-session-id"])
        self.sessions.append(session)
        noted = await self.wires.send(
            party,
            self.address(at),
            "POST",
            legacy_message("notifications/initialized"),
            {"mcp-session-id": session.id, "mcp-protocol-version": "2025-11-25"},
            about="initialized",
        )
        await noted.over()
        assert noted.status == 202
        return session

    def examine(self, exchange: Exchange) -> None:
        """Fail when anything of another is in an answer."""
        since = max(0, exchange.searched[0] - 64)
        Totals.searched += examine(exchange)
        raw = exchange.raw[since:]
        if (
            (found := self.tokens.first(raw)) is not None
            or GATEWAY.encode() in raw
            or EXCHANGER.encode() in raw
        ):
            raise Leak(f"{exchange} holds a token: {found}")
        for number in _NUMBER.findall(raw):
            if int(number) in self.premises.private:
                owner = self.owners.setdefault(int(number), exchange.party.name)
                if owner != exchange.party.name:
                    raise Leak(f"{exchange} holds what {owner} was given, number {number!r}")

    # What tenants do

    @rule(name=ANYBODY, at=REPLICAS, era=ERAS, method=st.sampled_from(LISTS), kept=KEPT)
    def lists(self, name: str, at: int, era: str, method: str, kept: bool) -> None:
        self.do(self.walk(self.who(name), at, era, method, kept=kept))

    async def walk(
        self, party: Party, at: int, era: str, method: str, *, kept: bool = False, id: Any = 1
    ) -> None:
        """Read all pages of a list, and look for what is this caller's."""
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            params = {} if cursor is None else {"cursor": cursor}
            exchange = await self.ask(party, at, era, method, params, kept=kept, id=id)
            items += exchange.result[KEYS[method]]
            assert "mcp-gateway/missingUpstreams" not in exchange.result.get("_meta", {}), bytes(exchange.raw)
            cursor = exchange.result.get("nextCursor")
            if cursor is None:
                break
            self.cursors.append((party, method, cursor))
        expected = [
            self.exposed(method, item, server)
            for server in (("own", "swap") if self.verified else ("own",))
            for item in self.premises.items(party, method, server)
        ]
        found = [one.get("uri") or one.get("uriTemplate") or one["name"] for one in items]
        assert len(found) == len(set(found)), found
        mine = [one for one in found if one in expected]
        assert sorted(mine) == sorted(expected), (exchange, mine, expected)
        if self.verified and party.tenant is not None:
            tool, uri = only_of(party.tenant)
            only = {"tools/list ann": f"shared__{tool}", "resources/list bob": f"shared+{uri}"}
            assert only.get(f"{method} {party}", found[0]) in found, (exchange, found)

    @rule(
        name=ANYBODY,
        at=REPLICAS,
        method=st.sampled_from(["tools/list", "tools/list", "resources/list", "server/discover"]),
    )
    def lists_of_shared(self, name: str, at: int, method: str) -> None:
        """Where a whole list may be public, each is shown of it what the rules grant."""
        self.do(self.ask(self.who(name), at, "modern", method, path="/shared"))

    def exposed(self, method: str, item: Mapping[str, Any], server: str) -> str:
        """Return the name or URI that clients see."""
        if method in ("tools/list", "prompts/list"):
            return f"{server}__{item['name']}"
        return self.uri(item.get("uri") or item["uriTemplate"], server)

    def uri(self, uri: str, server: str = "own") -> str:
        return uri if uri.startswith("https:") else f"{server}+{uri}"

    @rule(name=WHO, by=ANYBODY, at=REPLICAS, which=MANY)
    def use_cursor_of_another(self, name: str, by: str, at: int, which: int) -> None:
        """It shows nothing of whom it was made for."""
        if not any(one[0].name == name for one in self.cursors):
            self.do(self.walk(self.who(name), at, "modern", "tools/list", kept=False))
        cursors = [one for one in self.cursors if one[0].name == name]
        if cursors:  # there is none where a list fits into one page
            _, method, cursor = cursors[which % len(cursors)]
            self.do(self.ask(self.who(by), at, "modern", method, {"cursor": cursor}))

    @rule(name=ANYBODY, at=REPLICAS, kept=KEPT)
    def discover(self, name: str, at: int, kept: bool) -> None:
        party = self.who(name)
        exchange = self.do(self.ask(party, at, "modern", "server/discover", kept=kept))
        if party.tenant is not None:
            assert party.tenant.word("data") in exchange.result["instructions"], bytes(exchange.raw)

    @rule(
        name=ANYBODY,
        at=REPLICAS,
        era=ERAS,
        which=st.sampled_from(["common", "1", "page", "free", "swap", "shared", "only", "old"]),
        kept=KEPT,
    )
    def read(self, name: str, at: int, era: str, which: str, kept: bool) -> None:
        party = self.who(name)
        word = "" if party.tenant is None else party.tenant.word("name")
        uri = {
            "common": "own+note://common",
            "1": f"own+note://{word}/1",
            "page": f"https://{word}.example/page",
            "free": f"own+note://{word}/{self.nonces % 3}7",
            "swap": f"{self.server('swap')}+note://common",
            "shared": "shared+doc://one",
            "only": f"shared+doc://{word}/only",
            "old": "old+old://doc",
        }[which]
        if party.tenant is None and which in ("1", "page", "free"):
            return
        if which == "only" and not (self.verified and name == "bob"):
            return
        self.do(self.reading(party, at, era, uri, kept=kept))

    async def reading(
        self, party: Party, at: int, era: str, uri: str, *, kept: bool = False, id: Any = 1
    ) -> None:
        exchange = await self.ask(party, at, era, "resources/read", {"uri": uri}, kept=kept, id=id)
        server, _, rest = uri.rpartition("+")
        assert exchange.text["uri"] == rest
        if server in ("own", "swap", ""):
            assert exchange.text["who"] == party.name

    @rule(
        name=ANYBODY,
        at=REPLICAS,
        era=ERAS,
        server=st.sampled_from(["own", "swap", "shared"]),
        own=st.booleans(),
    )
    def prompt(self, name: str, at: int, era: str, server: str, own: bool) -> None:
        party, nonce, server = self.who(name), self.nonce(self.who(name)), self.server(server)
        own = own and server != "shared" and party.tenant is not None
        prompt = f"{party.tenant.word('name')}_prompt" if own and party.tenant is not None else "hello"
        params = {"name": f"{server}__{prompt}", "arguments": {"nonce": nonce}}
        exchange = self.do(self.ask(party, at, era, "prompts/get", params))
        assert exchange.text["arguments"] == {"nonce": nonce}
        assert exchange.text.get("who", name) == name
        ref = {"type": "ref/prompt", "name": f"{server}__{prompt}"}
        asked = {"ref": ref, "argument": {"name": "a", "value": nonce}}
        exchange = self.do(self.ask(party, at, era, "completion/complete", asked))
        (value,) = exchange.result["completion"]["values"]
        assert value.startswith(f"{nonce}-")

    @rule(
        name=ANYBODY,
        at=REPLICAS,
        era=ERAS,
        called=st.sampled_from(
            [
                *("own echo", "own kept", "own fail", "swap echo", "swap fail"),
                *("shared echo", "shared kept", "shared only", "old echo"),
            ]
        ),
        kept=KEPT,
        same=st.booleans(),
    )
    def call(self, name: str, at: int, era: str, called: str, kept: bool, same: bool) -> None:
        self.do(self.calling(self.who(name), at, era, called, kept=kept, same=same))

    async def calling(
        self,
        party: Party,
        at: int,
        era: str,
        called: str,
        *,
        kept: bool = False,
        same: bool = False,
        id: Any = 1,
    ) -> None:
        """Make a call, perhaps one that others make just so, and look for its own answer."""
        server, tool = called.split()
        server = self.server(server)
        if tool == "only":
            if not self.verified or party.name != "ann" or party.tenant is None:
                return
            tool = only_of(party.tenant)[0]
        nonce = "the same" if same else self.nonce(party)
        params = {"name": f"{server}__{tool}", "arguments": {"nonce": nonce}}
        exchange = await self.ask(party, at, era, "tools/call", params, kept=kept, id=id)
        assert exchange.last["id"] == id
        assert type(exchange.last["id"]) is type(id)
        if tool == "fail":
            assert nonce in exchange.error["message"], bytes(exchange.raw)
            return
        assert exchange.text["arguments"] == {"nonce": nonce}
        assert exchange.text.get("who", party.name) == party.name

    @rule(at=REPLICAS, called=st.lists(st.tuples(ANYBODY, ERAS, MANY), min_size=4, max_size=10))
    def together(self, at: int, called: list[tuple[str, str, int]]) -> None:
        """Many requests at once under the same few ids, on both replicas (B22)."""
        self.do(self.at_once(at, called))

    async def at_once(self, at: int, called: list[tuple[str, str, int]]) -> None:
        kinds = [
            *("own echo", "own kept", "shared kept", "shared echo", "old echo", "own fail", "swap echo"),
            *("pipe", "prog", "read", "read", *LISTS),
        ]
        ids: list[Any] = [1, "1", 0, -1, "a\U0001f600", 9007199254740993]
        for name, era, _ in called:
            if era == "legacy":
                await self.session(self.who(name), at)
        works = []
        for name, era, which in called:
            party, kind, there = self.who(name), kinds[which % len(kinds)], (at + which // 16) % 2
            id = ids[which // 32 % len(ids)] if era == "modern" else f"{which}-{len(works)}"
            if kind in LISTS:
                works.append(self.walk(party, there, era, kind, id=id))
            elif kind == "read":
                works.append(self.reading(party, there, era, "shared+doc://one", id=id))
            elif kind in ("pipe", "prog"):
                works.append(self.pipe(party, there, era, kind, id))
            else:
                works.append(self.calling(party, there, era, kind, same=which % 3 == 0, id=id))
        await asyncio.gather(*works)

    async def pipe(self, party: Party, at: int, era: str, server: str, id: Any) -> None:
        """Have a program say something again, which many may use at once."""
        nonce = self.nonce(party)
        params = {"name": f"{server}__echo", "arguments": {"nonce": nonce}}
        exchange = await self.ask(party, at, era, "tools/call", params, id=id, meta={"progressToken": 1})
        assert exchange.last["id"] == id
        assert exchange.text["arguments"] == {"nonce": nonce}

    @rule(name=WHO, at=REPLICAS, era=ERAS, server=st.sampled_from(["old", "prog"]), write=st.booleans())
    def note(self, name: str, at: int, era: str, server: str, write: bool) -> None:
        """What a server remembers of a caller is his own (B07)."""
        self.do(self.noting(self.who(name), at, era, server, write))

    async def noting(self, party: Party, at: int, era: str, server: str, write: bool) -> None:
        known = self.notes.setdefault((party.name, server), {None})
        if write:
            nonce = self.nonce(party)
            known.add(nonce)
            key = "note" if server == "old" else "text"
            params = {"name": f"{server}__set_note", "arguments": {key: nonce}}
            await self.ask(party, at, era, "tools/call", params)
        exchange = await self.ask(
            party, at, era, "tools/call", {"name": f"{server}__get_note", "arguments": {}}
        )
        note = exchange.text["note"] if server == "old" else exchange.text
        assert note in known, (note, known)
        if write and (era == "legacy" or self.apart == "caller"):
            assert note == nonce, (exchange, note, nonce)

    @rule(name=WHO, at=REPLICAS, era=ERAS)
    def what_a_program_has_seen(self, name: str, at: int, era: str) -> None:
        """The process of a caller was never sent anything of another's."""
        params: Mapping[str, Any] = {"name": "prog__seen", "arguments": {}}
        exchange = self.do(self.ask(self.who(name), at, era, "tools/call", params))
        assert isinstance(exchange.text, list)

    # Calls that last

    @rule(
        name=ANYBODY,
        at=REPLICAS,
        era=ERAS,
        server=st.sampled_from(["own", "swap", "shared", "old", "pipe", "pipe"]),
        level=st.booleans(),
    )
    def hold(self, name: str, at: int, era: str, server: str, level: bool) -> None:
        """Begin a call that tells how far it is, and does not end by itself."""
        if len(self.held) < 6:
            self.do(self.holding(self.who(name), at, era, self.server(server), level=level))

    async def holding(self, party: Party, at: int, era: str, server: str, *, level: bool) -> None:
        nonce = self.nonce(party)
        session = await self.session(party, at) if era == "legacy" else None
        if era == "legacy" and level:
            await self.ask(party, at, era, "logging/setLevel", {"level": "debug"})
        meta: dict[str, Any] = {"progressToken": 1}
        if level and era == "modern":
            meta[f"{META}logLevel"] = "debug"
        tool = "hang" if server == "pipe" else "slow"
        params = {"name": f"{server}__{tool}", "arguments": {"nonce": nonce}}
        id: Any = 1 if era == "modern" else f"held-{nonce}"
        exchange = await self.send(party, at, era, "tools/call", params, id=id, meta=meta, session=session)
        self.held.append(Held(party, at, exchange, nonce, server, session, id))
        if server != "pipe":
            await self.premises.arrived(nonce)
        await exchange.until(lambda: bool(exchange.notices("notifications/progress")))
        assert nonce in exchange.notices("notifications/progress")[0]["message"]

    @rule(which=MANY)
    def let_go(self, which: int) -> None:
        """A call that was held goes on to its end."""
        self.do(self.letting_go(self.one_held(which)))

    def one_held(self, which: int) -> Held:
        """Return one of the calls that last, at least there is one."""
        if not self.held:
            name, server = ("ann", "bob")[which % 2], ("own", "shared", "old", "pipe")[which // 2 % 4]
            era, at = ("modern", "legacy")[which // 8 % 2], which // 16 % 2
            self.do(self.holding(self.who(name), at, era, server, level=which % 3 == 0))
        return self.held.pop(which % len(self.held))

    async def letting_go(self, held: Held) -> None:
        if held.server == "pipe":
            await self.ask(
                held.party, held.at, "modern", "tools/call", {"name": "pipe__release", "arguments": {}}
            )
            await held.exchange.over()
            assert held.exchange.text == "released"
        else:
            self.premises.gate(held.nonce).set()
            await held.exchange.over()
            assert held.exchange.text["arguments"] == {"nonce": held.nonce}
        self.examine(held.exchange)

    @rule(which=MANY, kindly=st.booleans())
    def leave(self, which: int, kindly: bool) -> None:
        """A call is taken back, or its connection is lost."""
        held = self.one_held(which)
        if kindly and held.session is not None and self.same(held.party, held.session.token):
            self.do(self.taking_back(held))
        held.exchange.leave()
        self.premises.gate(held.nonce).set()

    async def taking_back(self, held: Held) -> None:
        assert held.session is not None
        cancelled = await self.wires.send(
            held.party,
            self.address(held.at),
            "POST",
            legacy_message("notifications/cancelled", {"requestId": held.id}),
            {"mcp-session-id": held.session.id, "mcp-protocol-version": "2025-11-25"},
            about="cancelled",
        )
        await cancelled.over()
        self.examine(held.exchange)

    @rule(name=ANYBODY, at=REPLICAS, era=ERAS, level=st.booleans(), server=st.sampled_from(["pipe", "prog"]))
    def say_to_the_log(self, name: str, at: int, era: str, level: bool, server: str) -> None:
        """A program writes to the log what a call is about, whether or not somebody asked it to."""
        party = self.who(name)
        params = {"name": f"{server}__log", "arguments": {"data": self.nonce(party)}}
        meta = {f"{META}logLevel": "debug"} if level and era == "modern" else None
        self.do(self.ask(party, at, era, "tools/call", params, meta=meta, id=f"log-{self.nonces}"))

    @rule(called=st.lists(st.tuples(ANYBODY, MANY), min_size=2, max_size=5), at=REPLICAS)
    def one_behind_the_other(self, called: list[tuple[str, int]], at: int) -> None:
        """Requests of several that come on one connection before any of them is answered."""
        self.do(self.pipelined(called, at))

    async def pipelined(self, called: list[tuple[str, int]], at: int) -> None:
        exchanges: list[tuple[Exchange, str]] = []
        for name, which in called:
            party = self.who(name)
            nonce = self.nonce(party)
            tool = ("own__echo", "shared__echo", "own__kept")[which % 3]
            params = {"name": tool, "arguments": {"nonce": nonce}}
            after = exchanges[-1][0] if exchanges else None
            exchanges.append((await self.send(party, at, "modern", "tools/call", params, after=after), nonce))
        for exchange, nonce in exchanges:
            await exchange.over()
            self.examine(exchange)
            assert exchange.text["arguments"] == {"nonce": nonce}, (exchange, bytes(exchange.raw))

    # Questions

    @rule(name=ANYBODY, at=REPLICAS, server=st.sampled_from(["own", "swap", "shared", "old"]))
    def be_asked(self, name: str, at: int, server: str) -> None:
        """A question comes back, with a state that is sealed."""
        self.do(self.being_asked(self.who(name), at, self.server(server)))

    async def being_asked(self, party: Party, at: int, server: str) -> None:
        nonce = self.nonce(party)
        params = {"name": f"{server}__ask", "arguments": {"nonce": nonce}}
        asked = (await self.ask(party, at, "modern", "tools/call", params)).result
        assert asked["resultType"] == "input_required"
        (question,) = asked["inputRequests"].values()
        if server not in ("own", "swap"):
            assert nonce in question["params"]["message"]
        state, keys = asked["requestState"], tuple(asked["inputRequests"])
        self.asked.append(Asked(party, party.token, params, state, keys, nonce, server))

    @rule(which=MANY, by=ANYBODY, at=REPLICAS)
    def answer(self, which: int, by: str, at: int) -> None:
        """Only who was asked can answer, on every replica, and that once somebody else has tried."""
        if not self.asked:
            server = ("own", "shared", "old")[which // 2 % 3]
            self.do(self.being_asked(self.who(("ann", "bob")[which % 2]), which // 6 % 2, server))
        self.do(self.answering(self.asked.pop(which % len(self.asked)), self.who(by), at))

    async def answering(self, asked: Asked, by: Party, at: int) -> None:
        answers = {"inputResponses": {key: ACCEPT for key in asked.keys}, "requestState": asked.state}
        params = {**asked.params, **answers}
        if by is not asked.party:
            guessed = (asked.nonce,)
            refused = await self.ask(by, at, "modern", "tools/call", params, guessed=guessed)
            if not (by.tenant is None and asked.party.tenant is None):
                assert "error" in refused.last, bytes(refused.raw)
        done = await self.ask(asked.party, at, "modern", "tools/call", params)
        if not self.same(asked.party, asked.token):
            return
        assert done.text["arguments"] == {"nonce": asked.nonce}, bytes(done.raw)
        assert done.text["answers"] == {asked.keys[0]: ACCEPT} or done.text["answers"] == {"q": ACCEPT}

    @rule(name=WHO, by=WHO, at=REPLICAS, there=REPLICAS, server=ASKING)
    def be_asked_in_the_middle(self, name: str, by: str, at: int, there: int, server: str) -> None:
        """A question to an older client is answered by its own session alone, whoever else tries."""
        self.do(self.asking_in_the_middle(self.who(name), self.who(by), at, there, self.server(server)))

    async def asking_in_the_middle(self, party: Party, by: Party, at: int, there: int, server: str) -> None:
        nonce = self.nonce(party)
        session, other = await self.session(party, at), await self.session(by, there)
        params = {"name": f"{server}__ask", "arguments": {"nonce": nonce}}
        exchange = await self.send(
            party, at, "legacy", "tools/call", params, id=f"ask-{nonce}", session=session
        )
        await exchange.until(lambda: bool(exchange.messages))
        question = exchange.messages[0]
        assert question["method"] == "elicitation/create", question
        if other is not session:
            await self.respond(by, there, other, question["id"], {"action": "decline"})
            await self.respond(by, there, session, question["id"], {"action": "decline"}, expected=404)
        await self.respond(party, there, session, question["id"], ACCEPT)
        await exchange.over()
        self.examine(exchange)
        assert exchange.text["arguments"] == {"nonce": nonce}
        assert exchange.text["answers"]["q"] == ACCEPT, bytes(exchange.raw)

    async def respond(
        self, party: Party, at: int, session: Session, id: Any, result: Any, *, expected: int = 202
    ) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
        head = {"mcp-session-id": session.id, "mcp-protocol-version": "2025-11-25"}
        posted = await self.wires.send(party, self.address(at), "POST", body, head, about="an answer")
        await posted.over()
        self.examine(posted)
        assert posted.status == expected, bytes(posted.raw)

    # Tasks

    @rule(name=WHO, at=REPLICAS)
    def begin_a_task(self, name: str, at: int) -> None:
        """Its id, as the client has it, holds nothing to be read."""
        self.do(self.beginning(self.who(name), at))

    async def beginning(self, party: Party, at: int) -> None:
        nonce = self.nonce(party)
        params = {"name": "own__work", "arguments": {"nonce": nonce}}
        made = (await self.ask(party, at, "modern", "tools/call", params)).result
        assert made["resultType"] == "task"
        assert party.tenant is not None
        own = f"{party.tenant.word('data')}-{nonce}"
        assert own not in made["taskId"]
        self.tasks.append(Task(party, party.token, made["taskId"], own))

    @rule(which=MANY, by=ANYBODY, at=REPLICAS, verb=st.sampled_from(["get", "update", "cancel"]))
    def look_at_a_task(self, which: int, by: str, at: int, verb: str) -> None:
        """Only who began it can."""
        if not self.tasks:
            self.do(self.beginning(self.who(("ann", "bob")[which % 2]), which // 2 % 2))
        task, party = self.tasks[which % len(self.tasks)], self.who(by)
        params = {"taskId": task.id} | ({"inputResponses": {}} if verb == "update" else {})
        exchange = self.do(self.ask(party, at, "modern", f"tasks/{verb}", params))
        if party is task.party and self.same(party, task.token):
            assert "result" in exchange.last, bytes(exchange.raw)
            if verb == "get":
                assert exchange.result["taskId"] == task.id
        elif party is not task.party:
            assert "error" in exchange.last, bytes(exchange.raw)

    # What belongs to another

    @rule(name=WHO, at=REPLICAS, verb=st.sampled_from(["POST", "GET", "DELETE"]), which=MANY)
    def use_session_of_another(self, name: str, at: int, verb: str, which: int) -> None:
        """There is no such session."""
        if not any(one.party.name != name for one in self.sessions):
            self.do(self.greet(self.who("bob" if name == "ann" else "ann"), at))
        theirs = [one for one in self.sessions if one.party.name != name]
        self.do(self.taking_session(self.who(name), at, verb, theirs[which % len(theirs)]))

    async def taking_session(self, party: Party, at: int, verb: str, session: Session) -> None:
        head = {"mcp-session-id": session.id, "mcp-protocol-version": "2025-11-25"}
        body = legacy_message("tools/list", {}, id=1) if verb == "POST" else b""
        accept = {"accept": "text/event-stream"} if verb == "GET" else {}
        exchange = await self.wires.send(
            party, self.address(at), verb, body, {**head, **accept}, about=f"{verb} with another's session"
        )
        await exchange.over()
        self.examine(exchange)
        assert exchange.status == 404, bytes(exchange.raw)

    @rule(
        name=WHO,
        at=REPLICAS,
        era=ERAS,
        what=st.sampled_from(["tool", "prompt", "1", "free", "page", "complete", "only tool", "only uri"]),
    )
    def guess(self, name: str, at: int, era: str, what: str) -> None:
        """Names and URIs of another are as unknown as those that nobody has."""
        self.do(self.guessing(self.who(name), at, era, what))

    async def guessing(self, party: Party, at: int, era: str, what: str) -> None:
        other = self.parties["bob" if party.name == "ann" else "ann"].tenant
        assert other is not None
        if what.startswith("only") and (
            not self.verified or what[5:] != {"ann": "uri", "bob": "tool"}[party.name]
        ):
            return
        answers = []
        for word in (other.word("name"), "zzz" + other.word("name")[3:-3] + "zzz"):
            method, params = {
                "tool": ("tools/call", {"name": f"own__{word}_tool", "arguments": {}}),
                "prompt": ("prompts/get", {"name": f"own__{word}_prompt"}),
                "1": ("resources/read", {"uri": f"own+note://{word}/1"}),
                "free": ("resources/read", {"uri": f"own+note://{word}/99"}),
                "page": ("resources/read", {"uri": f"https://{word}.example/page"}),
                "only tool": ("tools/call", {"name": f"shared__{word}_only", "arguments": {}}),
                "only uri": ("resources/read", {"uri": f"shared+doc://{word}/only"}),
                "complete": (
                    "completion/complete",
                    {
                        "ref": {"type": "ref/prompt", "name": f"own__{word}_prompt"},
                        "argument": {"name": "a", "value": ""},
                    },
                ),
            }[what]
            exchange = await self.ask(party, at, era, method, params, guessed=(word,))
            assert "error" in exchange.last, bytes(exchange.raw)
            shown = [exchange.status, json.dumps(exchange.last).replace(word, "WORD")]
            answers.append([*shown, exchange.headers.get("mcp-gateway-cache")])
        assert answers[0] == answers[1]

    # Listening

    @rule(name=ANYBODY, at=REPLICAS, era=ERAS, guess=st.booleans())
    def listen(self, name: str, at: int, era: str, guess: bool) -> None:
        if len(self.listens) < 6:
            self.do(self.listening(self.who(name), at, era, guess=guess))

    async def listening(self, party: Party, at: int, era: str, *, guess: bool) -> None:
        mine = []
        if party.tenant is not None:
            mine = [f"{one}+note://{party.tenant.word('name')}/1" for one in ("own", self.server("swap"))]
        uris = [*mine, "shared+doc://one"]
        guessed: tuple[str, ...] = ()
        if self.verified and party.name == "bob" and party.tenant is not None:
            uris.append(f"shared+{only_of(party.tenant)[1]}")
        if guess and party.tenant is not None:
            other = self.parties["bob" if party.name == "ann" else "ann"].tenant
            assert other is not None
            guessed = (f"own+note://{other.word('name')}/1",)
            if self.verified and party.name == "ann":
                guessed += (f"shared+{only_of(other)[1]}",)
        if era == "legacy":
            await self.standing(party, at, uris, guessed)
            return
        tasks = [task.id for task in self.tasks if task.party is party and self.same(party, task.token)]
        stolen = [task.id for task in self.tasks if task.party is not party] if guess else []
        wanted = {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
            "resourceSubscriptions": [*uris, *guessed],
            "taskIds": [*tasks, *stolen],
        }
        exchange = await self.send(party, at, "modern", "subscriptions/listen", {"notifications": wanted})
        await exchange.until(lambda: bool(exchange.messages))
        self.examine(exchange)
        first = exchange.messages[0]
        if stolen and "error" in first:
            exchange.leave()
            return
        granted = first["params"]["notifications"]
        assert not set(granted.get("resourceSubscriptions", ())) & set(guessed), granted
        assert not set(granted.get("taskIds", ())) & set(stolen), granted
        self.listens.append(Held(party, at, exchange, uris=tuple(granted.get("resourceSubscriptions", ()))))

    async def standing(self, party: Party, at: int, uris: list[str], guessed: tuple[str, ...]) -> None:
        session = await self.session(party, at)
        head = {
            "mcp-session-id": session.id,
            "mcp-protocol-version": "2025-11-25",
            "accept": "text/event-stream",
        }
        exchange = await self.wires.send(party, self.address(at), "GET", b"", head, about="standing stream")
        await exchange.until(lambda: exchange.status != 0)
        assert exchange.status == 200, bytes(exchange.raw)
        for one in [one for one in self.listens if one.session is session]:
            self.listens.remove(one)
        for uri in [*uris, *guessed]:
            # Of what another has it says yes as to what nobody has: it has no words to grant a part.
            await self.ask(party, at, "legacy", "resources/subscribe", {"uri": uri}, guessed=guessed)
        self.listens.append(Held(party, at, exchange, session=session))

    @rule(which=MANY)
    def stop_listening(self, which: int) -> None:
        if self.listens:
            held = self.listens.pop(which % len(self.listens))
            self.examine(held.exchange)
            held.exchange.leave()

    @rule(name=WHO, what=st.sampled_from([*LISTS, "own uri", "shared uri", "task"]), which=MANY)
    def tell(self, name: str, what: str, which: int) -> None:
        """A server tells somebody of a change."""
        if not any(one.party.name == name for one in self.listens):
            self.do(
                self.listening(self.who(name), which % 2, ("modern", "legacy")[which // 2 % 2], guess=False)
            )
        self.do(self.telling(self.who(name), what, which))

    async def telling(self, party: Party, what: str, which: int) -> None:
        assert party.tenant is not None
        match what:
            case "own uri":
                await self.told_of_update(party, f"note://{party.tenant.word('name')}/1")
            case "shared uri":
                for uri in ("doc://one", only_of(self.tenants[1])[1])[: 2 if self.verified else 1]:
                    await self.premises.shared.notify("notifications/resources/updated", uri=uri)
            case "task":
                tasks = [task for task in self.tasks if task.party is party]
                if tasks:
                    await self.premises.tell_task(party, tasks[which % len(tasks)].own)
            case "tools/list":
                self.premises.extra[party.name] = self.premises.extra.get(party.name, 0) + 1
                await self.premises.tell_list(party, what)
                await self.forget_lists(party)
            case _:
                await self.premises.tell_list(party, what)

    async def told_of_update(self, party: Party, uri: str) -> None:
        """Tell somebody of a resource, and wait until each of his streams that was promised it has heard."""
        promised = [one.exchange for one in self.listens if one.party is party and f"own+{uri}" in one.uris]
        before = [len(one.messages) for one in promised]
        if not await self.premises.tell_updated(party, uri):
            return
        for one, since in zip(promised, before, strict=True):
            await one.until(partial(_updated, one, since, f"own+{uri}"))

    async def forget_lists(self, party: Party) -> None:
        """Have the change known everywhere: who does not listen does not hear of it."""
        for at in (0, 1):
            await self.admin(at, "POST", "/purge", {"upstream": "own"})

    # Operators

    @rule(name=ANYBODY, at=REPLICAS, method=st.sampled_from([*LISTS, "resources/read", "tools/call"]))
    def explain(self, name: str, at: int, method: str) -> None:
        """What an operator is told of somebody's cache is about him."""
        party = self.who(name)
        query = f"method={method}"
        if method == "resources/read":
            query += "&uri=" + quote("shared+doc://one")
        if method == "tools/call":
            query += "&name=own__kept&arguments=" + quote('{"nonce":"the same"}')
        self.do(self.admin(at, "GET", f"/explain?{query}", party=party))

    @rule(at=REPLICAS, name=WHO, wish=st.sampled_from(["all", "caller", "own", "shared", "old", "method"]))
    def purge(self, at: int, name: str, wish: str) -> None:
        posted: dict[str, Any] = {
            "all": {"all": True},
            "caller": {"caller": True},
            "method": {"method": "tools/list"},
        }.get(wish, {"upstream": wish})
        self.do(self.admin(at, "POST", "/purge", posted, party=self.who(name)))

    async def admin(
        self,
        at: int,
        verb: str,
        path: str,
        posted: Mapping[str, Any] | None = None,
        party: Party | None = None,
    ) -> bytes:
        """Ask the operators' listener, perhaps on somebody's behalf; no token may come back."""
        address = self.replicas[at][0].addresses.admin
        assert address is not None
        asking = party or self.who("nobody")
        body = b"" if posted is None else json.dumps(posted).encode()
        exchange = await self.wires.send(asking, address + path, verb, body, {}, about=f"admin {path}")
        await exchange.over()
        assert exchange.status == 200, bytes(exchange.raw)
        if party is not None:
            self.examine(exchange)
        if (found := self.secrets.first(exchange.raw)) is not None:
            raise Leak(f"{path} holds the {found.kind} of {found.tenant}: {found.around!r}")
        return bytes(exchange.body)

    # What happens to all

    @rule(which=st.sampled_from(HINTS))
    def hint(self, which: Mapping[str, Any]) -> None:
        """The servers say something else of how long, and for whom, their answers may be kept."""
        self.premises.hints = dict(which)

    @rule(name=WHO)
    def rotate(self, name: str) -> None:
        """A tenant has a new token; its old one is taken still."""
        self.credential(self.who(name))

    @rule(name=WHO, at=REPLICAS, era=ERAS, which=MANY)
    def come_with_an_old_token(self, name: str, at: int, era: str, which: int) -> None:
        """One that is over lets nobody in, and one that is not is still its owner's."""
        party = self.who(name)
        self.do(self.coming(party, at, era, party.tokens[which % len(party.tokens)]))

    async def coming(self, party: Party, at: int, era: str, token: str) -> None:
        body, head = modern("tools/list", {}, None)
        if era == "legacy":
            session = await self.session(party, at)
            body = legacy_message("tools/list", {}, id=1)
            head = {"mcp-session-id": session.id, "mcp-protocol-version": "2025-11-25"}
        head["authorization"] = f"Bearer {token}"
        exchange = await self.wires.send(party, self.address(at), "POST", body, head, about="an old token")
        await exchange.over()
        self.examine(exchange)
        if self.verified:
            assert exchange.status == (401 if token in self.expired else 200), bytes(exchange.raw)
            if token in self.expired:
                assert "resource_metadata=" in exchange.headers["www-authenticate"]

    @rule()
    def sign_with_another_key(self) -> None:
        """The issuer has a new key, once: its keys are looked for at most every few seconds."""
        if len(self.issuer.keys) == 1:
            self.issuer.rotate()

    @rule()
    def flush(self) -> None:
        self.do(self.redis.ask("FLUSHALL"))

    @rule()
    def cut_redis(self) -> None:
        self.do(self.redis.ask("CLIENT", "KILL", "TYPE", "pubsub"))

    @rule(at=REPLICAS, name=WHO)
    def lose_redis(self, at: int, name: str) -> None:
        """For a while a replica is alone; whatever it kept before, each is given his own."""
        self.do(self.losing_redis(at, self.who(name)))

    async def losing_redis(self, at: int, party: Party) -> None:
        await self.links[at].stop()
        for one in (party, self.parties["bob" if party.name == "ann" else "ann"], self.parties["nobody"]):
            for method in ("tools/list", "resources/list"):
                await self.walk(one, at, "modern", method)
            await self.reading(one, at, "modern", "own+note://common")
            await self.calling(one, at, "modern", "shared kept", same=True)
        await self.links[at].start()
        while b'"ready"' not in await self.admin(at, "GET", "/readyz"):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.02)

    @rule(at=REPLICAS, killed=st.booleans())
    def restart(self, at: int, killed: bool) -> None:
        """A replica ends with all that it does, perhaps without a word, and another takes its place."""
        self.do(self.restarting(at, killed=killed))

    async def restarting(self, at: int, *, killed: bool) -> None:
        await self.look_at(at)
        for held in [held for held in (*self.held, *self.listens) if held.at == at]:
            self.examine(held.exchange)
            held.exchange.leave()
            self.premises.gate(held.nonce).set()
        self.held = [held for held in self.held if held.at != at]
        self.listens = [held for held in self.listens if held.at != at]
        self.asked = [asked for asked in self.asked if asked.server != "old"]
        if killed:  # what it held in Redis is left there, as nobody can let go of it
            await self.links[at].stop()
        await self.replicas[at][1].aclose()
        if killed:
            await self.links[at].start()
        self.replicas[at] = await self.replica(at)

    @rule(name=WHO, at=REPLICAS, server=st.sampled_from(["own", "shared"]))
    def outage(self, name: str, at: int, server: str) -> None:
        """A server fails with what it was asked last; what stands in was the caller's own before."""
        self.do(self.failing(self.who(name), at, server))

    async def failing(self, party: Party, at: int, server: str) -> None:
        other = self.parties["bob" if party.name == "ann" else "ann"]
        uri = "own+note://common" if server == "own" else "shared+doc://one"
        await self.reading(party, at, "modern", uri)
        self.premises.down.add(server)
        try:
            for one in (other, party):
                await self.ask(one, at, "modern", "resources/read", {"uri": uri})
                await self.ask(one, at, "modern", "tools/list")
        finally:
            self.premises.down.discard(server)
        for gateway, _ in self.replicas:
            await gateway.until(server, "up")
        # What a list lacked is there again, and nobody is kept waiting by what was not.
        await self.admin(at, "POST", "/purge", {"all": True})

    @rule()
    def old_forgets(self) -> None:
        """The older server is started anew."""
        if not any(held.server == "old" for held in self.held):
            self.asked = [asked for asked in self.asked if asked.server != "old"]
            self.premises.old.forget()

    @rule(seconds=st.sampled_from([60.0, 700.0, 90_000.0]))
    def pass_time(self, seconds: float) -> None:
        """What clients carry ends."""
        self.wall.advance(seconds)
        if seconds > self.issuer.lifetime and self.verified:
            for party in (self.who("ann"), self.who("bob")):
                self.expired.update(party.tokens)
                self.credential(party)
            for held in self.listens:  # those of tokens that are over end
                self.examine(held.exchange)
                held.exchange.leave()
            self.listens.clear()
        if seconds > 100.0:  # two of these, and a quiet session is over
            self.asked.clear()
            self.sessions.clear()

    # What holds at any time

    @invariant()
    def nothing_reached_another(self) -> None:
        Totals.steps += 1
        if not hasattr(self, "premises"):
            return
        for exchange in self.wires.exchanges:
            self.examine(exchange)
        Totals.exchanges += sum(exchange.ended for exchange in self.wires.exchanges)
        self.wires.exchanges = [exchange for exchange in self.wires.exchanges if not exchange.ended]
        assert self.premises.faults == []
        assert self.premises.old.faults == []
        self.search(self.monitor.unsearched(), "Redis")
        written = self.log.getvalue().encode()
        self.search(written, "the log")
        self.log.seek(0)
        self.log.truncate()

    def search(self, data: bytes, where: str) -> None:
        """Fail when a token or something private is there in clear."""
        Totals.searched += len(data)
        for secret in (GATEWAY, EXCHANGER):
            if secret.encode() in data:
                raise Leak(f"{where} holds the gateway's own secret {secret}")
        if (found := self.secrets.first(data)) is not None:
            raise Leak(f"{where} holds the {found.kind} of {found.tenant}: {found.around!r}")

    async def look_at(self, at: int) -> None:
        for path in ("/metrics", "/status.json", "/readyz"):
            await self.admin(at, "GET", path)

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            if len(self.replicas) == 2:
                for at in (0, 1):
                    self.do(self.look_at(at))
                self.nothing_reached_another()
        finally:
            self.do(self.close())

    async def close(self) -> None:
        await self.wires.close()
        for gate in self.premises.gates.values():
            gate.set()
        for _, stack in self.replicas:
            await stack.aclose()
        for link in self.links:
            await link.stop()
        await self.monitor.stop()
        root = logging.getLogger()
        root.handlers[:], level = self.handlers
        root.setLevel(level)
        await self.stack.aclose()


def _updated(exchange: Exchange, since: int, uri: str) -> bool:
    """Whether one of the messages since then tells of this resource."""
    return any((one.get("params") or {}).get("uri") == uri for one in exchange.messages[since:])


@pytest.mark.timeout(60 + EXAMPLES * 30)
class TestTenantsMachine(TenantsMachine.TestCase):  # type: ignore[misc, name-defined]
    """One Redis and one loop for all of it."""

    settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    stack: ClassVar[AsyncExitStack]

    @classmethod
    def setUpClass(cls) -> None:
        TenantsMachine.loop, cls.stack = asyncio.new_event_loop(), AsyncExitStack()
        TenantsMachine.redis = TenantsMachine.loop.run_until_complete(
            cls.stack.enter_async_context(redis_server())
        )

    @classmethod
    def tearDownClass(cls) -> None:
        TenantsMachine.loop.run_until_complete(cls.stack.aclose())
        TenantsMachine.loop.close()
        sys.stdout.write(
            f"\n{Totals.examples} runs, {Totals.steps} steps, {Totals.exchanges} exchanges, "
            f"{Totals.searched / 2**20:.0f} MiB searched\n"
        )
