"""Takes a call to the one upstream it is addressed to, and brings back what that upstream answers.

Names and URIs are the upstream's own on the way there and the gateway's on the way back; what may be kept
comes through the cache.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import assert_never

import msgspec

from gateway.cache.responses import Cached
from gateway.core.access import Kind
from gateway.core.capabilities import declares, needed, relayable, remembering
from gateway.core.catalogue import Caller, Catalogue
from gateway.core.dialogue import Dialogue, Refused, Turn, unknown_state
from gateway.core.directory import PUBLIC, Directory, Target
from gateway.core.federation import Federation
from gateway.core.results import (
    Asking,
    Dressed,
    Foreign,
    Promising,
    completion_target,
    dress_error,
    dress_notice,
    made,
    missing_capability,
    normalise,
    rewrite_params,
)
from gateway.core.reuse import origin, reuse
from gateway.core.router import Namespace, uri_problem
from gateway.core.shapes import InvalidResult
from gateway.core.tasks import Held, Tasks, unknown_task
from gateway.protocol.call import (
    Answer,
    Call,
    Emit,
    Notice,
    Partition,
    Principal,
    Reason,
    Request,
    Reuse,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.envelope import brief
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Json,
    Malformed,
    McpError,
    Members,
    is_null,
    is_object,
    split,
    text_of,
    text_or_none,
)
from gateway.protocol.methods import Method
from gateway.protocol.modern import check_param_headers
from gateway.protocol.trace import upward
from gateway.support import exchange
from gateway.support.metrics import Metrics
from gateway.upstream.pool import StaleSchema, UpstreamPool

log = logging.getLogger(__name__)

_NAMES = ("name", "uri", "taskId")
_MOST_SHOWN = 10_000
"""URIs of one result that are remembered: fewer than are remembered of all."""
_LISTED_BY = {"tools/call": "tools/list", "prompts/get": "prompts/list"}


class Courier:
    """Serves the calls of one endpoint that name what they are about."""

    def __init__(
        self,
        federation: Federation,
        *,
        pool: UpstreamPool,
        catalogue: Catalogue,
        directory: Directory,
        dialogue: Dialogue,
        tasks: Tasks,
        extensions: frozenset[str],
        baggage: frozenset[str],
        metrics: Metrics,
        server_info: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._federation = federation
        self._pool = pool
        self._catalogue = catalogue
        self._directory = directory
        self._dialogue = dialogue
        self._tasks = tasks
        self._baggage = baggage
        self._metrics = metrics
        self._server_info = server_info
        self._clock = clock
        self._relayable = remembering(partial(relayable, extensions=extensions))

    def __repr__(self) -> str:
        return f"<Courier {self._federation.endpoint}: {', '.join(self._federation.namespaces)}>"

    async def named(self, call: Call, row: Method, caller: Caller, emit: Emit) -> Answer:
        """Return what the tool or prompt of this name answers."""
        name = _string(call, "name")
        arguments = call.params.get("arguments")
        if not (is_null(arguments) or is_object(arguments)):
            raise McpError(INVALID_PARAMS, "arguments must be an object")
        turn = self._dialogue.resume(call, caller.principal)
        self._directory.check_offered(call.method, row, caller)
        list_method = _LISTED_BY[call.method]
        target = await self._directory.find(list_method, name, caller)
        exchange.named(name)
        _check_headers(call, target)
        try:
            return await self._called(turn, caller, emit, target)
        except StaleSchema:
            target = await self._directory.reread(list_method, name, caller)
        try:
            return await self._called(turn, caller, emit, target)
        except StaleSchema:
            raise UpstreamUnavailable(
                target.upstream, Reason.PROTOCOL, "it refuses the headers that its own schema asks for"
            ) from None

    async def _called(self, turn: Turn, caller: Caller, emit: Emit, target: Target) -> Answer:
        """Return a tool's or prompt's answer, from the cache if the operator wants this tool's kept there."""
        call, upstream, original = turn.call, target.upstream, target.original
        if turn.upstream not in (None, upstream):
            raise unknown_state()  # the name has become another upstream's since
        if call.method != "tools/call" or not self._catalogue.keeps_calls(upstream, original):
            return await self._asked(call, caller.principal, emit, upstream, original, target)
        if turn.goes_on:
            answer = await self._asked(call, caller.principal, emit, upstream, original, target)
            return Answer(answer.result, Reuse("bypass", "mrtr"))  # C-03
        declared = self._declared(call)
        request = self._request(call, caller.principal, upstream, original, declared, target, kept=True)
        lookup = self._catalogue.call_lookup(upstream, original, caller, request)
        if lookup is None:
            return await self._asked(call, caller.principal, emit, upstream, original, target)
        try:
            relay = self._relay(call, upstream, _while_there(emit))
            cached = await self._catalogue.call(lookup, request, relay)
        except McpError as error:
            await self._doubt(call, upstream, error)
            raise self._outward(error, upstream, call) from None
        dressed = await self._dressed(call, caller, upstream, cached, original)
        # Neither ttlMs nor scope is said of a call's result, in headers no more than in the body (C-02).
        now = self._clock()
        whence = origin(cached.source, cached.reason)
        told = reuse(whence, received=cached.entry.received, expires=now, scope="private", now=now)
        return Answer(dressed.segments(), told)

    async def read(self, call: Call, row: Method, caller: Caller, emit: Emit) -> Answer:
        """Return the resource of this URI, from the cache where it may come from there."""
        uri = _string(call, "uri")
        problem = uri_problem(uri)
        if problem is not None:
            raise McpError(INVALID_PARAMS, f"uri: {problem}")
        turn = self._dialogue.resume(call, caller.principal)
        self._directory.check_offered(call.method, row, caller)
        found = await self._owner(turn, uri, caller)
        if found is None:
            raise _no_resource(uri)
        upstream, original = found
        self._check(upstream, "resource", original, caller, hidden=_no_resource(uri))
        if turn.goes_on:
            answer = await self._asked(turn.call, caller.principal, emit, upstream, original)
            return Answer(answer.result, Reuse("bypass", "mrtr"))  # C-03
        try:
            return await self._cached_read(call, caller, emit, upstream, original)
        except McpError as error:
            if caller.sight is not None and _says_not_found(error, uri):
                raise _no_resource(uri) from None  # in one's own words, or it would show what rules hide
            if error.code == INVALID_PARAMS and is_null(error.data):
                # The URI is the only thing a read names, and clients look for it there (F-16).
                raise McpError.with_data(INVALID_PARAMS, error.message, {"uri": uri}) from None
            raise

    async def _owner(self, turn: Turn, uri: str, caller: Caller) -> tuple[UpstreamName, str] | None:
        """Return who is asked: whoever it was before, even if another has come to list the same URI."""
        if turn.upstream is None:
            return await self._directory.owner(uri, caller)
        original = self._federation.namespaces[turn.upstream].original_uri(uri)
        if original is None:
            raise unknown_state()  # the upstream's prefix has changed since
        return turn.upstream, original

    def _check(
        self, upstream: UpstreamName, kind: Kind, name: str, caller: Caller, *, hidden: McpError
    ) -> None:
        """Raise Forbidden, or what says that there is no such thing, unless the rules allow it (Z-08)."""
        verdict = self._directory.judge(upstream, kind, name, caller)
        if verdict is None:
            return
        if verdict.hidden:
            raise hidden
        verdict.check()

    async def _cached_read(
        self, call: Call, caller: Caller, emit: Emit, upstream: UpstreamName, original: str
    ) -> Answer:
        request = self._request(
            call, caller.principal, upstream, original, caller.profile.capabilities, kept=True
        )
        try:
            relay = self._relay(call, upstream, _while_there(emit))
            cached = await self._catalogue.read(upstream, original, caller, request, relay)
        except McpError as error:
            raise self._outward(error, upstream, call) from None
        dressed = await self._dressed(call, caller, upstream, cached, original, uri=original)
        entry, now = cached.entry, self._clock()
        # Where there are rules, nobody on the way may take it for everybody's (C-21, C-22).
        scope = entry.scope if caller.sight is None else "private"
        return Answer(
            dressed.segments(entry.remaining_ms(now), scope),
            reuse(
                origin(cached.source, cached.reason),
                received=entry.received,
                expires=entry.received + entry.ttl,
                scope=scope,
                now=now,
            ),
        )

    async def _dressed(
        self,
        call: Call,
        caller: Caller,
        upstream: UpstreamName,
        cached: Cached,
        original: str,
        *,
        uri: str | None = None,
    ) -> Dressed:
        """Return a kept result as this endpoint's clients are given it, made once per entry."""
        if cached.reason == "incomplete":  # a question, if anything: of this caller alone (C-03)
            result = cached.entry.result
            mine = caller.principal.who
            return await self._normalised(call, caller.principal, upstream, result, mine, original)
        key = f"{call.method} {self._federation.endpoint}"
        dressed = cached.entry.derived.get(key)
        if not isinstance(dressed, Dressed):
            everyone = cached.entry.scope == "public"
            partition = PUBLIC if everyone else caller.principal.who
            try:
                dressed = await self._normalised(
                    call, caller.principal, upstream, cached.entry.result, partition
                )
            except UpstreamUnavailable:
                if cached.source != "bypass":  # what no client can read must not be kept for its ttl
                    await self._catalogue.forget(upstream, call.method, "catalogue", uri)
                raise
            cached.entry.derived[key] = dressed
        return dressed

    async def complete(self, call: Call, row: Method, caller: Caller, emit: Emit) -> Answer:
        """Return the completions its upstream offers for a prompt's or template's argument."""
        kind, wanted = completion_target(call.params)
        self._directory.check_offered(call.method, row, caller)
        if kind == "ref/prompt":
            target = await self._directory.find("prompts/list", wanted, caller)
            exchange.named(wanted)
            owner = target.upstream, target.original
        else:
            found = await self._directory.template_owner(wanted, caller)
            if found is None:
                raise _no_resource(wanted)
            self._check(found[0], "resource", found[1], caller, hidden=_no_resource(wanted))
            owner = found
        if not self._directory.may_offer(owner[0], row):
            nothing: Members = {"completion": b'{"values":[]}'}
            return Answer(made(call.method, nothing, server_info=self._server_info).segments())  # F-34
        return await self._asked(call, caller.principal, emit, *owner)

    async def task(self, call: Call, row: Method, caller: Caller, emit: Emit) -> Answer:
        """Return what the upstream that works on a task answers about it (T-09)."""
        principal = caller.principal
        self._directory.check_extended(call.method, row, caller)
        if row.extension is not None and not declares(row.extension, call.meta.capabilities):
            raise missing_capability(needed(row.extension))
        if call.method == "tasks/update" and not is_object(call.params.get("inputResponses")):
            raise McpError(INVALID_PARAMS, "inputResponses must be an object")
        held = self._tasks.find(_string(call, "taskId"), principal)
        self._check(held.upstream, "tool", held.tool, caller, hidden=unknown_task())
        request = self._request(call, principal, held.upstream, held.original, self._declared(call))
        # Neither progress nor log messages are told of tasks (T-13).
        quiet = msgspec.structs.replace(request, log_level=None, wants_progress=False)
        result = await self._reply(call, emit, held.upstream, quiet)
        shown = self._shown(held.upstream, principal.who)
        with self._judging(call, held.upstream):
            dressed = await self._pool.apart.do(
                held.upstream,
                len(result),
                lambda: self._tasks.report(
                    call, held, result, namespace=shown, server_info=self._server_info
                ),
            )
        shown.tell()
        return Answer(dressed.segments())

    def told(
        self, call: Call, principal: Principal, exposed: str, held: Held, notice: Notice
    ) -> Notice | None:
        """Return what a listen is told of a task, None for what it cannot be told (T-13)."""
        shown = self._shown(held.upstream, principal.who)
        told = self._tasks.tell(notice, exposed, held, call.meta.capabilities, namespace=shown)
        shown.tell()
        return told

    def give_up(self, call: Call, principal: Principal) -> None:
        """Let what the state of a call leads to end: the client will not answer."""
        with suppress(McpError):  # it is none of ours any more
            turn = self._dialogue.resume(call, principal)
            if turn.upstream is not None:
                self._give_up(turn.upstream, turn.call.params, principal)

    def report(self, call: Call, principal: Principal, key: str, params: Members) -> None:
        """Tell who asked something inside a call how far the client is with its answer (9.3)."""
        with suppress(McpError):  # it is none of ours any more
            turn = self._dialogue.resume(call, principal)
            state = text_or_none(turn.call.params.get("requestState"))
            if turn.upstream is not None and state is not None:
                context = self._catalogue.context(principal)
                self._pool.report(turn.upstream, state, context, key, params)

    def on_withdrawn(self, call: Call, principal: Principal, key: str, tell: Callable[[], None]) -> None:
        """Have it told once the answer to a question is not wanted any more (9.5)."""
        with suppress(McpError):  # it is none of ours any more
            turn = self._dialogue.resume(call, principal)
            state = text_or_none(turn.call.params.get("requestState"))
            if turn.upstream is not None and state is not None:
                context = self._catalogue.context(principal)
                self._pool.on_withdrawn(turn.upstream, state, context, key, tell)

    async def foreign(self, call: Call, caller: Caller, emit: Emit) -> Answer:
        """Return what an upstream answers to a method that is not known here (K-08)."""
        unknown = McpError(METHOD_NOT_FOUND, f"Method not found: {brief(call.method)}")
        upstream = self._federation.carrier(call.method, caller.sight)
        if upstream is None:
            raise unknown
        self._check(upstream, "method", call.method, caller, hidden=unknown)
        principal = caller.principal
        request = self._request(call, principal, upstream, "", self._declared(call))
        try:
            result = await self._reply(
                call, emit, upstream, msgspec.structs.replace(request, named_by=_named_by(call))
            )
        except McpError as error:
            if caller.sight is not None and error.code == METHOD_NOT_FOUND:
                raise unknown from None  # in our own words, or those would show what rules hide
            raise
        return Answer((await self._normalised(call, principal, upstream, result, principal.who)).segments())

    async def _asked(
        self,
        call: Call,
        principal: Principal,
        emit: Emit,
        upstream: UpstreamName,
        original: str,
        target: Target | None = None,
    ) -> Answer:
        """Return what one upstream answers now; nothing of it is kept."""
        declared = self._declared(call)
        request = self._request(call, principal, upstream, original, declared, target)
        result = await self._reply(call, emit, upstream, request)
        dressed = await self._normalised(call, principal, upstream, result, principal.who, original)
        return Answer(dressed.segments())

    async def _reply(self, call: Call, emit: Emit, upstream: UpstreamName, request: Request) -> Json:
        try:
            reply = await self._pool.call(upstream, request, self._relay(call, upstream, emit))
        except McpError as error:
            await self._doubt(call, upstream, error)
            raise self._outward(error, upstream, call) from None
        return reply.result

    def _request(
        self,
        call: Call,
        principal: Principal,
        upstream: UpstreamName,
        original: str,
        declared: bytes,
        target: Target | None = None,
        *,
        kept: bool = False,
    ) -> Request:
        """Return what the upstream is asked; without baggage where it may be `kept` for others."""
        return Request(
            call.method,
            rewrite_params(call.method, call.params, original),
            capabilities=declared,
            log_level=call.meta.log_level,
            wants_progress=call.meta.progress_token is not None,
            vendor=upward(call.meta.vendor, () if kept else self._baggage),
            header_params=() if target is None else target.item.header_params,
            authorization=self._catalogue.forwarded(upstream, principal),
            context=self._catalogue.context(principal),
        )

    def _relay(self, call: Call, upstream: UpstreamName, emit: Emit) -> Emit:
        async def relay(notice: Notice) -> None:
            dressed = dress_notice(
                notice, progress_token=call.meta.progress_token, log_level=call.meta.log_level
            )
            if dressed is None:
                self._metrics.dropped(upstream, "notification")
            else:
                await emit(dressed)

        return relay

    async def _normalised(
        self,
        call: Call,
        principal: Principal,
        upstream: UpstreamName,
        result: Json,
        partition: Partition | None,
        original: str = "",
    ) -> Dressed:
        """Return what this caller is given; `partition` are those who may be shown the URIs in it (F-11).

        `original` is what was called: whoever may not call it any more may not ask about its task, either.
        """
        shown, server_info = self._shown(upstream, partition), self._server_info
        work = partial(self._pool.apart.do, upstream, len(result))
        with self._judging(call, upstream):
            outcome = await work(
                lambda: normalise(call.method, result, namespace=shown, server_info=server_info)
            )
            match outcome:
                case Dressed():
                    dressed = outcome
                case Asking() as asking:
                    try:
                        dressed = await work(
                            lambda: self._dialogue.ask(
                                call, principal, asking, namespace=shown, server_info=server_info
                            )
                        )
                    except InvalidResult:
                        self._give_up(upstream, asking.members, principal)
                        raise
                case Promising() as promising:
                    dressed = await work(
                        lambda: self._tasks.promise(
                            call,
                            principal,
                            promising,
                            namespace=shown,
                            server_info=server_info,
                            tool=original,
                        )
                    )
                case Foreign():
                    if not self._directory.shares_extension(upstream, call.meta.capabilities):
                        raise InvalidResult("resultType is not one that was asked for")
                    dressed = outcome.dressed(call.method, server_info=server_info)
                case never:
                    assert_never(never)
        shown.tell()
        return dressed

    def _give_up(self, upstream: UpstreamName, members: Members, principal: Principal) -> None:
        """Tell whoever waits under this state that nobody answers."""
        state = text_or_none(members.get("requestState"))
        if state is not None:
            self._pool.give_up(upstream, state, self._catalogue.context(principal))

    def _shown(self, upstream: UpstreamName, partition: Partition | None) -> "_Shown":
        namespace = self._federation.namespaces[upstream]
        return _Shown(namespace, lambda uri: self._directory.show(partition, uri, upstream))

    @contextmanager
    def _judging(self, call: Call, upstream: UpstreamName) -> Iterator[None]:
        """Make an invalid result the upstream's failure, unless the client is to be told what it lacks."""
        try:
            yield
        except InvalidResult as error:
            log.warning("upstream %s: invalid result of %s: %s", upstream, call.method, error)
            self._metrics.dropped(upstream, "response")
            if isinstance(error, Refused):
                raise error.told from None
            raise UpstreamUnavailable(upstream, Reason.PROTOCOL, f"{call.method}: {error}") from None

    def _outward(self, error: McpError, upstream: UpstreamName, call: Call) -> McpError:
        namespace = self._federation.namespaces[upstream]
        return dress_error(error, namespace=namespace, declared=call.meta.capabilities)

    async def _doubt(self, call: Call, upstream: UpstreamName, error: McpError) -> None:
        """Forget a list that promised what the upstream now says it does not have (U-33)."""
        list_method = _LISTED_BY.get(call.method)
        unknown = error.code == INVALID_PARAMS and _UNKNOWN.search(error.message)
        if list_method is not None and (unknown or error.code == METHOD_NOT_FOUND):
            await self._catalogue.forget(upstream, list_method, "catalogue")

    def _declared(self, call: Call) -> bytes:
        """Return the capabilities to declare upstream on a call's behalf."""
        return self._relayable(call.meta.capabilities)


