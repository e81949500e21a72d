"""Reads the events of a status page, as a browser does."""

import json
from typing import Any

import aiohttp


class Events:
    """The events of a status page, as a browser reads them."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next event and its data."""
        event = (await self.response.content.readline()).decode().removeprefix("event: ").strip()
        data = (await self.response.content.readline()).decode().removeprefix("data: ")
        assert await self.response.content.readline() == b"\n"
        return event, json.loads(data)

    async def until_down(self, upstream: str) -> dict[str, Any]:
        """Return the first change that says that an upstream is down."""
        while True:
            event, data = await self.next()
            assert event == "change"
            if data.get("upstreams", {}).get(upstream, {}).get("state") == "down":
                return data
