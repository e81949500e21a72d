"""Which era a program speaks is told by its first answers, whatever they are (U-19); and what it costs."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway import config
from gateway.protocol.call import Change, Context, Reason, Reply, Request, UpstreamName
from gateway.support.mailbox import LocalMailbox
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.failures import Failed
from gateway.upstream.parked import Parked
from gateway.upstream.retrying import Pace
from gateway.upstream.stdio import StdioUpstream, without_invalid_annotations
from tests.support.kin import MARK, mark, marked, zombies

SERVER = Path(__file__).parents[2] / "support" / "programs" / "server.py"
NAME = UpstreamName("files")
QUICK = Pace(first=0.01, longest=0.02, patience=2.0, gap=0.0)


class Upstream:
    """A program as an upstream, and what came of it."""

    def __init__(
        self,
        *arguments: str,
        script: str | None = None,
        pace: Pace = QUICK,
        era: str = "auto",
        **members: Any,
    ) -> None:
        self.mark = mark()
        self.background = Background()
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        settings = config.Upstream.model_validate(
            {
                "command": sys.executable,
                "args": [str(SERVER), *arguments] if script is None else ["-c", script],
                "env": {MARK: self.mark},
                "prefix": "files",
                **members,
            }
        ).model_copy(update={"era": era})
        self.transport = StdioUpstream(
            NAME,
            settings,
            client_info=b'{"name":"gw","version":"1"}',
            limit=2**20,
            parked=Parked(LocalMailbox(), self.background),
            background=self.background,
            metrics=Metrics(),
            on_change=self.changes.put,
            environ={"PATH": "/usr/bin:/bin"},
            pace=pace,
            step=0.3,
        )

    async def tool(self, name: str, *, caller: str = "", **arguments: Any) -> Any:
        params = {"name": json.dumps(name).encode(), "arguments": json.dumps(arguments).encode()}
        reply = await self.transport.call(Request("tools/call", params, context=Context(caller)))
        return json.loads(json.loads(bytes(reply.result))["content"][0]["text"])

    async def openers(self) -> list[str]:
        return [message["method"] for message in await self.tool("seen")][:-1]

    async def processes(self) -> int:
        return len(await asyncio.to_thread(marked, self.mark))


@asynccontextmanager
async def upstream(*arguments: str, **members: Any) -> AsyncIterator[Upstream]:
    one = Upstream(*arguments, **members)
    try:
        yield one
    finally:
        await one.transport.close()
        await one.background.close(1)
        assert await one.processes() == 0
        assert zombies() == []


@pytest.mark.parametrize(
    ("manners", "era", "openers"),
    [
        (("--era", "modern"), "modern", ["server/discover"]),
        (("--era", "both"), "modern", ["server/discover"]),
        (("--era", "legacy"), "legacy", ["server/discover", "initialize", "notifications/initialized"]),
        (
            ("--era", "legacy", "--dies-on-unknown"),
            "legacy",
            ["initialize", "notifications/initialized"],
        ),
        (
            ("--era", "legacy", "--silent"),
            "legacy",
            ["server/discover", "initialize", "notifications/initialized"],
        ),
        (("--late",), "modern", ["server/discover", "initialize"]),
    ],
)
async def test_the_era_is_told_by_the_first_answers(
    manners: tuple[str, ...], era: str, openers: list[str]
) -> None:
    """No probe is ever cancelled, and none is sent again to a process whose era is known (U-19, U-19a)."""
    timeout = 1.0 if "--silent" in manners or "--late" in manners else 30.0
    async with upstream(*manners, timeout=timeout) as one:
        while (verdict := await one.transport.probe()).reason is Reason.TIMEOUT:
            pass  # the machine is busy
        assert (verdict.era, verdict.reason) == (era, None)
        assert verdict.version == ("2026-07-28" if era == "modern" else "2025-06-18")
        assert verdict.discovered is not None
        assert "tools" in verdict.discovered.capabilities
        assert await one.openers() == openers
        assert await one.processes() == 2


@pytest.mark.parametrize(
    ("era", "manners", "opener"),
    [("legacy", ("--era", "both"), "initialize"), ("modern", ("--era", "both"), "server/discover")],
)
async def test_a_configured_era_is_not_asked_for(era: str, manners: tuple[str, ...], opener: str) -> None:
    async with upstream(*manners, era=era) as one:
        assert (await one.transport.probe()).era == era
        assert (await one.openers())[0] == opener


ODD = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    %s
    print(json.dumps(answer), flush=True)
"""
GREETING = """answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}"""


