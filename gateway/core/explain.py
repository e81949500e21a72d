"""Answers an operator who asks what the cache would do for a request now, part by part, and why.

It asks no upstream and changes nothing: what is not known stays unknown, and the answer says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gateway.cache.explain import Found
from gateway.cache.policy import CALL, READ
from gateway.cache.responses import ResponseCache
from gateway.config import Config, nobody
from gateway.core import views
from gateway.core.access import LISTED, Policy, Verdict, place_of, said_of, somebody
from gateway.core.capabilities import is_well_formed, list_profile, relayable
from gateway.core.catalogue import Caller, Catalogue
from gateway.core.directory import Directory, Target
from gateway.core.federation import Federation
from gateway.core.lists import Page, parse_page
from gateway.core.results import rewrite_params
from gateway.core.reuse import FRESH, Origin, joined, origin
from gateway.core.views import Views, Whole
from gateway.protocol.call import Principal, Request, UpstreamName
from gateway.protocol.jsonrpc import Json, Malformed, encode, split, value
from gateway.protocol.methods import METHODS, Method

_LISTED_BY = {"tools/call": "tools/list", "prompts/get": "prompts/list"}
_PAGES = 100
_METHOD = Origin("bypass", "method")
_ABSENT = Origin("miss", "absent")
_DOWN = Origin("bypass", "upstream-down")

Report = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Question:
    """A request to be explained, with name or uri as clients write it and what such a client can do."""

    method: str
    name: str | None = None
    uri: str | None = None
    capabilities: bytes = b"{}"
    arguments: bytes | None = None
    """Those of a call, as JSON; None stands for a call that has none."""
    caller: str | None = None
    """Who asks, as `access` names callers; None = whoever the credential proves."""
    scopes: tuple[str, ...] = ()
    """What such a caller's token grants."""


class Unanswerable(Exception):
    """The question makes no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one upstream has to do with an answer."""

    upstream: UpstreamName
    whence: Origin | None
    """None for an upstream that is not asked at all."""
    pages: Sequence[Found] = ()
    note: str | None = None
    verdict: Verdict | None = None
    """What the rules say of the caller's use of it, where there are rules and it is about one thing."""

    def report(self) -> Report:
        said: dict[str, object] = {"upstream": self.upstream}
        if self.verdict is not None:
            rule = place_of(self.verdict.rule)
            said["access"] = {"allowed": self.verdict.allowed, "rule": rule, "why": said_of(self.verdict)}
        if self.whence is not None:
            said |= _verdict(self.whence)
        if self.note is not None:
            said["note"] = self.note
        return {**said, "lookups": [page.report() for page in self.pages]}


def check(question: Question) -> Method:
    """Return the row of the method asked about; raises Unanswerable for what no request looks like."""
    row = METHODS.get(question.method)
    if row is None or row.kind == "listen":
        known = ", ".join(name for name, each in METHODS.items() if each.kind != "listen")
        raise Unanswerable(f"the method {question.method[:128]!r} is none of {known}")
    if row.kind == "read" and question.uri is None:
        raise Unanswerable(f"{question.method} needs the uri that is read")
    if question.uri is not None and row.kind != "read":
        raise Unanswerable(f"{question.method} is not asked for by uri")
    if question.name is not None and (row.kind in ("read", "discover", "complete", "task")):
        raise Unanswerable(f"{question.method} is not asked for by name")
    if question.arguments is not None:
        if question.method != CALL or question.name is None:
            raise Unanswerable(f"arguments go with {CALL} and the name of a tool")
        if not _is_object(question.arguments):
            raise Unanswerable('arguments are a JSON object, as a client sends them, such as {"q": 1}')
    if not _fit(question.capabilities):
        raise Unanswerable("capabilities are a JSON object of objects, as a client declares them")
    return row