_UNKNOWN = re.compile(
    r"\b(unknown|unrecognized|no such|invalid) (tool|prompt)\b|\b(tool|prompt)\b.{,200}\bnot (found|known)\b",
    re.IGNORECASE,
)
"""What SDKs say of a name they do not serve; a tool's own complaints must not cost everybody the list."""


class _Shown:
    """A namespace that tells which URIs it left as they are: only provenance routes those (F-11).

    It may be used in a thread; what is to be told is told by the event loop, afterwards.
    """

    def __init__(self, namespace: Namespace, show: Callable[[str], None]) -> None:
        self._namespace = namespace
        self._show = show
        self._left: dict[str, None] = {}
        self.upstream = namespace.upstream

    def expose_uri(self, uri: str) -> str:
        exposed = self._namespace.expose_uri(uri)
        if exposed == uri and len(self._left) < _MOST_SHOWN:
            self._left[uri] = None
        return exposed

    def tell(self) -> None:
        """Have the URIs remembered that were left as they are."""
        for uri in self._left:
            self._show(uri)


def _while_there(emit: Emit) -> Emit:
    """Return an emit that a caller who left does not break: others wait for the same answer (C-34)."""

    async def relay(notice: Notice) -> None:
        with suppress(ConnectionError):
            await emit(notice)

    return relay


