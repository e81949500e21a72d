"""Time zones, unit conversion and timers as an MCP server; its tool list changes while timers run."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

from deploy.demo.resource_hints import resource_hints
from deploy.demo.serving import serve_as_asked

ZONES = sorted(available_timezones())
READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True)

UNITS: dict[str, tuple[str, float]] = {
    "mm": ("length", 0.001),
    "cm": ("length", 0.01),
    "m": ("length", 1),
    "km": ("length", 1000),
    "in": ("length", 0.0254),
    "ft": ("length", 0.3048),
    "mi": ("length", 1609.344),
    "g": ("mass", 0.001),
    "kg": ("mass", 1),
    "oz": ("mass", 0.028349523125),
    "lb": ("mass", 0.45359237),
    "s": ("time", 1),
    "min": ("time", 60),
    "h": ("time", 3600),
    "d": ("time", 86400),
}


class Moment(BaseModel):
    """A time in one zone."""

    time: str
    zone: str
    utc_offset: str


class Conversion(BaseModel):
    """A value in another unit."""

    value: float
    unit: str


@dataclass
class Timer:
    """A running timer."""

    name: str
    ends: datetime

    def left(self, now: datetime) -> float:
        return max(0.0, round((self.ends - now).total_seconds(), 1))


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone; raises ToolError with what was wrong."""
    if name not in ZONES:
        raise ToolError(f"Unknown time zone {name!r}; the resource time://zones lists them all")
    return ZoneInfo(name)


def moment(at: datetime, zone: ZoneInfo) -> Moment:
    local = at.astimezone(zone)
    return Moment(time=local.isoformat(timespec="seconds"), zone=zone.key, utc_offset=local.strftime("%z"))


def convert(value: float, unit: str, to: str) -> Conversion:
    """Return a value in another unit of the same kind; raises ToolError."""
    for known in (unit, to):
        if known not in UNITS:
            raise ToolError(f"Unknown unit {known!r}; known are {', '.join(UNITS)}")
    (kind, size), (other, other_size) = UNITS[unit], UNITS[to]
    if kind != other:
        raise ToolError(f"{unit} is a {kind}, {to} a {other}")
    return Conversion(value=value * size / other_size, unit=to)


def build(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> MCPServer:
    """Return the server; the clock is handed in."""
    timers: dict[str, Timer] = {}
    server = MCPServer(
        "clock",
        title="Clock and units",
        version="1.0.0",
        instructions="Zones are IANA names such as Europe/Berlin. stop_timer exists while a timer runs.",
        log_level="WARNING",
        cache_hints={
            "server/discover": CacheHint(3_600_000, "public"),
            "tools/list": CacheHint(5_000, "public"),
            "prompts/list": CacheHint(300_000, "public"),
            "resources/list": CacheHint(60_000, "public"),
            "resources/templates/list": CacheHint(300_000, "public"),
            "resources/read": CacheHint(1_000, "public"),
        },
        middleware=[
            resource_hints(
                {
                    "time://zones": CacheHint(86_400_000, "public"),
                    "time://timers": CacheHint(2_000, "private"),
                }
            )
        ],
    )

    @server.tool(title="What time is it?", annotations=ToolAnnotations(read_only_hint=True))
    def current_time(
        zone: Annotated[str, Field(description="IANA name, e.g. Europe/Berlin")] = "UTC",
    ) -> Moment:
        """Tell the time in a zone."""
        return moment(now(), zone_of(zone))

    @server.tool(title="Convert a time", annotations=READ_ONLY)
    def convert_time(
        time: Annotated[str, Field(description="ISO 8601, e.g. 2026-12-24T18:00")], zone: str, to: str
    ) -> Moment:
        """Tell what a local time in one zone is in another."""
        try:
            local = datetime.fromisoformat(time)
        except ValueError:
            raise ToolError(f"{time!r} is no ISO 8601 time") from None
        return moment(local.replace(tzinfo=zone_of(zone)), zone_of(to))

    @server.tool(title="Convert a unit", annotations=READ_ONLY)
    def convert_unit(value: float, unit: str, to: str) -> Conversion:
        """Convert a length, a mass or a time."""
        return convert(value, unit, to)

    async def stop_timer(name: str, ctx: Context) -> str:
        """Stop a running timer; this tool exists only while there is one."""
        if timers.pop(name, None) is None:
            raise ToolError(f"There is no timer {name!r}")
        if not timers:
            server.remove_tool("stop_timer")
            await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("time://timers")
        return f"Stopped {name}"

    @server.tool(title="Start a timer")
    async def start_timer(name: str, minutes: Annotated[float, Field(gt=0, le=1440)], ctx: Context) -> str:
        """Start a timer; its time left is in the resource time://timers."""
        if len(timers) >= 100 and name not in timers:
            raise ToolError("A hundred timers run already")
        first = not timers
        timers[name] = Timer(name, now() + timedelta(minutes=minutes))
        if first:
            server.add_tool(stop_timer, title="Stop a timer")
            await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("time://timers")
        return f"Started {name} for {minutes:g} min"

    @server.resource("time://zones", title="All time zones", mime_type="application/json")
    def zones() -> str:
        """The names of all time zones; good for a day, for everybody."""
        return json.dumps(ZONES)

    @server.resource("time://timers", name="timers", title="Running timers", mime_type="application/json")
    def running() -> str:
        """Seconds left on every timer; changes all the time."""
        return json.dumps({timer.name: timer.left(now()) for timer in timers.values()})

    @server.resource(
        "time://zone/{+zone}", name="zone", title="The time in a zone", mime_type="application/json"
    )
    def in_zone(zone: str) -> str:
        """The time in one zone; good for a second."""
        if zone not in ZONES:
            raise ResourceNotFoundError(f"Unknown time zone {zone!r}")
        return moment(now(), ZoneInfo(zone)).model_dump_json()

    @server.prompt(title="Plan a meeting")
    def plan_meeting(zone: str, other_zone: str) -> str:
        """Ask for a time that suits two zones."""
        here, there = moment(now(), zone_of(zone)), moment(now(), zone_of(other_zone))
        return (
            f"It is {here.time} in {zone}, {there.time} in {other_zone}. Propose a meeting in working hours."
        )

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        values = [
            zone for zone in sorted(available_timezones()) if zone.lower().startswith(argument.value.lower())
        ]
        return Completion(values=values[:100], total=len(values), has_more=len(values) > 100)

    return server


def main() -> None:
    serve_as_asked(build(), __doc__, 9102)


if __name__ == "__main__":
    main()
