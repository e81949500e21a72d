"""The client command of the suite's client scenarios: drives the suite's mock server through a gateway.

Run by the suite as `python -m tests.conformance.drive URL`: starts a gateway in front of URL and makes the
calls of the scenario with the official SDK's client. With --direct the client talks to URL itself, with
--mode legacy it begins with `initialize`.
"""

import argparse
import asyncio
import json
import os
from typing import Any

import mcp_types as t
from mcp import Client, MCPError

from tests.support.processes import gateway

VERSION = "2026-07-28"
SAMPLES = {"string": "text", "integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}}


def arguments_for(tool: t.Tool) -> dict[str, object]:
    """Return arguments that a tool's schema accepts."""
    properties = tool.input_schema.get("properties", {})
    return {name: SAMPLES.get(schema.get("type"), "text") for name, schema in properties.items()}


async def call_everything(client: Client) -> None:
    """Call every tool, read every resource, get every prompt."""
    for tool in (await client.list_tools()).tools:
        await client.call_tool(tool.name, arguments_for(tool))
    for resource in (await client.list_resources()).resources:
        await client.read_resource(resource.uri)
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name, {argument.name: "text" for argument in prompt.arguments or []})


async def call_as_told(client: Client) -> None:
    """Make the calls that the suite hands over."""
    await client.list_tools()
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def echo_schema(client: Client) -> None:
    """Send a tool's schema back as it arrived."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    echo = tools.pop("json_schema_echo")
    (focal,) = tools.values()
    await client.call_tool(echo.name, {"schema": focal.input_schema})


async def ask_for_tools(client: Client) -> None:
    """List tools of a server that advertises none: the gateway may refuse that itself."""
    try:
        await client.list_tools()
    except MCPError as error:
        if error.code != t.METHOD_NOT_FOUND:
            raise


async def call_tools(client: Client) -> None:
    """Call every tool that is listed."""
    for tool in (await client.list_tools()).tools:
        await client.call_tool(tool.name, arguments_for(tool))


STORIES = {
    "request-metadata": ask_for_tools,
    "http-standard-headers": call_everything,
    "http-custom-headers": call_as_told,
    "json-schema-2020-12-preservation": echo_schema,
}


async def accept_anything(context: object, params: t.ElicitRequestParams) -> t.ElicitResult:
    """Agree, with the defaults of the form (SEP-1034)."""
    given: dict[str, Any] = {"confirmed": True}
    if isinstance(params, t.ElicitRequestFormParams):
        fields = params.requested_schema["properties"]
        given = {name: field["default"] for name, field in fields.items() if "default" in field} or given
    return t.ElicitResult(action="accept", content=given)


async def drive(url: str, scenario: str, mode: str) -> None:
    async with Client(
        url, mode=mode, elicitation_callback=accept_anything, read_timeout_seconds=10
    ) as client:
        await STORIES.get(scenario, call_tools)(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--mode", choices=("modern", "legacy"), default="modern")
    options = parser.parse_args()
    mode = VERSION if options.mode == "modern" else "legacy"
    upstreams = json.dumps({"mock": {"url": options.url, "prefix": ""}})
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    if options.direct:
        asyncio.run(drive(options.url, scenario, mode))
        return
    with gateway(upstreams) as running:
        asyncio.run(drive(running.endpoint, scenario, mode))


if __name__ == "__main__":
    main()