@pytest.mark.parametrize(
    ("first", "era"),
    [
        ('answer["error"] = {"code": -32601, "message": "no"}', "legacy"),
        ('answer["error"] = {"code": -32602, "message": "initialize first"}', "legacy"),
        ('answer["error"] = {"code": -32603, "message": "no"}', "legacy"),
        ('answer["error"] = {"code": 1, "message": "no"}', "legacy"),
        ('answer = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}', "legacy"),
        ('answer["result"] = {"supportedVersions": ["2025-11-25"], "capabilities": {}}', "legacy"),
        ('answer["result"] = {}', "legacy"),
        ('answer["result"] = 7', "legacy"),
        (
            'answer["error"] = {"code": -32022, "message": "", "data": {"supported": ["2025-11-25"]}}',
            "legacy",
        ),
        ('answer["error"] = {"code": -32020, "message": "no"}', "modern"),
        ('answer["error"] = {"code": -32021, "message": "no"}', "modern"),
    ],
)
async def test_what_else_a_probe_may_be_answered(first: str, era: str) -> None:
    """Only what modern servers alone say is modern; no one code decides (B14)."""
    script = ODD % (
        f"""if message["method"] == "server/discover": {first}
    else: {GREETING}"""
    )
    async with upstream(script=script) as one:
        verdict = await one.transport.probe()
        assert (verdict.era, verdict.reason) == (era, None)


SLOW = """
import json, os, sys
held, process = [], os.getpid()
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "server/discover" and not held: held.append(id)
    answers = {}
    %s
    for id, answer in answers.items():
        print(json.dumps({"jsonrpc": "2.0", "id": id, **answer}), flush=True)
"""
VERSIONS = '{"result": {"supportedVersions": ["2026-07-28"], "capabilities": {}}}'


@pytest.mark.parametrize(
    "manners",
    [
        f"""if method == "initialize":
        answers = {{held[0]: {VERSIONS}, id: {{"error": {{"code": -32601, "message": "no"}}}}}}""",
        f"""if method == "initialize":
        answers = {{id: {{"error": {{"code": -32601, "message": "no"}}}}}}
    if method == "server/discover" and id != held[0]: answers = {{id: {VERSIONS}}}""",
        f"""if method == "initialize":
        wanted = {{"supported": ["2026-07-28"]}}
        answers = {{id: {{"error": {{"code": -32022, "message": "", "data": wanted}}}}}}
    if method == "server/discover" and id != held[0]: answers = {{id: {VERSIONS}}}""",
        f"""if method == "initialize":
        answers = {{held[0]: {VERSIONS}}}""",
        f"""if method == "initialize":
        answers = {{held[0]: {VERSIONS}, id: {{"result": {{}}}}}}""",
    ],
    ids=["answers-late", "lost-the-probe", "names-versions", "knows-no-initialize", "answers-anything"],
)
async def test_a_modern_one_that_is_slow_to_start_is_understood_in_the_end(manners: str) -> None:
    """The first probe is waited for in vain only if it is not answered late (U-19)."""
    async with upstream(script=SLOW % manners, timeout=0.5) as one:
        while (verdict := await one.transport.probe()).reason is Reason.TIMEOUT:
            pass
        assert (verdict.era, verdict.reason) == ("modern", None)