def overall(shares: Sequence[Share], view: Whole | None) -> Origin:
    """Return what becomes of the whole: a remembered join answers, whatever its parts are by now.

    Without a part that could not be had, the rest is answered and not kept (C-28).
    """
    if view is not None:
        return FRESH
    asked = [share.whence for share in shares if share.whence is not None]
    if not asked:
        return _ABSENT
    if all(whence == _DOWN for whence in asked):
        return _DOWN
    return joined(asked, partial=_DOWN in asked)


class Explainer:
    """Knows one endpoint."""

    def __init__(
        self,
        federation: Federation,
        config: Config,
        directory: Directory,
        catalogue: Catalogue,
        remembered: Views,
        cache: ResponseCache,
        policy: Policy | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._federation = federation
        self._config = config
        self._directory = directory
        self._catalogue = catalogue
        self._remembered = remembered
        self._cache = cache
        self._policy = policy
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Explainer {self._federation.endpoint}>"

    async def explain(self, question: Question, principal: Principal) -> Report:
        """Return what would happen to this request of this caller, as one JSON object.

        Raises Unanswerable for a question that no request could ask.
        """
        row = check(question)
        extensions = frozenset(self._config.extensions)
        if question.caller is not None:
            known = somebody(self._config, question.caller, question.scopes)
            principal = replace(principal, id=known.id, scopes=known.scopes)
        sight = None if self._policy is None else self._policy.sight(principal)
        caller = Caller(principal, list_profile(question.capabilities, extensions=extensions), sight)
        view: Whole | None = None
        match row.kind:
            case "discover" | "list":
                owner = views.owner(principal, single_tenant=self._config.cache.single_tenant)
                epoch = self._cache.epoch
                view = self._remembered.get(question.method, caller.profile.digest, owner, epoch, sight)
                shares, problem = await self._joined(question, row, caller)
            case "read":
                shares, problem = await self._read(question.uri or "", caller)
            case _:
                shares, problem = await self._called(question, caller)
        if any(share.verdict is not None and not share.verdict.allowed for share in shares):
            view = None
        whence = overall(shares, view) if row.cacheable or shares else _METHOD
        said: dict[str, object] = {
            "endpoint": self._federation.endpoint,
            "method": question.method,
            "caller": _caller(principal, self._config),
            "profile": caller.profile.digest,
            **_verdict(whence),
            "view": _view(view, self._clock()) if row.kind in ("discover", "list") else None,
            "parts": [share.report() for share in shares],
        }
        if question.caller is not None and (strange := nobody(question.caller, self._config)) is not None:
            said["warning"] = strange
        return said if problem is None else {**said, "problem": problem}

    async def _joined(
        self, question: Question, row: Method, caller: Caller
    ) -> tuple[list[Share], str | None]:
        names = list(self._federation.namespaces)
        if question.name is not None:
            target = self._directory.listed(question.method, question.name, caller)
            if target is None:
                return [], f"nothing that was listed lately is called {question.name[:128]!r}"
            verdict = self._verdict(question.method, target, caller)
            share = await self._share(target.upstream, question.method, row, caller)
            return [replace(share, verdict=verdict)], None
        return [await self._share(name, question.method, row, caller) for name in names], None

    def _verdict(self, list_method: str, target: Target, caller: Caller) -> Verdict | None:
        return self._directory.judge(target.upstream, LISTED[list_method], target.original, caller)

    async def _share(self, name: UpstreamName, method: str, row: Method, caller: Caller) -> Share:
        if name not in self._directory.shown(caller, row):
            return Share(name, None, note="the rules of access hide all of it from this caller")
        if not self._directory.may_offer(name, row) or self._catalogue.lacks(name, method, caller):
            return Share(name, None, note=f"it serves no {method}, so it is not asked")
        pages = await self._pages(name, method, caller)
        return Share(name, joined((origin(p.outlook, p.reason) for p in pages), partial=False), pages)

    async def _pages(self, name: UpstreamName, method: str, caller: Caller) -> list[Found]:
        """Return every page of a list as far as the next one's cursor is known."""
        found: list[Found] = []
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(found) < _PAGES:
            seen.add(cursor)
            found.append(await self._catalogue.explain(name, method, caller, cursor))
            cursor = _next_cursor(method, found[-1])
            if cursor is None:
                break
        return found

    async def _read(self, uri: str, caller: Caller) -> tuple[list[Share], str | None]:
        everything = msgspec.structs.replace(caller, sight=None)
        owner = self._directory.known_owner(uri, caller) or self._directory.known_owner(uri, everything)
        if owner is None:
            return [], "no upstream is known to have this uri; one that was not listed yet may"
        upstream, original = owner
        verdict = self._directory.judge(upstream, "resource", original, caller)
        if verdict is not None and not verdict.allowed:
            return [Share(upstream, None, note=said_of(verdict), verdict=verdict)], None
        found = await self._catalogue.explain(upstream, READ, caller, original)
        return [Share(upstream, origin(found.outlook, found.reason), [found], verdict=verdict)], None

    async def _called(self, question: Question, caller: Caller) -> tuple[list[Share], str | None]:
        list_method = _LISTED_BY.get(question.method)
        if list_method is None or question.name is None:
            return [], None
        target = self._directory.listed(list_method, question.name, caller)
        if target is None:
            return [], f"nothing that was listed lately is called {question.name[:128]!r}"
        verdict = self._verdict(list_method, target, caller)
        if verdict is not None and not verdict.allowed:
            return [Share(target.upstream, None, note=said_of(verdict), verdict=verdict)], None
        if question.method == CALL and self._catalogue.keeps_calls(target.upstream, target.original):
            return [replace(await self._call(question, caller, target), verdict=verdict)], None
        return [Share(target.upstream, _METHOD, verdict=verdict)], None

    async def _call(self, question: Question, caller: Caller, target: Target) -> Share:
        """Return what would become of a call of a tool whose results are kept, with just these arguments."""
        upstream = target.upstream
        params: dict[str, Json] = {"name": encode(question.name)}
        if question.arguments is not None:
            params["arguments"] = question.arguments
        request = Request(
            CALL,
            rewrite_params(CALL, params, target.original),
            capabilities=relayable(question.capabilities, extensions=frozenset(self._config.extensions)),
        )
        lookup = self._catalogue.call_lookup(upstream, target.original, caller, request)
        if lookup is None:
            note = "not kept: too long, a member named twice, or a number that not everybody reads alike"
            return Share(upstream, _METHOD, note=note)
        found = await self._catalogue.explain_call(lookup)
        none = None if question.arguments is not None else "a call without arguments, not even {}"
        return Share(upstream, origin(found.outlook, found.reason), [found], none)


def _next_cursor(method: str, found: Found) -> str | None:
    if found.entry is None or METHODS[method].kind != "list":
        return None
    page = found.entry.derived.get("page")
    if not isinstance(page, Page):
        try:
            page = parse_page(method, found.entry.result)
        except Malformed:
            return None
    return page.next_cursor


def _verdict(whence: Origin) -> Report:
    return {"verdict": whence.source.upper(), "reason": whence.reason}


def _view(view: Whole | None, now: float) -> Report:
    if view is None:
        return {"remembered": False}
    return {
        "remembered": True,
        "scope": view.scope,
        "age": round(max(0.0, now - min(view.received, now)), 3),
        "remaining": round(max(0.0, view.expires - now), 3),
    }


def _caller(principal: Principal, config: Config) -> str:
    if principal.partition is not None:
        return principal.partition[:16]
    return "everyone" if config.cache.single_tenant else "anonymous"


def _is_object(arguments: bytes) -> bool:
    try:
        split(arguments)
        value(arguments)
    except Malformed:
        return False
    return True


def _fit(capabilities: bytes) -> bool:
    try:
        return is_well_formed(capabilities)
    except Malformed:
        return False
