"""An MCP server over stdin and stdout whose manners are its arguments. Run by path, with no library.

--era modern|legacy      which handshake it knows, or both
--dies-on-unknown        ends when the first message is not `initialize`
--silent                 never answers server/discover
--late                   answers server/discover only with the next message, and initialize with -32022
--crash CODE             ends at once
--stderr BYTES           writes so much to stderr before every answer
--junk                   writes what is no message to stdout before every answer
--ignore-term            ignores SIGTERM, and the end of its stdin
--grandchild             starts a process of its own that ignores SIGTERM and holds stdout open
--daemon                 starts one that leaves the session as well
--id-last                writes the id behind the result, as TypeScript servers do
--ask                    legacy: declares nothing more, but its tool `ask` elicits
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

VERSION = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
TOOLS = (
    "ask", "ask_late", "change", "close_stdout", "die", "echo", "environment", "fold", "garble", "get_note",
    "hang", "log", "mutter", "pid", "progress", "release", "seen", "set_note", "size", "update",
)  # fmt: skip
SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

Message = dict[str, Any]


class Server:
    """What it remembers, and what it says."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seen: list[Message] = []
        self.hanging: list[Any] = []
        self.listening: list[Any] = []
        self.asked: dict[str, Any] = {}
        self.held: list[Message] = []
        self.note: str | None = None
        self.question: Message | None = None
        """What its tool `ask` asks, a form by default."""
        self.greeted = False

    def say(self, message: Message) -> None:
        if "id" in message and "method" not in message:
            self.misbehave()
        whole = {"jsonrpc": "2.0", **message}
        if self.options.id_last and "id" in whole:
            whole = {key: whole[key] for key in (*[key for key in whole if key != "id"], "id")}
        self.write(whole)

    def write(self, whole: Message) -> None:
        sys.stdout.buffer.write(json.dumps(whole).encode() + b"\n")
        sys.stdout.buffer.flush()

    def misbehave(self) -> None:
        if self.options.stderr:
            line = "x" * 99 + "\n"
            sys.stderr.write(line * (self.options.stderr // len(line)))
            sys.stderr.flush()
        if self.options.junk:
            sys.stdout.buffer.write(b'Welcome to the server!\n\n[1,2]\n\xff\xfe\n{"a":\n42\nnull\n')

    def notify(self, method: str, **params: Any) -> None:
        self.say({"method": method, "params": params})

    def answer(self, id: Any, result: Message) -> None:
        modern = {"resultType": "complete"} if not self.greeted else {}
        self.say({"id": id, "result": {**result, **modern}})

    def refuse(self, id: Any, code: int, text: str, data: Any = None) -> None:
        error = {"code": code, "message": text} | ({} if data is None else {"data": data})
        self.say({"id": id, "error": error})

    def text(self, id: Any, value: Any) -> None:
        self.answer(id, {"content": [{"type": "text", "text": json.dumps(value)}]})

    def hear(self, message: Message) -> None:
        first = not self.seen
        self.seen.append(message)
        if first and self.options.dies_on_unknown and message.get("method") != "initialize":
            sys.exit(3)
        for held in self.held:
            self.answer(held["id"], self.discovered())
        self.held.clear()
        if "method" not in message:
            self.answered(message)
        elif "id" in message:
            self.request(message["id"], message["method"], message.get("params") or {})
        elif message["method"] == "notifications/cancelled":
            self.cancelled(message["params"].get("requestId"))

    def cancelled(self, id: Any) -> None:
        if id in self.listening:
            self.listening.remove(id)

    def answered(self, message: Message) -> None:
        id = self.asked.pop(str(message.get("id")), None)
        if id is not None:
            self.text(id, message.get("result", message.get("error")))

    def discovered(self) -> Message:
        return {
            "resultType": "complete",
            "supportedVersions": [VERSION],
            "capabilities": {
                "tools": {"listChanged": True},
                "resources": {"listChanged": True, "subscribe": True},
                "prompts": {},
            },
            "instructions": "be kind",
            "ttlMs": 0,
            "cacheScope": "private",
        }

    def request(self, id: Any, method: str, params: Message) -> None:
        era = self.options.era
        match method:
            case "server/discover" if self.options.silent:
                pass
            case "server/discover" if self.options.late and len(self.seen) == 1:
                self.held.append(self.seen[-1])
            case "server/discover" if era in ("modern", "both"):
                self.answer(id, self.discovered())
            case "initialize" if self.options.late:
                self.refuse(id, -32022, "Unsupported", {"supported": [VERSION], "requested": "2025-11-25"})
            case "initialize" if era in ("legacy", "both"):
                self.greeted = True
                capabilities = {
                    "tools": {"listChanged": True},
                    "resources": {"subscribe": True, "listChanged": True},
                    "logging": {},
                }
                info = {"name": "program", "version": "1"}
                self.answer(
                    id,
                    {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info},
                )
            case "ping" if self.greeted:
                self.answer(id, {})
            case "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" if self.greeted:
                self.answer(id, {})
            case _ if era == "legacy" and not self.greeted:
                self.refuse(id, -32600, "initialize first")
            case "tools/list":
                schema = {"type": "object"}
                hints = {} if self.greeted else {"ttlMs": 60000, "cacheScope": "public"}
                self.answer(id, {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS], **hints})
            case "resources/list":
                self.answer(id, {"resources": [{"uri": "test://note", "name": "note"}]})
            case "resources/read":
                self.answer(id, {"contents": [{"uri": params["uri"], "text": str(self.note)}]})
            case "subscriptions/listen" if not self.greeted:
                self.listening.append(id)
                self.notify(
                    "notifications/subscriptions/acknowledged",
                    notifications=params["notifications"],
                    _meta={SUBSCRIPTION: id},
                )
            case "tools/call":
                self.tool(id, params["name"], params.get("arguments") or {}, params.get("_meta") or {})
            case _:
                self.refuse(id, -32601, "Method not found")

    def tool(self, id: Any, name: str, arguments: Message, meta: Message) -> None:
        match name:
            case "echo":
                self.text(id, {"arguments": arguments, "meta": meta})
            case "environment":
                self.text(id, dict(os.environ))
            case "fold":
                self.text(id, {"cwd": os.getcwd(), "argv": sys.argv[1:]})
            case "garble":
                sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":["\xff"]}}\n' % id)
                sys.stdout.buffer.flush()
            case "ask_late":
                late = b'{"jsonrpc":"2.0","id":"late","method":"roots/list"}'
                sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%d,"result":{}}\n%s\n' % (id, late))
                sys.stdout.buffer.flush()
            case "hang":
                if "nonce" in arguments:
                    token, nonce = meta.get("progressToken"), arguments["nonce"]
                    self.notify("notifications/progress", progressToken=token, progress=1, message=nonce)
                self.hanging.append(id)
            case "release":
                for hanging in self.hanging:
                    self.text(hanging, "released")
                self.hanging.clear()
                self.text(id, "done")
            case "close_stdout":
                os.close(1)
            case "die":
                sys.exit(arguments.get("code", 5))
            case "pid":
                self.text(id, os.getpid())
            case "seen":
                self.text(id, self.seen)
            case "mutter":
                self.text(id, "done")
                self.say({"id": None, "error": {"code": -32600, "message": arguments["text"]}})
            case "set_note":
                self.note = arguments["text"]
                self.text(id, "noted")
            case "get_note":
                self.text(id, self.note)
            case "size":
                self.answer(id, {"content": [{"type": "text", "text": "x" * arguments["bytes"]}]})
            case "progress":
                for step in range(1, arguments["steps"] + 1):
                    token = meta.get("progressToken")
                    self.notify("notifications/progress", progressToken=token, progress=step)
                self.text(id, "done")
            case "log":
                level, data = arguments.get("level", "error"), arguments.get("data", "a word")
                self.notify("notifications/message", level=level, data=data)
                self.text(id, "logged")
            case "change":
                self.tell("notifications/tools/list_changed")
                self.text(id, "changed")
            case "update":
                self.tell("notifications/resources/updated", uri=arguments["uri"])
                self.text(id, "updated")
            case "ask":
                question = f"q{len(self.seen)}"
                self.asked[question] = id
                schema = {"type": "object", "properties": {"name": {"type": "string"}}}
                params = {"message": "Who?", "requestedSchema": schema}
                asking = self.question or {"method": "elicitation/create", "params": params}
                self.say({"id": question, **asking})
            case _:
                self.refuse(id, -32602, f"no tool {name}")

    def tell(self, method: str, **params: Any) -> None:
        if self.greeted:
            self.notify(method, **params)
        for id in self.listening:
            self.notify(method, **params, _meta={SUBSCRIPTION: id})


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", default="modern")
    parser.add_argument("--crash", type=int)
    parser.add_argument("--stderr", type=int, default=0)
    for flag in (
        "dies-on-unknown",
        "silent",
        "late",
        "junk",
        "ignore-term",
        "grandchild",
        "daemon",
        "id-last",
    ):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    given = options()
    if given.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.grandchild:
        subprocess.Popen([sys.executable, "-c", SLEEPER])
    if given.daemon:
        subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    if given.crash is not None:
        sys.stderr.write("cannot go on\n")
        sys.exit(given.crash)
    server = Server(given)
    for line in sys.stdin.buffer:
        server.hear(json.loads(line))
    while given.ignore_term:
        time.sleep(600)


if __name__ == "__main__":
    main()