async def test_one_of_both_eras_that_was_slow_once_is_given_time_to_be_modern(tmp_path: Path) -> None:
    """Its process took the handshake, and means it (U-19a); the next one is waited for."""
    mark = tmp_path / "was here"
    script = (
        SLOW
        % f"""if method == "initialize":
        {GREETING.replace('answer["result"]', "greeting")}
        answers = {{held[0]: {VERSIONS}, id: {{"result": greeting}}}}
    if method == "server/discover" and os.path.exists({str(mark)!r}): answers = {{id: {VERSIONS}}}
    if method == "ping": answers = {{id: {{"result": {{}}}}}}
    if method == "tools/call": open({str(mark)!r}, "w"); sys.exit(0)"""
    )
    async with upstream(script=script, timeout=0.5) as one:
        while (verdict := await one.transport.probe()).reason is Reason.TIMEOUT:
            pass
        assert verdict.era == "legacy"
        with pytest.raises(Failed):
            await one.tool("die")
        await one.changes.get()
        assert (await one.transport.probe()).era == "modern"


async def test_one_that_is_said_to_be_modern_may_start_slowly() -> None:
    async with upstream(era="modern", timeout=0.01) as one:
        assert await one.openers() == ["server/discover"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_an_answer_that_is_not_utf8_fails_its_call(era: str) -> None:
    async with upstream("--era", era) as one:
        with pytest.raises(Failed) as caught:
            await one.tool("garble")
        assert (caught.value.reason, caught.value.detail) == (
            Reason.PROTOCOL,
            "its answer is not valid UTF-8",
        )
        assert await one.tool("echo")


async def test_what_is_asked_right_behind_the_result_is_refused() -> None:
    """The call that it came up in is over (M-22)."""
    async with upstream("--era", "legacy", isolation="caller") as one:
        name = json.dumps("ask_late").encode()
        may_ask = Request(
            "tools/call",
            {"name": name, "arguments": b"{}"},
            capabilities=b'{"roots":{}}',
            context=Context("ann"),
        )
        await one.transport.call(may_ask)
        seen = replace(may_ask, params={**may_ask.params, "name": b'"seen"'})
        while True:
            reply = await one.transport.call(seen)
            heard = json.loads(json.loads(bytes(reply.result))["content"][0]["text"])
            if late := [message for message in heard if message.get("id") == "late"]:
                break
        assert late[0]["error"]["code"] == -32601


async def test_one_that_speaks_no_version_of_ours_is_said_to() -> None:
    script = ODD % 'answer["result"] = {"supportedVersions": ["2031-01-01"], "capabilities": {}}'
    async with upstream(script=script) as one:
        verdict = await one.transport.probe()
        assert verdict.reason is Reason.ERA
        assert "2031-01-01" in verdict.detail


async def test_one_that_refuses_both_openers_is_no_server_of_ours() -> None:
    async with upstream(script=ODD % 'answer["error"] = {"code": -32000, "message": "no"}') as one:
        verdict = await one.transport.probe()
        assert verdict.reason is Reason.ERA
        assert verdict.detail == "it refuses initialize: error -32000"


async def test_one_that_says_nothing_is_left_to_itself_and_waited_for() -> None:
    """It may be being installed: probing again disturbs nothing, and starts nothing (B29)."""
    script = "import sys; sys.stdin.read()"
    async with upstream(script=script, timeout=0.05) as one:
        for _ in range(3):
            verdict = await one.transport.probe()
            assert (verdict.reason, verdict.outage) == (Reason.TIMEOUT, True)
        assert await one.processes() == 2


async def test_a_hundred_probes_make_one_process() -> None:
    """Health checks ask the one that is there (B29)."""
    for era in ("modern", "legacy"):
        async with upstream("--era", era) as one:
            await one.transport.probe()
            for verdict in await asyncio.gather(*(one.transport.probe() for _ in range(100))):
                assert (verdict.era, verdict.reason) == (era, None)
            assert await one.processes() == 2
            assert "initialize" not in (await one.openers())[3:]


async def test_one_that_hangs_is_replaced_unless_it_is_busy() -> None:
    async with upstream(
        script="heard = []"
        + ODD
        % """heard.append(1)
    if len(heard) > 1: continue
    answer["result"] = {"supportedVersions": ["2026-07-28"], "capabilities": {}}""",
    ) as one:
        assert (await one.transport.probe()).reason is None
        one.transport._probe_timeout = 0.1  # from now on it is waited for in vain
        waiting = asyncio.ensure_future(one.tool("hang"))
        while not one.transport.active:  # noqa: ASYNC110  # it takes a turn of the loop
            await asyncio.sleep(0)
        assert (await one.transport.probe()).reason is None
        waiting.cancel()
        await asyncio.wait([waiting])
        verdict = await one.transport.probe()
        assert (verdict.reason, verdict.detail) == (Reason.TIMEOUT, "it runs and answers nothing")
        one.transport._probe_timeout = 10.0
        assert (await one.changes.get()).cause == "reconnect"


async def test_the_next_one_is_started_once_and_only_when_all_of_the_last_is_gone() -> None:
    """Whether a call or the gateway itself asks for it first (U-31, B27)."""
    async with upstream("--ignore-term") as one:
        for _ in range(2):
            before = await one.tool("pid")
            with pytest.raises(Failed):
                await one.tool("close_stdout")  # it lives on, and has to be killed
            pids = await asyncio.gather(*(one.tool("pid") for _ in range(3)))
            assert await one.processes() == 2  # it and its keeper
            assert len({before, *pids}) == 2


async def test_a_callers_next_one_is_started_when_the_last_is_gone() -> None:
    async with upstream("--ignore-term", isolation="caller") as one:
        await one.tool("pid", caller="ann")
        assert await one.processes() == 4
        with pytest.raises(Failed):
            await one.tool("close_stdout", caller="ann")
        await one.tool("pid", caller="ann")
        assert await one.processes() == 4


async def test_pauses_between_starts_grow_and_calls_do_not_wait_for_them() -> None:
    one = Upstream("--crash", "7", pace=Pace(first=100.0, longest=1000.0))
    try:
        verdict = await one.transport.probe()
        assert (verdict.reason, verdict.detail) == (Reason.CONNECT, "its program ended, exit code 7")
        with pytest.raises(Failed) as caught:
            await one.tool("echo")
        assert (caught.value.unsent, caught.value.lost) == (True, True)
        assert caught.value.detail == "its program ended, exit code 7"
    finally:
        await one.transport.close()
        await one.background.close(1)


async def test_closing_fails_what_runs_and_what_comes() -> None:
    async with upstream() as one:
        await one.transport.probe()
        waiting = asyncio.ensure_future(one.tool("hang"))
        await one.tool("pid")
        await one.transport.close()
        with pytest.raises(Failed) as caught:
            await waiting
        assert caught.value.reason is Reason.STOPPING
        with pytest.raises(Failed) as caught:
            await one.tool("pid")
        assert caught.value.reason is Reason.STOPPING
        assert (await one.transport.probe()).reason is Reason.STOPPING


async def test_closing_while_it_starts_leaves_nothing() -> None:
    async with upstream(script="import sys; sys.stdin.read()") as one:
        probing = asyncio.ensure_future(one.transport.probe())
        while not await one.processes():
            pass
        await one.transport.close()
        assert (await probing).reason is Reason.STOPPING


def test_annotations_that_do_not_hold_are_taken_out_of_tools() -> None:
    """A program is sent no headers; the tool stays (U-09)."""

    def listed(annotation: str) -> Reply:
        schema = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": annotation}}}
        return Reply(json.dumps({"tools": [{"name": "t", "inputSchema": schema}], "ttlMs": 1}).encode())

    sound = listed("Region")
    assert without_invalid_annotations(sound) is not None
    assert json.loads(bytes(without_invalid_annotations(sound).result)) == json.loads(sound.result)
    mended = json.loads(bytes(without_invalid_annotations(listed("not a token")).result))
    assert mended["tools"][0]["inputSchema"]["properties"]["a"] == {"type": "string"}
    assert mended["ttlMs"] == 1
    unreadable = Reply(b'{"tools":[{"x-mcp-header":1}]}')
    assert without_invalid_annotations(unreadable) is unreadable
