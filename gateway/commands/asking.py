"""The commands that ask a running gateway: `explain` and `purge`."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from gateway.commands.given import header_of, load, no_address
from gateway.commands.printing import FINE, PROBLEMS, WRONG, complain, plain, table, warn

_LONGEST_ARGUMENTS = 64 * 1024


def explain(arguments: argparse.Namespace) -> int:
    """Print what the cache of the running gateway would do with a request, and why."""
    if arguments.admin is not None and (refusal := no_address("admin", arguments.admin)) is not None:
        return refusal
    settings = load(arguments, instead={} if arguments.admin is None else {"admin": arguments.admin})
    question = {"method": arguments.method}
    if arguments.endpoint is not None:
        question["endpoint"] = arguments.endpoint
    if arguments.target is not None:
        question["uri" if arguments.method == "resources/read" else "name"] = arguments.target
    if arguments.capabilities is not None:
        question["capabilities"] = arguments.capabilities
    if arguments.arguments is not None:
        if len(arguments.arguments.encode(errors="surrogateescape")) > _LONGEST_ARGUMENTS:
            return complain("no call with arguments as long as these is kept", "ask about others", code=WRONG)
        question["arguments"] = arguments.arguments
    if arguments.caller is not None:
        question["caller"] = arguments.caller
    if arguments.scopes is not None:
        question["scopes"] = arguments.scopes
    from gateway import admin_client

    try:
        authorization = None if arguments.token_env is None else header_of(arguments.token_env)
        status, answer = admin_client.explain(settings, question, authorization)
    except admin_client.Unreachable as error:
        return complain(str(error), error.advice, code=WRONG if error.settled else PROBLEMS)
    if status != 200:
        return _refused(status, answer)
    code = PROBLEMS if "problem" in answer else FINE
    if "warning" in answer and not arguments.json:
        warn(str(answer["warning"]))
    if arguments.json:
        print(json.dumps(answer, ensure_ascii=False))
        return code
    print(_explained(answer))
    if code:
        advice = "ask the gateway for the list first; explain fetches nothing"
        return complain(plain(str(answer["problem"])), advice, code=code)
    return code


def _explained(answer: Mapping[str, Any]) -> str:
    """Return the parts of an answer as lines: what each would do and why, and what its key is made of."""
    head = f"{answer['endpoint']} {answer['method']} for {answer['caller']}: {_judged(answer)}"
    rows: list[tuple[str, str, str]] = []
    if (view := answer["view"]) is not None:
        details = f"{view['scope']}, {_times(view)}" if view["remembered"] else "not remembered"
        rows.append(("joined answer", "", details))
    for part in answer["parts"]:
        allowed = part["access"]["why"] if "access" in part else ""
        rows.append((part["upstream"], _judged(part), part.get("note", allowed)))
        for page, lookup in enumerate(part["lookups"], 1):
            rows.append(
                (f"  page {page}" if len(part["lookups"]) > 1 else "", _judged(lookup), _stored(lookup))
            )
            key = ", ".join(f"{name} {text}" for name, text in lookup["key"].items() if text is not None)
            rows.append(("", "key", key))
    return f"{plain(head)}\n{table(rows)}" if rows else plain(head)


def _judged(said: Mapping[str, Any]) -> str:
    return f"{said['verdict']} {said['reason']}" if "verdict" in said else "-"


def _stored(lookup: Mapping[str, Any]) -> str:
    if "arm" not in lookup:
        return "nothing is kept"
    by_rule = f", by {' and '.join(lookup['overrides'])}" if lookup["overrides"] else ""
    return f"{lookup['arm']} arm, scope {lookup['scope']}, {_times(lookup)}, {lookup['bytes']} bytes{by_rule}"


def _times(said: Mapping[str, Any]) -> str:
    whole = f" of {said['ttl']:g}s" if "ttl" in said else ""
    return f"age {said['age']:.1f}s, {said['remaining']:.1f}s left{whole}"


def purge(arguments: argparse.Namespace) -> int:
    """Make the running gateway forget, and print what it forgot."""
    if arguments.admin is not None and (refusal := no_address("admin", arguments.admin)) is not None:
        return refusal
    settings = load(arguments, instead={} if arguments.admin is None else {"admin": arguments.admin})
    if arguments.upstream is not None and arguments.upstream not in settings.upstreams:
        known = ", ".join(settings.upstreams)
        return complain(f"there is no upstream {arguments.upstream}", f"choose one of {known}", code=WRONG)
    named = {"upstream": arguments.upstream, "method": arguments.method, "uri": arguments.uri}
    wish: dict[str, object] = {name: text for name, text in named.items() if text is not None}
    from gateway import admin_client

    try:
        authorization = None
        if arguments.token_env is not None:
            authorization, wish["caller"] = header_of(arguments.token_env), True
        status, answer = admin_client.purge(settings, wish or {"all": True}, authorization)
    except admin_client.Unreachable as error:
        return complain(str(error), error.advice, code=WRONG if error.settled else PROBLEMS)
    if status != 200:
        return _refused(status, answer)
    if arguments.json:
        print(json.dumps(answer, ensure_ascii=False))
        return FINE
    purged: list[dict[str, str | None]] = answer["purged"]
    print("forgotten:")
    print(table([(one["upstream"] or "", one["method"] or "everything", _just(one)) for one in purged]))
    return FINE


def _just(purged: Mapping[str, str | None]) -> str:
    """Return what else narrowed a purge."""
    return purged["uri"] or (f"of caller {purged['caller']}" if purged.get("caller") else "")


def _refused(status: int, answer: Mapping[str, Any]) -> int:
    """Say why the running gateway did not do it; 400 means that it was asked for what cannot be."""
    reason = plain(str(answer.get("error", f"status {status}")))
    return complain(f"the gateway refused: {reason}", code=WRONG if status == 400 else PROBLEMS)
