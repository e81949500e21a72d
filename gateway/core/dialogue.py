"""Carries an upstream's questions to the client and the answers back, and keeps nothing in between.

What the upstream wants to remember travels with the client, in a token that opens for that caller and that
request only and leads back to that upstream (M-09). Keys and clock are those of the seal handed in.
"""

from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec

from gateway.cache.policy import call_target
from gateway.config import Config
from gateway.core.capabilities import asked_of, undeclared
from gateway.core.federation import Federation
from gateway.core.results import Asking, Dressed, made, missing_capability, rewrite_params
from gateway.core.shapes import (
    BLOCK,
    ICON,
    PLAIN_BLOCK,
    InvalidResult,
    Pieces,
    Shape,
    UriSpace,
    changes_of,
    is_array,
    object_pieces,
)
from gateway.protocol.call import Call, Principal, UpstreamName
from gateway.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Json,
    Malformed,
    McpError,
    Members,
    encode,
    is_null,
    is_object,
    items,
    join,
    split,
    text_of,
)
from gateway.protocol.methods import METHODS
from gateway.support.seal import Seal, SealBroken, SealTooLarge

_PURPOSE = "requestState"
_MODES = frozenset({"form", "url"})
_INPUT = frozenset({"inputResponses", "requestState"})

_TOOL = Shape(
    frozenset({"_meta", "annotations", "description", "execution", "icons", "outputSchema", "title"}),
    inside={"icons": ICON},
)
_SAID = Shape(
    by_type={
        "text": PLAIN_BLOCK,
        "image": PLAIN_BLOCK,
        "audio": PLAIN_BLOCK,
        "tool_use": Shape(frozenset({"_meta"})),
        "tool_result": Shape(frozenset({"_meta", "isError"}), inside={"content": BLOCK}),
    }
)
_ASKED = {
    "elicitation/create": Shape(frozenset({"_meta", "mode"})),
    "sampling/createMessage": Shape(
        frozenset(
            {
                "_meta",
                "includeContext",
                "metadata",
                "modelPreferences",
                "stopSequences",
                "systemPrompt",
                "temperature",
                "toolChoice",
                "tools",
            }
        ),
        inside={
            "messages": Shape(frozenset({"_meta"}), inside={"content": _SAID}),
            "modelPreferences": Shape(
                frozenset({"costPriority", "hints", "intelligencePriority", "speedPriority"})
            ),
            "tools": _TOOL,
        },
    ),
    "roots/list": Shape(frozenset({"_meta"})),
}
"""What an upstream may ask for (M-02), and what is known of the params; names and schemas stay (F-06)."""


