"""Judges each message the gateway sends: by the official types, the official JSON schema, the envelope rules.

`tests/schemas/mcp-2026-07-28.schema.json` is the schema file of the specification, copied unchanged.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import mcp_types.methods as official
import pydantic
from jsonschema import Draft202012Validator, FormatChecker

from gateway.protocol.call import HOP_META, META_SERVER_INFO, META_SUBSCRIPTION_ID, MODERN_VERSION
from gateway.protocol.jsonrpc import DuplicateKey, split_strict
from gateway.protocol.methods import METHODS

SCHEMA = Path(__file__).parent.parent / "schemas" / "mcp-2026-07-28.schema.json"

RESULT_TYPES = {
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "prompts/list": "ListPromptsResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "tools/call": "CallToolResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
    "subscriptions/listen": "SubscriptionsListenResult",
}
ERROR_TYPES = {
    -32700: "ParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
}
FORBIDDEN_TO_MODERN = frozenset({-32002, *range(-32099, -32019)} - {-32020, -32021, -32022})

_formats = FormatChecker(formats=())


@_formats.checks("uri")
def _absolute_uri(value: object) -> bool:
    """Whether a rewritten URI still starts with an RFC 3986 scheme."""
    return not isinstance(value, str) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value) is not None


def check_message(method: str | None, message: bytes, version: str = MODERN_VERSION) -> dict[str, Any]:
    """Return a message the gateway sent about a request of `method`, decoded; fails if peers could refuse it.

    A result is judged as the answer to `method`, an error as any answer, a notification by its own method.
    """
    decoded = _decode(message)
    if decoded.get("jsonrpc") != "2.0":
        _fail(message, 'jsonrpc is not "2.0"')
    kinds = [kind for kind in ("method", "result", "error") if kind in decoded]
    if len(kinds) != 1:
        _fail(message, f"a message is one of request, result and error, this one has {kinds}")
    if "id" in decoded and not _is_id(decoded["id"]):
        _fail(message, "the id is neither a string nor an integer (E-03, E-06)")
    match kinds[0]:
        case "method":
            _check_notification(message, decoded, version)
        case "result":
            if "id" not in decoded:
                _fail(message, "a result without id")
            assert method is not None, "say which method the result answers"
            _check_result(message, decoded, method, version)
        case _:
            _check_error(message, decoded, version)
    return decoded


def check_result(method: str, result: bytes, version: str = MODERN_VERSION) -> dict[str, Any]:
    """Return a bare result decoded, judged like the message that carries it."""
    decoded: dict[str, Any] = check_message(
        method, b'{"jsonrpc":"2.0","id":1,"result":' + result + b"}", version
    )["result"]
    return decoded


def _decode(message: bytes) -> dict[str, Any]:
    def no_number(text: str) -> NoReturn:
        _fail(message, f"{text} is no JSON")

    decoded = json.loads(message.decode(), parse_constant=no_number)
    if not isinstance(decoded, dict):
        _fail(message, "a message is one object (E-01)")
    _check_unique_keys(message, message, ("result", "error", "params", "_meta"))
    return decoded


def _check_unique_keys(message: bytes, text: bytes, inside: tuple[str, ...]) -> None:
    """Fail when what the gateway wrote itself names a member twice; data further in is not its own."""
    try:
        members = split_strict(text)
    except DuplicateKey as error:
        _fail(message, str(error))
    for key in inside:
        if bytes(members.get(key, b""))[:1] == b"{":
            _check_unique_keys(message, bytes(members[key]), inside=("_meta",))


def _check_notification(message: bytes, decoded: dict[str, Any], version: str) -> None:
    if "id" in decoded:
        _fail(message, "a request towards a modern client (E-02), or a notification with an id (E-07)")
    method, params = decoded["method"], decoded.get("params")
    if method == "notifications/tasks":
        _check_task(message, params)
        _check_meta(message, params.get("_meta"), allowed={META_SUBSCRIPTION_ID})
        return
    if method == "notifications/cancelled" and version == MODERN_VERSION:
        _fail(message, "over HTTP a server ends a stream, and cancels nothing (L-10)")
    if (method, version) not in official.SERVER_NOTIFICATIONS:
        if method.startswith("notifications/"):
            _fail(message, f"{method} is no notification of {version}")
        return
    with _judged(message):
        official.parse_server_notification(method, version, params)
    if version == MODERN_VERSION:
        model = official.SERVER_NOTIFICATIONS[(method, version)].__name__
        _check_schema(message, model, decoded)
        _check_meta(message, (params or {}).get("_meta"), allowed={META_SUBSCRIPTION_ID})


def _check_result(message: bytes, decoded: dict[str, Any], method: str, version: str) -> None:
    result = decoded["result"]
    if not isinstance(result, dict):
        _fail(message, "a result is an object")
    if version != MODERN_VERSION:
        with _judged(message):
            official.validate_server_result(method, version, result)
        for key in ("resultType", "ttlMs", "cacheScope"):
            if key in result:
                _fail(message, f"{key} does not exist in {version} (X-11, X-13)")
        return
    kind = result.get("resultType")
    if not isinstance(kind, str):
        _fail(message, "resultType is missing or no string (E-08)")
    if kind == "task" or method == "tasks/get":
        if (kind == "task") != (method == "tools/call"):
            _fail(message, f"a task is no answer to {method}, or not called so (T-02, A-25)")
        _check_task(message, result)
        if META_SERVER_INFO not in result.get("_meta", {}):
            _fail(message, "the task does not say who answers (E-22)")
        _check_meta(message, result["_meta"], allowed={META_SERVER_INFO})
        return
    if kind not in ("complete", "input_required"):
        return
    if (method, version) in official.SERVER_RESULTS:
        with _judged(message):
            official.parse_server_result(method, version, result)
    name = "InputRequiredResult" if kind == "input_required" else RESULT_TYPES.get(method, "Result")
    _check_schema(message, name, result)
    _check_hints(message, result, method, complete=kind == "complete")
    _check_meta(message, result.get("_meta"), allowed={META_SERVER_INFO, META_SUBSCRIPTION_ID})
    if META_SERVER_INFO not in result.get("_meta", {}):
        _fail(message, "the result does not say who answers (E-22)")


def _check_task(message: bytes, result: dict[str, Any]) -> None:
    """Fail unless a task is as the extension has it, flat and under an id of ours (T-02, T-03)."""
    for key in ("taskId", "status", "createdAt", "lastUpdatedAt"):
        if not isinstance(result.get(key), str):
            _fail(message, f"a task's {key} is missing or no string (T-02)")
    if "ttlMs" not in result or not isinstance(result["ttlMs"], int | None):
        _fail(message, "a task's ttlMs is missing, or neither an integer nor null (T-02)")
    if odd := {"task", "ttl", "pollInterval", "requestState", "cacheScope"} & result.keys():
        _fail(message, f"a task has no {sorted(odd)} (T-03)")
    if not result["taskId"].isascii() or not result["taskId"].isprintable():
        _fail(message, "a task's id does not fit into a header as it is (T-06)")
    for key in ("inputRequests", "result", "error"):
        if key in result and not isinstance(result[key], dict):
            _fail(message, f"a task's {key} is no object (T-04)")
    if isinstance(result.get("result"), dict):
        _check_meta(message, result["result"].get("_meta"), allowed=set())


def _check_hints(message: bytes, result: dict[str, Any], method: str, *, complete: bool) -> None:
    row = METHODS.get(method)
    due = complete and row is not None and row.cacheable
    for key in ("ttlMs", "cacheScope"):
        if due and key not in result:
            _fail(message, f"{key} is missing (C-02)")
        if not due and key in result:
            _fail(message, f"{key} does not belong on this result (C-02)")
    if due and (type(result["ttlMs"]) is not int or result["ttlMs"] < 0):
        _fail(message, "ttlMs is no integer >= 0, as text too (C-02)")


def _check_error(message: bytes, decoded: dict[str, Any], version: str) -> None:
    error = decoded["error"]
    if not isinstance(error, dict) or type(error.get("code")) is not int:
        _fail(message, "the error has no integer code (E-10)")
    if not isinstance(error.get("message"), str):
        _fail(message, "the error has no message (E-10)")
    if version != MODERN_VERSION:
        return
    if error["code"] in FORBIDDEN_TO_MODERN:
        _fail(message, f"the code {error['code']} must not reach a modern client (E-11)")
    _check_schema(message, "JSONRPCErrorResponse", decoded)
    name = ERROR_TYPES.get(error["code"])
    if name is not None:
        # Some error definitions of the schema are whole messages, some the error object alone.
        properties = _schema()["$defs"][name].get("properties", {})
        _check_schema(message, name, decoded if "error" in properties else error)


def _check_meta(message: bytes, meta: Any, *, allowed: set[str]) -> None:
    if meta is None:
        return
    leaked = (HOP_META & set(meta)) - allowed
    if leaked:
        _fail(message, f"_meta keys of another hop leaked: {sorted(leaked)} (E-24)")


def _check_schema(message: bytes, name: str, instance: Any) -> None:
    for error in _validator(name).iter_errors(instance):
        _fail(message, f"{name}: {error.message} at {error.json_path}")


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(SCHEMA.read_bytes())
    return schema


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"#/$defs/{name}", "$defs": _schema()["$defs"]}, format_checker=_formats
    )


@contextmanager
def _judged(message: bytes) -> Iterator[None]:
    """Turn a refusal of the official types into a failed assertion that shows the message."""
    try:
        yield
    except pydantic.ValidationError as error:
        _fail(message, f"the official types refuse it: {error}")


def _is_id(id: object) -> bool:
    return isinstance(id, str | int) and not isinstance(id, bool)


def _fail(message: bytes, reason: str) -> NoReturn:
    shown = message if len(message) <= 2000 else message[:2000] + b"..."
    raise AssertionError(f"{reason}\n{shown.decode(errors='replace')}")
