"""The servers that tenants share: what each of them answers whom, and what it must never be sent.

`own` sees its callers' credentials and answers each for himself: names, URIs, cursors, errors, questions,
tasks and notices all hold the caller's words. `swap` does so by tokens that the
gateway was given in exchange for theirs. `shared` sees the gateway's credential alone, so each answer
that is private is numbered, and no two tenants may be given the same number. `old` is of an older revision
and remembers a note for each session. What reaches one of them and should not have is kept in `faults`.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jwt

from tests.support.legacy_upstream import Call, LegacyServer, Session, plain, streamed, text
from tests.support.marks import Search, Tenant
from tests.support.scripted import (
    Exchange,
    Listen,
    Received,
    ScriptedUpstream,
    complete,
    error,
    event,
    listen,
    notification,
    status,
    token,
    tool,
)
from tests.support.tenants import Party

TASKS = "io.modelcontextprotocol/tasks"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
COMMON = ("echo", "fail", "kept", "slow", "ask", "work")
PAGE = 3
KEYS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def form(said: str) -> dict[str, Any]:
    """Return the question of a form."""
    return {
        "method": "elicitation/create",
        "params": {"message": said, "requestedSchema": SCHEMA, "mode": "form"},
    }


def names_of(tenant: Tenant, extra: int = 0, *, page: bool = True) -> dict[str, list[str]]:
    """Return what a tenant has at `own` beside what everybody has there; the `page` is there only."""
    word = tenant.word("name")
    return {
        "tools/list": [f"{word}_tool", *(f"{word}_more_{number}" for number in range(extra))],
        "prompts/list": [f"{word}_prompt"],
        "resources/list": [f"note://{word}/1", *([f"https://{word}.example/page"] if page else [])],
        "resources/templates/list": [f"note://{word}/{{id}}"],
    }


def only_of(tenant: Tenant) -> tuple[str, str]:
    """Return the tool and the URI that `shared` has for one tenant, as far as the gateway sees to it."""
    word = tenant.word("name")
    return f"{word}_only", f"doc://{word}/only"


class Premises:
    """All the servers, and what they were sent."""

    def __init__(self, parties: Sequence[Party], gateway_token: str) -> None:
        self.parties = {party.name: party for party in parties}
        self.gateway_token = gateway_token
        self.credentials: dict[str, str] = {}
        """Credential that `own` takes -> whose it is."""
        self.hints: dict[str, Any] = {"ttlMs": 60_000, "cacheScope": "private"}
        self.extra: dict[str, int] = {}
        """How many more tools somebody has by now."""
        self.numbers = itertools.count(1)
        self.private: set[int] = set()
        """The numbers that one party alone may be given."""
        self.restricted = False
        """Whether `shared` has what the gateway is to show to one tenant only."""
        self.numbered = True
        """Whether the lists of `shared` are numbered, so that they are others each time."""
        self.gates: dict[str, asyncio.Event] = {}
        self.reached = asyncio.Event()
        """Set whenever a call waits at its gate."""
        self.waiting: set[str] = set()
        self.down: set[str] = set()
        """Servers that fail whatever they are asked."""
        self.faults: list[str] = []
        tenants = [party.tenant for party in parties if party.tenant is not None]
        secret = ("token", "subject", "data")
        self._foreign = {
            party.name: Search([one for one in tenants if one is not party.tenant], secret)
            for party in parties
        }
        self._credentials = Search(tenants, ["token"])
        self.own, self.swap, self.shared = ScriptedUpstream(), ScriptedUpstream(), ScriptedUpstream()
        self.own.on("*", self._own)
        self.swap.on("*", self._own)
        self.shared.on("*", self._shared)
        self.old = OldServer(self)
        for server in (self.own, self.swap, self.shared):
            server.capabilities["extensions"] = {TASKS: {}}

    def gate(self, nonce: str) -> asyncio.Event:
        """Return what a held call waits for."""
        return self.gates.setdefault(nonce, asyncio.Event())

    async def arrived(self, nonce: str) -> None:
        """Return once the call with this nonce waits at its gate."""
        while nonce not in self.waiting:
            self.reached.clear()
            await self.reached.wait()

    async def hold(self, nonce: str) -> None:
        self.waiting.add(nonce)
        self.reached.set()
        await self.gate(nonce).wait()

    def number(self, *, hinted: bool = False) -> str:
        """Return a text with a number that no other answer has; `hinted` goes by the hints of the hour."""
        number = next(self.numbers)
        if not (hinted and self.hints.get("cacheScope") == "public"):
            self.private.add(number)
        return f"number-{number}."

    def listed(self) -> str:
        """Return what `shared` says of something in a list."""
        return self.number(hinted=True) if self.numbered else "as ever"

    def hinted(self, members: Mapping[str, Any], *, personal: bool = False) -> dict[str, Any]:
        """Return a cacheable result with the hints of the hour; what is `personal` is never public."""
        hints = dict(self.hints)
        if personal and hints.get("cacheScope") == "public":
            hints["cacheScope"] = "private"
        return {**complete(members), **hints}

    # own

    def whose(self, exchange: Exchange) -> Party:
        """Return whose credential a request shows, and note what of others came with it."""
        received, swapped = exchange.received, exchange.upstream is self.swap
        where = "swap" if swapped else "own"
        shown = (received.header("authorization") or "").removeprefix("Bearer ")
        name = self.credentials.get(shown, "nobody")
        if shown and swapped:
            if name != "nobody":
                self.faults.append(f"swap was shown the token of {name}, which was to be exchanged")
            name = self._subject_of(shown)
        if shown and name == "nobody":
            self.faults.append(f"{where} was shown a credential of nobody: {received.method}")
        came = received.body + repr(received.raw_headers).encode()
        if (found := self._foreign[name].first(came)) is not None:
            self.faults.append(
                f"{where} was sent the {found.kind} of {found.tenant} by {name}: {found.around!r}"
            )
        return self.parties[name]

    def _subject_of(self, token: str) -> str:
        """Return whom a token is about that was given in exchange for `swap`."""
        claims = jwt.decode(token, options={"verify_signature": False})
        if claims["aud"] != self.swap.url or "act" not in claims:
            self.faults.append("swap was shown a token that is not for it")
        for name, party in self.parties.items():
            if party.tenant is not None and claims["sub"] == f"{name}-{party.tenant.word('subject')}":
                return name
        return "nobody"

    async def _own(self, exchange: Exchange) -> None:
        received = exchange.received
        if received.verb != "POST":
            await status(405, Allow="POST")(exchange)
            return
        party = self.whose(exchange)
        if "id" not in received.message:
            await status(202)(exchange)
            return
        match received.method:
            case _ if "own" in self.down and exchange.upstream is self.own:
                await status(503, self.said(party).encode())(exchange)
            case "subscriptions/listen":
                await self._listen(exchange, party)
            case "server/discover":
                await exchange.reply({"result": self._discovered(exchange, party)})
            case method if method in KEYS:
                await self._list(exchange, party, method)
            case "tools/call":
                await self._call(exchange, party)
            case "tasks/get" | "tasks/update" | "tasks/cancel":
                await self._task(exchange, party)
            case "resources/read" | "prompts/get" | "completion/complete":
                await self._get(exchange, party)
            case method:
                await error(-32601, "Method not found", method, http=404)(exchange)

    def _discovered(self, exchange: Exchange, party: Party) -> dict[str, Any]:
        upstream = exchange.upstream
        members = {"supportedVersions": upstream.supported, "capabilities": upstream.capabilities}
        if party.tenant is not None:
            members["instructions"] = f"Be kind to {party.tenant.word('data')}."
        return self.hinted(members, personal=True)

    def items(self, party: Party, method: str, server: str = "own") -> list[dict[str, Any]]:
        """Return what `own`, or `swap`, lists for somebody."""
        common = {
            "tools/list": list(COMMON),
            "prompts/list": ["hello"],
            "resources/list": ["note://common"],
            "resources/templates/list": ["common://{id}"],
        }[method]
        names, about = list(common), "nobody"
        if party.tenant is not None:
            names += names_of(party.tenant, self.extra.get(party.name, 0), page=server == "own")[method]
            about = party.tenant.word("data")
        match method:
            case "tools/list":
                return [tool(name, description=f"for {about}") for name in names]
            case "resources/list":
                return [{"uri": uri, "name": "note", "description": f"for {about}"} for uri in names]
            case "resources/templates/list":
                return [{"uriTemplate": uri, "name": "note"} for uri in names]
            case _:
                return [{"name": name, "description": f"for {about}"} for name in names]

    async def _list(self, exchange: Exchange, party: Party, method: str) -> None:
        cursor = exchange.received.params.get("cursor")
        word = "nobody" if party.tenant is None else party.tenant.word("data")
        if cursor is not None and not cursor.startswith(f"{word}-"):
            self.faults.append(f"own was sent a cursor of another by {party}")
            await error(-32602, "Invalid cursor", http=400)(exchange)
            return
        start = int(cursor.rpartition("-")[2]) if cursor else 0
        items = self.items(party, method, "own" if exchange.upstream is self.own else "swap")
        members: dict[str, Any] = {KEYS[method]: items[start : start + PAGE]}
        if start + PAGE < len(items):
            members["nextCursor"] = f"{word}-{start + PAGE}"
        await exchange.reply({"result": self.hinted(members, personal=True)})

    def said(self, party: Party, **members: Any) -> str:
        """Return what is answered to somebody: his words and who he is."""
        data = None if party.tenant is None else party.tenant.word("data")
        return json.dumps({"who": party.name, "data": data, **members})

    def knows(self, party: Party, method: str, name: str) -> bool:
        """Whether somebody may use this name or URI at `own`."""
        key = {"resources/list": "uri", "resources/templates/list": "uriTemplate"}.get(method, "name")
        if any(item[key] == name for item in self.items(party, method)):
            return True
        mine = None if party.tenant is None else f"note://{party.tenant.word('name')}/"
        return method == "resources/list" and mine is not None and name.startswith(mine)

    async def _get(self, exchange: Exchange, party: Party) -> None:
        received, params = exchange.received, exchange.received.params
        match received.method:
            case "resources/read" if self.knows(party, "resources/list", params["uri"]):
                said = self.said(party, uri=params["uri"])
                contents = [{"uri": params["uri"], "mimeType": "text/plain", "text": said}]
                await exchange.reply({"result": self.hinted({"contents": contents}, personal=True)})
            case "prompts/get" if self.knows(party, "prompts/list", params["name"]):
                said = self.said(party, arguments=params.get("arguments"))
                messages = [{"role": "user", "content": {"type": "text", "text": said}}]
                await exchange.reply({"result": complete({"messages": messages})})
            case "completion/complete" if self._completes(party, params["ref"]):
                values = [f"{params['argument']['value']}-{self.said(party)}"]
                completion = {"values": values, "total": 1, "hasMore": False}
                await exchange.reply({"result": complete({"completion": completion})})
            case _:
                await error(-32602, "There is no such thing", http=400)(exchange)

    def _completes(self, party: Party, ref: Mapping[str, str]) -> bool:
        if "name" in ref:
            return self.knows(party, "prompts/list", ref["name"])
        return self.knows(party, "resources/templates/list", ref["uri"])

    async def _call(self, exchange: Exchange, party: Party) -> None:
        params = exchange.received.params
        name, arguments = params["name"], params.get("arguments") or {}
        if not self.knows(party, "tools/list", name):
            await error(-32602, f"Unknown tool: {name}", http=400)(exchange)
            return
        said = {"content": [{"type": "text", "text": self.said(party, name=name, arguments=arguments)}]}
        match name:
            case "slow":
                await self._slow(exchange, arguments["nonce"], said)
            case "ask" if "inputResponses" not in params:
                asked = {
                    "resultType": "input_required",
                    "inputRequests": {"q": form(f"Who? {self.said(party)}")},
                    "requestState": f"{self.said(party)} {arguments['nonce']}",
                }
                await exchange.reply({"result": complete(asked)})
            case "ask":
                state = params.get("requestState")
                if state != f"{self.said(party)} {arguments['nonce']}":
                    self.faults.append(f"own was sent another's state by {party}: {state}")
                said = self.said(party, answers=params["inputResponses"], arguments=arguments)
                await exchange.reply({"result": complete({"content": [{"type": "text", "text": said}]})})
            case "fail":
                word = self.said(party, arguments=arguments)
                await error(-32602, f"not for {word}", {"why": word}, http=400)(exchange)
            case "work":
                word = "nobody" if party.tenant is None else party.tenant.word("data")
                made = {"resultType": "task", **self._made(f"{word}-{arguments['nonce']}", party)}
                await exchange.reply({"result": {**complete({}), **made}})
            case _:
                await exchange.reply({"result": complete(said)})

    def _made(self, id: str, party: Party, state: str = "working") -> dict[str, Any]:
        times = {"createdAt": "2026-11-30T10:00:00Z", "lastUpdatedAt": "2026-11-30T10:00:01Z"}
        return {"taskId": id, "status": state, "ttlMs": None, "statusMessage": self.said(party), **times}

    async def _task(self, exchange: Exchange, party: Party) -> None:
        id = exchange.received.params["taskId"]
        word = "nobody" if party.tenant is None else party.tenant.word("data")
        if not id.startswith(f"{word}-"):
            self.faults.append(f"own was asked for the task of another by {party}")
        if exchange.received.method == "tasks/get":
            await exchange.reply({"result": complete(self._made(id, party))})
        else:
            await exchange.reply({"result": complete({})})

    async def _slow(self, exchange: Exchange, nonce: str, said: Mapping[str, Any]) -> None:
        """Say how far it is, then wait to be let go."""
        shown = json.dumps(said)
        steps: list[Any] = []
        if (handle := token(exchange)) is not None:
            note = notification("notifications/progress", progressToken=handle, progress=1, message=shown)
            steps.append(event(note))
        if "io.modelcontextprotocol/logLevel" in exchange.received.meta:
            steps.append(event(notification("notifications/message", level="error", data=shown)))
        headers = {"Content-Type": "text/event-stream"}
        final = event({"jsonrpc": "2.0", "id": exchange.id, "result": complete(said)})
        self.waiting.add(nonce)
        self.reached.set()
        await exchange.respond(200, headers, [*steps, b": so far\n\n", self.gate(nonce), final])

    async def _listen(self, exchange: Exchange, party: Party) -> None:
        wanted = dict(exchange.received.params.get("notifications") or {})
        word = "nobody" if party.tenant is None else party.tenant.word("data")
        uris = [
            uri for uri in wanted.get("resourceSubscriptions", []) if self.knows(party, "resources/list", uri)
        ]
        tasks = [id for id in wanted.get("taskIds", []) if id.startswith(f"{word}-")]
        if len(tasks) < len(wanted.get("taskIds", [])):
            self.faults.append(f"own was asked to tell {party} of the task of another")
        await listen({**wanted, "resourceSubscriptions": uris, "taskIds": tasks})(exchange)

    def listens(self, party: Party) -> list[Listen]:
        """Return the streams on which `own` tells somebody of changes."""
        open = [*self.own.listens, *self.swap.listens]
        return [one for one in open if self.whose(one.exchange) is party]

    async def tell_list(self, party: Party, method: str) -> None:
        """Tell somebody that a list is another one now."""
        kind = {"tools/list": "tools", "prompts/list": "prompts"}.get(method, "resources")
        for one in self.listens(party):
            await one.notify(f"notifications/{kind}/list_changed")

    async def tell_updated(self, party: Party, uri: str) -> int:
        """Tell somebody that a resource of `own` is another one now; return on how many streams."""
        listens = [one for one in self.listens(party) if one.exchange.upstream is self.own]
        asking = [one for one in listens if uri in one.wanted.get("resourceSubscriptions", ())]
        for one in asking:
            await one.notify("notifications/resources/updated", uri=uri)
        return len(asking)

    async def tell_task(self, party: Party, id: str) -> None:
        """Tell somebody of a task."""
        for one in self.listens(party):
            if id in one.wanted.get("taskIds", ()):
                await one.notify("notifications/tasks", **self._made(id, party))

    # shared

    async def _shared(self, exchange: Exchange) -> None:
        received = exchange.received
        self.check_shared(received, f"Bearer {self.gateway_token}", "shared")
        if received.verb != "POST":
            await status(405, Allow="POST")(exchange)
            return
        if "id" not in received.message:
            await status(202)(exchange)
            return
        params, method = received.params, received.method
        match method:
            case _ if "shared" in self.down:
                await status(503, received.body)(exchange)
            case "subscriptions/listen":
                await listen()(exchange)
            case "server/discover":
                members = {
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": exchange.upstream.capabilities,
                }
                await exchange.reply(
                    {"result": self.hinted({**members, "instructions": self.number(hinted=True)})}
                )
            case "tools/list":
                names = ["echo", "kept", "slow", "ask", *(one[0] for one in self.only()[:1])]
                tools = [tool(name, description=self.listed()) for name in names]
                await exchange.reply({"result": self.hinted({"tools": tools})})
            case "prompts/list":
                prompts = [{"name": "hello", "description": self.listed()}]
                await exchange.reply({"result": self.hinted({"prompts": prompts})})
            case "resources/list":
                uris = self.documents()
                listed = [{"uri": uri, "name": self.listed()} for uri in uris]
                await exchange.reply({"result": self.hinted({"resources": listed})})
            case "resources/templates/list":
                await exchange.reply({"result": self.hinted({"resourceTemplates": []})})
            case "resources/read" if params["uri"] not in self.documents():
                await error(-32602, "Resource not found", {"uri": params["uri"]}, http=400)(exchange)
            case "resources/read":
                said = json.dumps({"uri": params["uri"], "number": self.number(hinted=True)})
                contents = [{"uri": params["uri"], "mimeType": "text/plain", "text": said}]
                await exchange.reply({"result": self.hinted({"contents": contents})})
            case "tools/call":
                await self._shared_call(exchange)
            case "prompts/get":
                said = json.dumps({"arguments": params.get("arguments"), "number": self.number()})
                messages = [{"role": "user", "content": {"type": "text", "text": said}}]
                await exchange.reply({"result": complete({"messages": messages})})
            case "completion/complete":
                values = [f"{params['argument']['value']}-{self.number()}"]
                completion = {"values": values, "total": 1, "hasMore": False}
                await exchange.reply({"result": complete({"completion": completion})})
            case _:
                await error(-32601, "Method not found", method, http=404)(exchange)

    async def _shared_call(self, exchange: Exchange) -> None:
        params = exchange.received.params
        name, arguments = params["name"], params.get("arguments") or {}
        text = json.dumps({"name": name, "arguments": arguments, "number": self.number()})
        said = {"content": [{"type": "text", "text": text}]}
        match name:
            case "slow":
                await self._slow(exchange, arguments["nonce"], said)
            case "ask" if "inputResponses" not in params:
                asked = {
                    "resultType": "input_required",
                    "inputRequests": {"q": form(f"Who? {json.dumps(arguments)}")},
                    "requestState": json.dumps(arguments),
                }
                await exchange.reply({"result": complete(asked)})
            case "ask":
                if params.get("requestState") != json.dumps(arguments):
                    self.faults.append("shared was sent the state of another call")
                text = json.dumps({"answers": params["inputResponses"], "arguments": arguments})
                await exchange.reply({"result": complete({"content": [{"type": "text", "text": text}]})})
            case _:
                await exchange.reply({"result": complete(said)})

    def only(self) -> list[tuple[str, str]]:
        """Return what `shared` has for the first tenant, and for the second."""
        tenants = [party.tenant for party in self.parties.values() if party.tenant is not None]
        return [only_of(one) for one in tenants] if self.restricted else []

    def documents(self) -> list[str]:
        """Return the URIs that `shared` has."""
        return ["doc://one", "doc://two", *(one[1] for one in self.only()[1:])]

    def check_shared(self, received: Received, expected: str | None, name: str) -> None:
        """Note a credential where it has no business."""
        if received.header("authorization") != expected:
            self.faults.append(f"{name} was shown {received.header('authorization')!r}")
        head = repr(received.raw_headers).encode()
        if (found := self._credentials.first(head + received.body)) is not None:
            self.faults.append(f"{name} was sent the token of {found.tenant}: {found.around!r}")


class OldServer(LegacyServer):
    """Remembers of each session a note, and who used it: that must be one party alone."""

    def __init__(self, premises: Premises) -> None:
        tools = [tool(name) for name in ("set_note", "get_note", "echo", "slow", "ask")]
        super().__init__(tools=tools, resources=[{"uri": "old://doc", "name": "doc"}])
        self.premises = premises
        self.forwarded = False
        """Whether it is shown the callers' own credentials."""
        self.users: dict[str, set[str]] = {}
        self.on("tools/call", self._called)
        self.on("resources/read", self._read)

    def check(self, received: Received, session: Session | None) -> None:
        super().check(received, session)
        premises = self.premises
        if not self.forwarded:
            premises.check_shared(received, None, "old")
        if session is None or "method" not in received.message:
            return
        for name, party in premises.parties.items():
            if party.tenant is not None and Search([party.tenant], ["data"]).first(received.body):
                self.users.setdefault(session.id, set()).add(name)
        if len(self.users.get(session.id, ())) > 1:
            premises.faults.append(f"a session of old is used by {self.users[session.id]}")

    async def _called(self, exchange: Exchange) -> None:
        params = exchange.received.params
        name, arguments = params["name"], params.get("arguments") or {}
        session = self.session_of(exchange.received)
        assert session is not None
        match name:
            case "set_note":
                session.note = arguments["note"]
                await plain(text(json.dumps({"kept": arguments["note"]})))(exchange)
            case "get_note":
                await plain(text(json.dumps({"note": session.note})))(exchange)
            case "slow":
                await streamed(lambda call: self._slowly(call, arguments))(exchange)
            case "ask":
                await streamed(lambda call: self._asking(call, arguments))(exchange)
            case _:
                await plain(text(json.dumps({"name": name, "arguments": arguments})))(exchange)

    async def _slowly(self, call: Call, arguments: Mapping[str, Any]) -> Any:
        if call.token is not None:
            shown = json.dumps(arguments)
            await call.notify("notifications/progress", progressToken=call.token, progress=1, message=shown)
        await self.premises.hold(arguments["nonce"])
        return {"arguments": arguments}

    async def _asking(self, call: Call, arguments: Mapping[str, Any]) -> Any:
        question = form(f"Who? {json.dumps(arguments)}")
        answered = await call.ask(question["method"], question["params"])
        return {"answers": {"q": answered.get("result")}, "arguments": arguments}

    async def _read(self, exchange: Exchange) -> None:
        uri = exchange.received.params["uri"]
        said = json.dumps({"uri": uri, "number": self.premises.number()})
        await plain({"contents": [{"uri": uri, "mimeType": "text/plain", "text": said}]})(exchange)
