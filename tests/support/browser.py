"""A real headless Chromium, driven over its DevTools protocol by what aiohttp has for WebSockets.

    async with chromium() as browser, browser.open(f"{admin}/status") as tab:
        await tab.until("document.querySelector('h1')?.textContent === 'MCP Gateway'")
        await tab.click("[aria-label='Details of alpha']")
        assert tab.errors == []

Every request, console message and exception of a page is noted. What it looks like is `await tab.picture()`.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
_STARTS_WITHIN = 60.0
_ANSWERS_WITHIN = 60.0


class Broken(Exception):
    """What was evaluated in the page threw."""


class Tab:
    """One page of a browser."""

    def __init__(self, link: "_Link", session: str, target: str) -> None:
        self._link = link
        self._session = session
        self._target = target
        self.requests: list[str] = []
        """The address of everything it asked for."""
        self.errors: list[str] = []
        """What it threw, or complained of in its console, or was not allowed."""
        self.changed = asyncio.Event()

    async def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        return await self._link.ask(method, params, self._session)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, awaited if it is a promise."""
        answer = await self.tell(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise Broken(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Return the first value of an expression that is true."""
        while True:
            value = await self.evaluate(condition)
            if value:
                return value
            await self.evaluate("new Promise((done) => setTimeout(done, 50))")

    async def click(self, selector: str) -> None:
        """Press the mouse on the middle of an element, as a person does: what covers it gets the click."""
        at = await self.until(
            f"""(() => {{
                const node = document.querySelector({json.dumps(selector)});
                if (!node) return null;
                node.scrollIntoView({{block: "center", behavior: "instant"}});
                const box = node.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.tell(
                "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1
            )

    async def write(self, text: str) -> None:
        """Write into what has the focus."""
        await self.tell("Input.insertText", text=text)

    async def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            named: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            if key == "Enter":
                named["text"] = "\r"
            await self.tell("Input.dispatchKeyEvent", type=kind, **named)

    async def size(self, width: int, height: int) -> None:
        """Give the page a window of this size."""
        await self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def colours(self, scheme: str) -> None:
        """Prefer light or dark."""
        await self.tell(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"},  # moving pictures take a core here
            ],
        )

    async def picture(self, *, whole: bool = False) -> bytes:
        """Return what it looks like as PNG; the whole page, or what the window shows."""
        answer = await self.tell("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def heard(self, method: str, params: Mapping[str, Any]) -> None:
        """Note what the browser tells of the page."""
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(json.dumps(params["entry"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Page.javascriptDialogOpening":
                self.errors.append("a dialog opened")


class Browser:
    """A running browser."""

    def __init__(self, link: "_Link") -> None:
        self._link = link

    @asynccontextmanager
    async def open(
        self, url: str, *, width: int = 1400, height: int = 900, colours: str = "light"
    ) -> AsyncIterator[Tab]:
        """Open a page in a tab of its own, which shares nothing with others, and close it afterwards."""
        context = (await self._link.ask("Target.createBrowserContext", {}))["browserContextId"]
        made = await self._link.ask(
            "Target.createTarget", {"url": "about:blank", "browserContextId": context}
        )
        target = made["targetId"]
        attached = await self._link.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        tab = Tab(self._link, attached["sessionId"], target)
        self._link.tabs[attached["sessionId"]] = tab
        try:
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.tell(f"{domain}.enable")
            await tab.size(width, height)
            await tab.colours(colours)
            await tab.tell("Page.navigate", url=url)
            await tab.until("document.readyState === 'complete' && location.href !== 'about:blank'")
            yield tab
        finally:
            with suppress(aiohttp.ClientError, ConnectionError):
                await self._link.ask("Target.disposeBrowserContext", {"browserContextId": context})


class _Link:
    """The WebSocket to the browser, over which all tabs are driven."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.tabs: dict[str, Tab] = {}

    async def ask(self, method: str, params: Mapping[str, Any], session: str | None = None) -> dict[str, Any]:
        """Send a command and return what comes of it."""
        self._last += 1
        answer = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        named = {} if session is None else {"sessionId": session}
        await self._socket.send_json({"id": self._last, "method": method, "params": params, **named})
        async with asyncio.timeout(_ANSWERS_WITHIN):
            message = await answer
        if "error" in message:
            raise Broken(f"{method}: {message['error']}")
        return dict(message["result"])

    async def read(self) -> None:
        """Hand out what comes, until the browser is gone."""
        async for received in self._socket:
            message = json.loads(received.data)
            if "id" in message:
                waiting = self._waiting.pop(message["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            elif message.get("sessionId") in self.tabs:
                self.tabs[message["sessionId"]].heard(message["method"], message.get("params", {}))


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser with a profile of its own, and end it with all of its processes."""
    assert CHROMIUM is not None, "there is no chromium; the package has that name"
    folder = tempfile.mkdtemp(prefix="chromium-")
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_OPTIONS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "HOME": folder, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"},
    )
    assert process.stderr is not None
    drain: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(_STARTS_WITHIN):
            address = b""
            while b"DevTools listening on " not in address:
                address = await process.stderr.readline()
                assert address, "the browser ended at once"
        drain = asyncio.create_task(process.stderr.read())
        at = address.decode().partition("listening on ")[2].strip()
        async with aiohttp.ClientSession() as session, session.ws_connect(at, max_msg_size=0) as socket:
            link = _Link(socket)
            reader = asyncio.create_task(link.read())
            try:
                yield Browser(link)
            finally:
                reader.cancel()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if drain is not None:
            await drain
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def save(picture: bytes, path: Path) -> None:
    """Write a picture where it can be looked at."""
    path.write_bytes(picture)
