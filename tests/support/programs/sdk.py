"""A server of the official SDK over stdin and stdout, which serves whichever era it is greeted in."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("sdk", instructions="add numbers")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def count(to: int, context: Context) -> str:  # type: ignore[type-arg]
    """Report progress on the way."""
    for step in range(1, to + 1):
        await context.report_progress(step, to)
    return "counted"


@server.resource("notes://one")
def note() -> str:
    """The only note."""
    return "first"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


if __name__ == "__main__":
    server.run("stdio")