def _check_headers(call: Call, target: Target) -> None:
    """Raise when a mirrored argument and its header disagree (S-14)."""
    if call.method != "tools/call" or not target.item.header_params:
        return
    if call.param_headers is None:
        return
    problem = check_param_headers(target.item.header_params, call.param_headers, call.params.get("arguments"))
    if problem is not None:
        raise McpError(HEADER_MISMATCH, problem)


def _named_by(call: Call) -> str | None:
    """Return the parameter that the client's Mcp-Name mirrors, None when it mirrors none (K-08)."""
    if call.name_header is None:
        return None
    params = call.params
    return next((key for key in _NAMES if text_of(params.get(key)) == call.name_header), None)


def _string(call: Call, key: str) -> str:
    text = text_of(call.params.get(key))
    if text is None:
        raise McpError(INVALID_PARAMS, f"{key} must be a string")
    return text


def _says_not_found(error: McpError, uri: str) -> bool:
    """Whether an upstream says of the resource that was asked for that it is not there (F-16)."""
    if error.code != INVALID_PARAMS:
        return False
    if error.data is None or is_null(error.data):
        return True
    try:
        return text_or_none(split(error.data).get("uri")) == uri
    except Malformed:
        return False


def _no_resource(uri: str) -> McpError:
    return McpError.with_data(INVALID_PARAMS, "Resource not found", {"uri": uri})
