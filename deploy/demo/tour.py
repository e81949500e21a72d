"""What to try against the running demo: comments and curl commands that are a shell script as printed."""

import json
import re
import shlex

VERSION = "2026-07-28"
# A proxy that the environment names leads away from loopback.
CURL = "curl --noproxy '*'"
ABLE = "io.modelcontextprotocol/clientCapabilities"
META = {"io.modelcontextprotocol/protocolVersion": VERSION, ABLE: {}}
ASKED = {ABLE: {"elicitation": {"form": {}}}}
TASKS = {ABLE: {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


def request(
    endpoint: str,
    method: str,
    params: dict[str, object] | None = None,
    *,
    name: str | None = None,
    meta: dict[str, object] | None = None,
    authorization: str | None = None,
    flags: str = "-sS -w '\\n'",
) -> str:
    """Return the curl command of one MCP request, with every header that the protocol wants.

    `$word` stands for a variable of the shell.
    """
    headers = [
        ["content-type: application/json", "accept: application/json, text/event-stream"],
        [f"mcp-protocol-version: {VERSION}", f"mcp-method: {method}"],
    ]
    if name is not None:
        headers[1].append(f"mcp-name: {name}")
    if authorization is not None:
        headers.append([f"authorization: {authorization}"])
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        "params": {**(params or {}), "_meta": {**META, **(meta or {})}},
    }
    lines = [f"{CURL} {flags} {endpoint}"]
    lines += [" ".join(f"-H {quote(header)}" for header in line) for line in headers]
    lines.append(f"-d {quote(json.dumps(body, separators=(',', ':'), ensure_ascii=False))}")
    return " \\\n  ".join(lines)


def quote(text: str) -> str:
    """Return a shell word of this text, in which only `$word` means more than it says."""
    return re.sub(r"\$(\w+)", r"'$\1'", shlex.quote(text))


def older(endpoint: str, tool: str, arguments: dict[str, object]) -> str:
    """Return what a client of 2025-11-25 does: shake hands, keep the session's id, call."""

    def post(message: dict[str, object], *more: str) -> str:
        body = quote(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")))
        headers = ["content-type: application/json", "accept: application/json, text/event-stream", *more]
        lines = [f"{CURL} -sS {endpoint}", *(f"-H {quote(header)}" for header in headers), f"-d {body}"]
        return " \\\n  ".join(lines)

    session = ("mcp-session-id: $session", "mcp-protocol-version: 2025-11-25")
    able = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "curl", "version": "8"},
    }
    greeting = post({"id": 1, "method": "initialize", "params": able}).replace("-sS", "-sS -D -", 1)
    return (
        f"answer=$({greeting})\nprintf '%s\\n' \"$answer\"\n"
        "session=$(printf '%s' \"$answer\" | tr -d '\\r' | grep -i '^mcp-session-id:' | cut -d' ' -f2)\n"
        + post({"method": "notifications/initialized"}, *session)
        + "\n"
        + post({"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}, *session)
        + "; echo"
    )


def kept(command: str, member: str, variable: str) -> str:
    """Return a command whose answer is shown, and one of its members kept in a variable."""
    return (
        f"answer=$({command})\nprintf '%s\\n' \"$answer\"\n"
        f'{variable}=$(printf \'%s\' "$answer" | grep -o \'"{member}":"[^"]*\' | cut -d\'"\' -f4)'
    )


def once_acknowledged(listen: str, command: str) -> str:
    """Return a listen that shows what it hears, and runs a command when it is acknowledged."""
    return (
        f"{{ {listen} || true; }} |\nwhile read -r line; do\n  printf '%s\\n' \"$line\"\n"
        f"  case $line in *acknowledged*)\n{command};;\n  esac\ndone"
    )


def twice(command: str) -> str:
    """Return a loop that shows the ttlMs of two answers, a second apart."""
    return f"for i in 1 2; do\n{command} |\n  grep -o '\"ttlMs\":[0-9]*'; sleep 1\ndone"


def tour(endpoint: str, admin: str, *, third: bool) -> str:
    """Return the whole script, with what the third server does where it is there."""

    def call(tool: str, arguments: dict[str, object], token: str | None = None) -> str:
        params: dict[str, object] = {"name": tool, "arguments": arguments}
        if token is None:
            return request(endpoint, "tools/call", params, name=tool)
        meta: dict[str, object] = {"progressToken": token}
        return request(endpoint, "tools/call", params, name=tool, meta=meta, flags="-sSN")

    def read(uri: str, authorization: str | None = None) -> str:
        return request(endpoint, "resources/read", {"uri": uri}, name=uri, authorization=authorization)

    deletion: dict[str, object] = {"name": "notes__delete_tagged", "arguments": {"tag": "security"}}
    consent = {"consent": {"action": "accept", "content": {"delete": True}}}
    agreed = {**deletion, "inputResponses": consent, "requestState": "$state"}
    summary: dict[str, object] = {"name": "notes__summarise_notes", "arguments": {}}
    changes = {"toolsListChanged": True, "resourceSubscriptions": ["clock+time://timers"]}
    listen = request(endpoint, "subscriptions/listen", {"notifications": changes}, flags="-sN --max-time 5")
    poll = request(endpoint, "tasks/get", {"taskId": "$task"}, name="$task", meta=TASKS)

    conversion: dict[str, object] = {
        "source_timezone": "Europe/Berlin",
        "time": "12:00",
        "target_timezone": "Asia/Tokyo",
    }
    published = [
        (
            "A published server, a program behind the gateway, called by a modern client",
            call("time__convert_time", conversion),
        ),
        (
            "The same by a client of 2025-11-25, which shakes hands first",
            older(endpoint, "time__convert_time", conversion),
        ),
    ]
    steps = [
        (
            "The tools of all servers in one list; ttlMs says how long it stays fresh",
            request(endpoint, "tools/list"),
        ),
        ("A call, routed by its prefix", call("clock__current_time", {"zone": "Europe/Berlin"})),
        (
            "A slow call whose progress arrives as it happens",
            call("notes__summarise_notes", {"pace": 1}, token="p1"),
        ),
        (
            "A resource read twice: the second answer comes from memory, with the ttlMs that is left",
            twice(read("clock+time://zones")),
        ),
        (
            "A private resource is kept for the caller who got it, and nobody else",
            twice(read("notes+note://index", "Bearer alice")),
        ),
        (
            "Changes, told as they happen: a timer starts, with it comes a tool to stop it (5 s)",
            once_acknowledged(listen, call("clock__start_timer", {"name": "tea", "minutes": 3})),
        ),
        (
            "A tool that asks its user first: the question, then the same call with the answer",
            kept(
                request(endpoint, "tools/call", deletion, name="notes__delete_tagged", meta=ASKED),
                *("requestState", "state"),
            )
            + "\n"
            + request(endpoint, "tools/call", agreed, name="notes__delete_tagged", meta=ASKED),
        ),
        (
            "A call that goes on as a task, polled until it is done",
            kept(
                request(endpoint, "tools/call", summary, name="notes__summarise_notes", meta=TASKS),
                *("taskId", "task"),
            )
            + f"\nfor i in 1 2 3 4; do\n{poll}; sleep 1\ndone",
        ),
        *(published if third else []),
        ("What the gateway did", f"{CURL} -sS {admin}/metrics | grep '^mcp_gateway_cache_lookup'"),
        ("How the upstreams are", f"{CURL} -sS {admin}/status.json"),
    ]
    return "\n\n".join(f"# {number}. {title}\n{command}" for number, (title, command) in enumerate(steps, 1))