class Round(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token holds: who asked, and that upstream's own state, None where it gave none (M-10)."""

    upstream: str
    state: str | None


@dataclass(frozen=True, slots=True)
class Turn:
    """A client's request as it goes on, the upstream's own state in the place of our token."""

    call: Call
    goes_on: bool = False
    """Whether it brings input or a state: nothing of it comes from the cache or stays there (C-03)."""
    upstream: UpstreamName | None = None
    """Who asked; None for a first attempt, whatever input it brings (M-11)."""


class Refused(InvalidResult):
    """A question that is not passed on; unlike other invalid results, this one is explained to the client."""

    def __init__(self, reason: str, told: McpError) -> None:
        super().__init__(reason)
        self.told = told


class Dialogue:
    """Serves the requests of one endpoint that are answered in several rounds."""

    def __init__(self, federation: Federation, config: Config, seal: Seal) -> None:
        self._federation = federation
        self._limits = config.limits
        self._single_tenant = config.cache.single_tenant
        self._labels = {
            name: name if label is None else label
            for name in federation.namespaces
            for label in (config.upstreams[name].label,)
        }
        self._seal = seal

    def __repr__(self) -> str:
        return f"<Dialogue {self._federation.endpoint}>"

    def resume(self, call: Call, principal: Principal) -> Turn:
        """Return where and how a request goes on; nobody needs to be asked for that.

        Raises McpError for a state that is none of ours, is changed or too old, or that another caller or
        another request was given (M-11): which of these, is not said.
        """
        answers, raw = call.params.get("inputResponses"), call.params.get("requestState")
        if not (is_null(answers) or is_object(answers)):
            raise McpError(INVALID_PARAMS, "inputResponses must be an object")
        if raw is None or is_null(raw):
            return Turn(call, goes_on=not is_null(answers))
        held = self._held(raw, call, principal)
        if held is None or held.upstream not in self._federation.namespaces:
            raise unknown_state()
        params = {key: value for key, value in call.params.items() if key != "requestState"}
        if held.state is not None:
            params["requestState"] = encode(held.state)
        return Turn(
            msgspec.structs.replace(call, params=params), goes_on=True, upstream=UpstreamName(held.upstream)
        )

    def ask(
        self, call: Call, principal: Principal, asking: Asking, *, namespace: UriSpace, server_info: Json
    ) -> Dressed:
        """Return an upstream's question as the client is given it, with a token to come back with (M-10).

        Raises InvalidResult for what no client can answer, Refused when the client is to be told why.
        """
        members = asking.members
        try:
            questions = self.questions(members, call.meta.capabilities, namespace)
            state = _state(members)
            if questions is None and state is None:
                raise InvalidResult("input_required without inputRequests or requestState")  # M-02
        except InvalidResult:
            raise
        except Malformed as error:
            raise InvalidResult(str(error)) from None
        token = self._token(Round(namespace.upstream, state), call, principal)
        changes: dict[str, Pieces | None] = {
            "resultType": [b'"input_required"'],
            "requestState": [encode(token)],
            "inputRequests": questions,
        }
        dressed = made(call.method, members, server_info=server_info, changes=changes)
        return replace(dressed, cacheable=False)  # M-04

    def questions(self, members: Members, declared: Json, namespace: UriSpace) -> Pieces | None:
        """Return the inputRequests as a client that declared this is given them, None when there are none.

        Raises InvalidResult for what no client can answer, Refused for what this one cannot (M-05).
        """
        requests = _requests(members)
        if requests is None:
            return None
        _check_declared(requests, declared)
        return self._shown(requests, namespace)

    def _held(self, raw: Json, call: Call, principal: Principal) -> Round | None:
        try:
            token = text_of(raw)
            if token is None:
                return None
            return _unpack.decode(self._seal.open(_PURPOSE, token, bound_to=self._bound(call, principal)))
        except (SealBroken, Malformed, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _token(self, held: Round, call: Call, principal: Principal) -> str:
        largest = self._limits.request_state
        try:
            if held.state is not None and len(held.state.encode()) > largest:
                raise SealTooLarge
            return self._seal.seal(
                _PURPOSE, _pack(held), bound_to=self._bound(call, principal), ttl=self._wait(principal)
            )
        except SealTooLarge:
            reason = f"its requestState is larger than limits.request_state, {largest} bytes"
            told = f"upstream {held.upstream} asks for input with a state too large to hand on"
            raise Refused(reason, McpError(INTERNAL_ERROR, told)) from None

    def _wait(self, principal: Principal) -> float:
        """Return how long the client may take; an unbound token is anybody's, and lives shorter (M-12)."""
        anonymous = principal.partition is None and not self._single_tenant
        return self._limits.anonymous_input_wait if anonymous else self._limits.input_wait

    def _bound(self, call: Call, principal: Principal) -> bytes:
        """Return what a token is bound to: caller, endpoint, method, and all that is asked, input aside."""
        named_by = METHODS[call.method].named_by or ""
        sent = rewrite_params(call.method, call.params, text_of(call.params.get(named_by)) or "")
        asked = {key: raw for key, raw in sent.items() if key not in _INPUT}
        one_spelling = call_target(asked)  # None: parsers differ about it, so it has to be the very text
        text = join(asked) if one_spelling is None else one_spelling.encode()
        place = (self._federation.endpoint, call.method)
        return _pack((holder(principal), *place, sha256(text).digest()))

    def _shown(self, requests: Members, namespace: UriSpace) -> Pieces:
        """Return the requests as the client is given them: keys and all that is not ours stay (M-03)."""
        label = self._labels[namespace.upstream]
        shown: dict[str, Pieces | None] = {}
        for key, raw in requests.items():
            request = split(raw)
            changes = _request_changes(request, namespace, label)
            if changes:
                shown[key] = object_pieces(request, changes)
        return object_pieces(requests, shown)


def holder(principal: Principal) -> bytes:
    """Return whom a token handed to this caller is bound to; those without a credential are alike (M-12).

    That is the person, where one was verified, for credentials are renewed in the middle of what people do.
    Unlike a partition it is no work of any key, so tokens open while the key that sealed them is there.
    """
    if principal.subject is not None:
        return sha256(b"\0" + principal.id.encode("utf-8", "surrogatepass")).digest()
    if principal.authorization is None:
        return b""
    return sha256(principal.authorization.encode("utf-8", "surrogatepass")).digest()


def unknown_state() -> McpError:
    """Return what whoever brings a state is told that does not belong to this request, or not any more."""
    return McpError(INVALID_PARAMS, "requestState: not one given for this request, or too old")


def _requests(members: Members) -> Members | None:
    """Return what is asked by key, each of a kind that clients know (M-02)."""
    raw = members.get("inputRequests")
    if raw is None or is_null(raw):
        return None
    if not is_object(raw):
        raise InvalidResult("inputRequests is not an object")
    requests = split(raw)
    for request in requests.values():
        method = text_of(split(request).get("method")) if is_object(request) else None
        if method not in _ASKED:
            raise InvalidResult("inputRequests holds what is no elicitation, sampling or roots request")
        params = split(request).get("params")
        if not (is_object(params) or (method == "roots/list" and is_null(params))):
            raise InvalidResult(f"a request for {method} has no params")
        if params is not None and is_object(params):
            _check_params(method, split(params))
    return requests


def _check_params(method: str, params: Members) -> None:
    """Raise for what says which client could answer, where it makes no sense."""
    mode = params.get("mode")
    if method == "elicitation/create" and not is_null(mode) and text_of(mode) not in _MODES:
        raise InvalidResult("an elicitation is neither a form nor a URL")
    if method == "sampling/createMessage":
        messages = params.get("messages")
        if messages is None or not is_array(messages) or not all(map(is_object, items(messages))):
            raise InvalidResult("a sampling request's messages are no array of objects")


def _state(members: Members) -> str | None:
    raw = members.get("requestState")
    if is_null(raw):
        return None
    state = text_of(raw)
    if state is None:
        raise InvalidResult("requestState is not a string")
    return state


def _check_declared(requests: Members, declared: Json) -> None:
    """Raise unless the client said that it can answer all of this (M-05)."""
    missing = undeclared(asked_of(requests), declared)
    if missing is not None:
        raise Refused("it asks for input that was not offered to it", missing_capability(missing))


def _request_changes(request: Members, namespace: UriSpace, label: str) -> dict[str, Pieces | None]:
    method, raw = text_of(request.get("method")) or "", request.get("params")
    if raw is None or is_null(raw):
        return {} if raw is None else {"params": None}
    params = split(raw)
    changes = changes_of(params, _ASKED[method], namespace)
    if method == "elicitation/create":
        message = text_of(params.get("message"))
        if message is None:
            raise InvalidResult("an elicitation has no message")
        if label:
            # Hosts show who asks, and know only the gateway (M-23).
            changes["message"] = [encode(f"[{label}] {message}")]
    elif method == "sampling/createMessage":
        context = params.get("includeContext")
        if not is_null(context) and text_of(context) != "none":
            changes["includeContext"] = [b'"none"']  # "this server" would be all of them (M-24)
    return {"params": object_pieces(params, changes)} if changes else {}


_pack = msgspec.msgpack.Encoder().encode

_unpack = msgspec.msgpack.Decoder(Round)
