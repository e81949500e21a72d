"""A client's listen streams on a running gateway, acknowledged as a test expects."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.support.running import Exchange, Reachable, Running

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"

TOOLS = {"toolsListChanged": True}
PROMPTS = {"promptsListChanged": True}
EVERY_LIST = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


@asynccontextmanager
async def listening(
    gateway: Reachable, wanted: Mapping[str, Any], granted: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Exchange]:
    """Open a listen; its first message must grant this much, by default all that it wants (L-03)."""
    async with gateway.open("subscriptions/listen", {"notifications": wanted}, **options) as stream:
        first = await stream.event()
        assert first["method"] == ACKNOWLEDGED
        assert first["params"]["notifications"] == (wanted if granted is None else granted)
        assert first["params"]["_meta"] == {SUBSCRIPTION: options.get("id", 1)}
        yield stream


async def told(stream: Exchange) -> tuple[str, Any]:
    """Return the next notice in short: its method, and the URI it is about."""
    notice = await stream.event()
    return notice["method"], notice["params"].get("uri")


async def quiet(gateway: Running) -> str:
    """Wait until nothing is being found out or told any more; return what the hub looks like then."""
    while " due" in (hub := repr(gateway.runtime.hub)) or "Lane" in hub:  # noqa: ASYNC110 - nothing says so
        await asyncio.sleep(0.002)
    return hub


def uris(*each: str) -> dict[str, Any]:
    """Return the filter that asks for these resources."""
    return {"resourceSubscriptions": list(each)}
