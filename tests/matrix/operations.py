"""What every client does with every server, and in one word what came of it.

A word is `+` where all is well, `as-text` or `no-icons` where something is told otherwise, `untold` where
nothing is; the code of an error and what it names; or `told:CODE` where the server's question was answered
with an error, and it made the best of that.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

from tests.matrix.clients import LISTS, TOOLS_CHANGED, MatrixClient, Refused
from tests.support.programs import matrix

WORKS = "+"
Operation = Callable[[MatrixClient, str], Awaitable[str]]
_TAGS = count(1)
_DEADLINE = 20.0
_NAMED = re.compile(r"capability that was not declared: ([\w.]+)")


async def outcome(operation: Operation, client: MatrixClient, upstream: str) -> str:
    """Return in a word what came of it."""
    try:
        async with asyncio.timeout(_DEADLINE):
            return await operation(client, upstream)
    except Refused as error:
        return _refusal(error)
    except Exception as error:  # one cell's; the others are of interest all the same
        return f"failed: {error!r}"


def _refusal(error: Refused) -> str:
    named = _NAMED.search(error.message)
    required = error.data.get("requiredCapabilities") if isinstance(error.data, dict) else None
    if named is not None:
        return f"{error.code}:{named[1]}"
    return f"{error.code}" if required is None else f"{error.code}:{_dotted(required)}"


def _dotted(required: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}.{part}" if part else name for name in required for part in required[name] or [""]
    )


async def lists(client: MatrixClient, upstream: str) -> str:
    """Each list whole, though the server cuts it into pages."""
    for method in LISTS:
        items = await client.listed(method)
        names = {item.get("uri") or item.get("uriTemplate") or item["name"] for item in items}
        assert len(names) == len(items)
        wanted = {
            "tools/list": {f"{upstream}__{name}" for name in matrix.TOOLS},
            "prompts/list": {f"{upstream}__{name}" for name in matrix.PROMPTS},
            "resources/list": {f"{upstream}+{uri}" for uri in matrix.RESOURCES},
            "resources/templates/list": {f"{upstream}+{uri}" for uri in matrix.TEMPLATES},
        }[method]
        assert wanted <= names, wanted - names
    return WORKS


async def progress(client: MatrixClient, upstream: str) -> str:
    """A call that reports how far it is."""
    assert said(await client.call(f"{upstream}__count")) == "counted"
    assert client.heard.progress == [1, 2, 3]
    return WORKS


async def cancel(client: MatrixClient, upstream: str) -> str:
    """A call that its client takes back ends at the server."""
    tag = f"{next(_TAGS)}"
    await client.abandon(f"{upstream}__hang", {"tag": tag})
    while tag not in json.loads(said(await client.call(f"{upstream}__cancelled"))):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return WORKS


async def log_level(client: MatrixClient, upstream: str) -> str:
    """Log messages come to those who asked, from the level on they asked for."""
    await client.call(f"{upstream}__log")
    assert client.heard.logs == []
    await client.log_from("warning")
    await client.call(f"{upstream}__log")
    assert client.heard.logs == ["warning", "error"]
    return WORKS


async def read(client: MatrixClient, upstream: str) -> str:
    """A resource."""
    [contents] = (await client.read(f"{upstream}+{matrix.NOTE}"))["contents"]
    assert contents["uri"] == f"{upstream}+{matrix.NOTE}"
    assert contents["text"].startswith(matrix.NOTE)
    return WORKS


async def read_missing(client: MatrixClient, upstream: str) -> str:
    """A resource that is not there."""
    return str(await client.read(f"{upstream}+matrix://nowhere"))


async def list_changed(client: MatrixClient, upstream: str) -> str:
    """Who asked to be told that the tools change is told, and finds them changed."""
    extra = f"{upstream}__extra"

    async def there() -> bool:
        return extra in [item["name"] for item in await client.listed("tools/list")]

    before = await there()
    async with client.watching():
        await client.call(f"{upstream}__change")
        assert await client.heard.changes.get() == TOOLS_CHANGED
        while await there() == before:
            assert await client.heard.changes.get() == TOOLS_CHANGED
    return WORKS


async def updated(client: MatrixClient, upstream: str) -> str:
    """Who asked to be told of a resource is told, and reads what is new."""
    uri = f"{upstream}+{matrix.NOTE}"
    await client.read(uri)
    async with client.watching(uri):
        number = said(await client.call(f"{upstream}__update"))
        # That nothing comes shows in what comes later; thrice, as the two may take different ways.
        for _ in range(3):
            await client.call(f"{upstream}__change")
            while (change := await client.heard.changes.get()) != TOOLS_CHANGED:
                assert change == ("notifications/resources/updated", uri)
                if (await client.read(uri))["contents"][0]["text"] == f"{matrix.NOTE} {number}":
                    return WORKS
        assert (await client.read(uri))["contents"][0]["text"] == f"{matrix.NOTE} {number}"
    return "untold"


async def prompt(client: MatrixClient, upstream: str) -> str:
    """A prompt with an argument."""
    [message] = (await client.prompt(f"{upstream}__greet", {"name": "Ann"}))["messages"]
    assert message["content"]["text"] == "greet Ann"
    return WORKS


async def complete(client: MatrixClient, upstream: str) -> str:
    """What an argument may become."""
    found = await client.complete(f"{upstream}__greet", "name", "an")
    assert found["completion"] == {"values": ["ann", "anton"], "total": 2, "hasMore": False}
    return WORKS


async def rich(client: MatrixClient, upstream: str) -> str:
    """A tool with a title, an icon and a schema of its result, which is data and a link."""
    items = {item["name"]: item for item in await client.listed("tools/list")}
    tool = items[f"{upstream}__rich"]
    told = await client.call(f"{upstream}__rich")
    there = {
        "icons": "icons" in tool,
        "title": tool.get("title") == "Rich",
        "schema": "outputSchema" in tool,
        "data": told.get("structuredContent") == {"sum": 3},
        "link": [block.get("uri") for block in told["content"]] == [None, f"{upstream}+{matrix.NOTE}"],
    }
    lacking = {name for name, is_there in there.items() if not is_there}
    if lacking == there.keys():
        texts = [block["text"] for block in told["content"]]
        assert texts[0] == '{"sum": 3}'
        assert f"{upstream}+{matrix.NOTE}" in texts[1]
        return "as-text"
    return f"no-{'-'.join(sorted(lacking))}" if lacking else WORKS


async def values(client: MatrixClient, upstream: str) -> str:
    """Data that is no object."""
    told = await client.call(f"{upstream}__values")
    if told.get("structuredContent") == [1, 2]:
        return WORKS
    assert "structuredContent" not in told
    assert json.loads(said(told)) == [1, 2]
    return "as-text"


def question(tool: str, answer: Mapping[str, Any], *, shown: str | None = None) -> Operation:
    """Return the operation of a call whose tool asks, and tells what it was answered."""

    async def ask(client: MatrixClient, upstream: str) -> str:
        told = json.loads(said(await client.call(f"{upstream}__{tool}", {"tag": f"{next(_TAGS)}"})))
        if "refused" in told:
            assert client.heard.shown == []
            return f"told:{told['refused']}"
        assert {key: told.get(key) for key in answer} == answer, told
        assert client.heard.shown == ([f"[{upstream}] {shown}"] if shown else [])
        return WORKS

    return ask


def said(result: Mapping[str, Any]) -> str:
    return str(result["content"][0]["text"])


_PARIS = {"content": {"type": "text", "text": "Paris"}}
OPERATIONS: Mapping[str, Operation] = {
    "lists": lists,
    "call with progress": progress,
    "cancel": cancel,
    "log level": log_level,
    "read": read,
    "read what is not there": read_missing,
    "lists changed": list_changed,
    "resource updated": updated,
    "prompt": prompt,
    "complete": complete,
    "rich result": rich,
    "data that is no object": values,
    "form": question("form", {"action": "accept", "content": {"name": "Ann"}}, shown="Your name?"),
    "page": question("page", {"action": "accept"}, shown="Sign in"),
    "page before the call": question("need_page", {"action": "accept"}, shown="Sign in"),
    "sampling": question("sample", _PARIS),
    "sampling with tools": question("sample_tools", _PARIS),
    "roots": question("roots", {"roots": [{"uri": "file:///home/ann"}]}),
}
