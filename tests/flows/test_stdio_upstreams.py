"""Servers that are programs, behind the whole gateway: both eras, their ends, their noise, their sizes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.server import Addresses
from tests.support import processes
from tests.support.kin import MARK, mark, marked, none_left, zombies
from tests.support.legacy_client import LegacyClient
from tests.support.listening import TOOLS_CHANGED, UPDATED, listening, told
from tests.support.running import ONCE, Answer, Reachable, Running, running
from tests.support.scripted import META

SERVER = Path(__file__).parents[1] / "support" / "programs" / "server.py"


def program(*arguments: str, text: str = "none", **members: Any) -> Mapping[str, Any]:
    """Return the settings of the scripted program with these manners."""
    return {"command": sys.executable, "args": [str(SERVER), *arguments], "env": {MARK: text}, **members}


MANNERS = {
    "modern": (),
    "legacy": ("--era", "legacy"),
    "both": ("--era", "both"),
    "one that ends at an opener it does not know": ("--era", "legacy", "--dies-on-unknown"),
    "one that takes its probe late": ("--late",),
    "noisy": ("--junk", "--stderr", "300000"),
    "noisy and legacy": ("--era", "legacy", "--junk", "--stderr", "300000"),
    "ids last": ("--id-last",),
}


@pytest.mark.parametrize("manners", MANNERS.values(), ids=MANNERS)
async def test_a_client_sees_a_program_as_any_server(manners: tuple[str, ...]) -> None:
    """Whatever it speaks, and whatever else it writes (U-19, B14, B28)."""
    patience = {"timeout": "3s"} if "--late" in manners else {}
    async with running({"files": program(*manners, **patience)}, startup_wait=15.0) as gateway:
        listed = await gateway.ask("tools/list")
        assert "files__echo" in listed.names
        assert listed.hints[1] == "private" or manners in (
            (),
            ("--era", "both"),
            ("--late",),
            MANNERS["noisy"],
            ("--id-last",),
        )
        answer = await gateway.ask("tools/call", {"name": "files__echo", "arguments": {"text": "né"}})
        assert answer.text["arguments"] == {"text": "né"}
        assert answer.result["resultType"] == "complete"


async def seen(gateway: Running, method: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the messages of this method that the program got, once there are so many."""
    while True:
        answer = await gateway.ask("tools/call", {"name": "files__seen"})
        found = [message for message in answer.text if message.get("method") == method]
        hung = [message for message in found if message.get("params", {}).get("name", "hang") == "hang"]
        if len(hung) >= count:
            return hung


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_client_that_leaves_has_its_call_cancelled(era: str) -> None:
    """With the id that the program knows it by, and no call of others is touched (B21, U-23)."""
    async with (
        running({"files": program("--era", era)}) as gateway,
        gateway.open("tools/call", {"name": "files__hang"}, id=7) as leaving,
        gateway.open("tools/call", {"name": "files__hang"}, id=7) as staying,
    ):
        hanging = [call["id"] for call in await seen(gateway, "tools/call", 2)]
        leaving.leave()
        [cancelled] = await seen(gateway, "notifications/cancelled")
        assert cancelled["params"]["requestId"] in hanging
        await gateway.ask("tools/call", {"name": "files__release"})
        assert (await staying.answer()).text == "released"


async def test_fifty_callers_with_one_id_get_their_own_answers() -> None:
    """One process serves many, whose ids and tokens are their own matter (B22, B23)."""
    async with running({"files": program()}) as gateway:

        async def ask(number: int) -> bool:
            arguments = {"name": "files__progress", "arguments": {"steps": number}}
            answer = await gateway.ask("tools/call", arguments, id=1, meta={"progressToken": 1})
            told = [notice["params"]["progress"] for notice in answer.notices]
            return told == list(range(1, number + 1))

        assert all(await asyncio.gather(*map(ask, range(1, 51))))


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_log_message_goes_to_the_only_call_that_asked_for_such(era: str) -> None:
    """Nothing else on the wire says whose it is (A-14)."""
    level = {f"{META}logLevel": "info"}
    call = {"name": "files__log", "arguments": {}}
    async with running({"files": program("--era", era)}) as gateway:
        assert [
            notice["method"] for notice in (await gateway.ask("tools/call", call, meta=level)).notices
        ] == ["notifications/message"]
        assert (await gateway.ask("tools/call", call)).notices == []
        async with gateway.open("tools/call", {"name": "files__hang"}, meta=level) as other:
            await seen(gateway, "tools/call", 1)
            assert (await gateway.ask("tools/call", call, meta=level)).notices == []
            await gateway.ask("tools/call", {"name": "files__release"})
            assert (await other.answer()).notices == []


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_log_message_in_a_process_of_several_callers_is_nobodys(era: str) -> None:
    """What a program says of one's call, though nobody asked it to, is not told to another (A-14)."""
    level = {f"{META}logLevel": "info"}
    said = {"name": "files__log", "arguments": {"data": "of Bob"}}
    async with running({"files": program("--era", era)}) as gateway:
        for _ in range(2):
            async with gateway.open("tools/call", {"name": "files__hang"}, meta=level, token="ANN") as ann:
                await seen(gateway, "tools/call", 1)
                assert (await gateway.ask("tools/call", said, token="BOB")).notices == []
                await gateway.ask("tools/call", {"name": "files__release"})
                assert (await ann.answer()).notices == []


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_caller_whom_a_process_serves_alone_hears_what_it_logs(era: str) -> None:
    """Whatever the gateway asked it for itself, and also beside the processes of others."""
    level = {f"{META}logLevel": "info"}
    said = {"name": "files__log", "arguments": {"data": "of Ann"}}
    for isolation in ("shared", "caller"):
        async with running({"files": program("--era", era, isolation=isolation)}) as gateway:
            if isolation == "caller":
                assert (await gateway.ask("tools/call", said, meta=level, token="BOB")).notices
            (notice,) = (await gateway.ask("tools/call", said, meta=level, token="ANN")).notices
            assert notice["params"]["data"] == "of Ann"


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_an_error_without_an_id_is_repeated_to_nobody_where_several_call(era: str) -> None:
    """It may answer what another asked, whose words are in it then (U-25)."""
    async with running({"files": program("--era", era)}) as gateway:
        mutter = {"name": "files__mutter", "arguments": {"text": "not for Bob"}}
        for _ in range(3):
            async with gateway.open("tools/call", {"name": "files__hang"}, token="ANN") as ann:
                await seen(gateway, "tools/call", 1)
                await gateway.ask("tools/call", mutter, token="BOB")
                await gateway.ask("tools/call", {"name": "files__release"})
                assert "Bob" not in str((await ann.answer()).message)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_fifteen_megabytes_pass_and_more_than_the_limit_fails_alone(era: str) -> None:
    """The program lives on, and so do the calls of others (B25)."""
    limits = {"message": 16 * 2**20}
    async with (
        running({"files": program("--era", era)}, limits=limits) as gateway,
        gateway.open("tools/call", {"name": "files__hang"}) as other,
    ):
        await seen(gateway, "tools/call", 1)

        async def size(bytes: int) -> Answer:
            return await gateway.ask("tools/call", {"name": "files__size", "arguments": {"bytes": bytes}})

        assert len((await size(15_000_000)).result["content"][0]["text"]) == 15_000_000
        failed = await size(17_000_000)
        assert failed.error == {"code": -32603, "message": "upstream files: response too large"}
        argument = {"name": "files__echo", "arguments": {"text": "x" * 3_000_000}}
        assert len((await gateway.ask("tools/call", argument)).text["arguments"]["text"]) == 3_000_000
        await gateway.ask("tools/call", {"name": "files__release"})
        assert (await other.answer()).text == "released"


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_calls_under_way_fail_at_once_when_the_program_ends_and_the_next_one_serves(era: str) -> None:
    """They say of whom, and how it ended; all of the old one is gone first (B27, U-31)."""
    text = mark()
    async with running({"files": program("--era", era, "--grandchild", text=text)}) as gateway:
        first = (await gateway.ask("tools/call", {"name": "files__pid"})).text
        async with gateway.open("tools/call", {"name": "files__hang"}) as hanging:
            await seen(gateway, "tools/call", 1)
            died = await gateway.ask("tools/call", {"name": "files__die", "arguments": {"code": 9}})
            said = {"code": -32603, "message": "upstream files: its program ended, exit code 9"}
            assert died.error == said
            assert (await hanging.answer()).error == said
        await gateway.until("files", "up")
        assert (await gateway.ask("tools/call", {"name": "files__pid"})).text != first
        assert len(await asyncio.to_thread(marked, text)) == 3  # a keeper, the program, and its child
    assert await asyncio.to_thread(marked, text) == []
    assert zombies() == []


async def test_a_program_that_dies_unasked_is_started_again_and_nothing_cached_is_trusted() -> None:
    """It may have changed meanwhile (C-30)."""
    async with running({"files": program()}) as gateway:
        pid = (await gateway.ask("tools/call", {"name": "files__pid"})).text
        await gateway.ask("tools/list")
        os.kill(pid, signal.SIGKILL)
        await gateway.until_counted('cache_invalidations_total{cause="reconnect",upstream="files"}', 1)
        await gateway.until("files", "up")
        assert (await gateway.ask("tools/call", {"name": "files__pid"})).text != pid


async def test_a_program_that_ends_at_once_is_not_started_for_every_call() -> None:
    """Twenty calls fail at once, and leave nothing behind (B01, B27)."""
    text = mark()
    async with running({"files": program("--crash", "7", text=text)}, pace=ONCE) as gateway:
        for _ in range(20):
            answer = await gateway.ask("tools/call", {"name": "files__echo"})
            assert answer.error == {"code": -32603, "message": "no upstream is available"}
        assert gateway.status("files").detail == "its program ended, exit code 7"
        assert await asyncio.to_thread(marked, text) == []
    assert zombies() == []


async def test_a_program_that_is_not_there_is_a_clear_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with running({"files": {"command": "no-such-program"}}, pace=ONCE) as gateway:
        assert gateway.status("files").state == "down"
    assert "upstream files: down, connection failed (no program no-such-program)" in caplog.text


async def test_changes_are_heard_over_the_same_wire() -> None:
    """The cache follows, a client listens, and both do so again after a restart (U-31, L-16)."""
    async with running({"files": program()}) as gateway:
        [uri] = (await gateway.ask("resources/list")).names
        wanted = {"toolsListChanged": True, "resourceSubscriptions": [uri]}
        async with listening(gateway, wanted) as stream:
            await gateway.ask("tools/call", {"name": "files__change"})
            assert await told(stream) == (TOOLS_CHANGED, None)
            update = {"name": "files__update", "arguments": {"uri": "test://note"}}
            await gateway.ask("tools/call", update)
            assert await told(stream) == (UPDATED, uri)
            pid = (await gateway.ask("tools/call", {"name": "files__pid"})).text
            os.kill(pid, signal.SIGKILL)
            assert await told(stream) == (UPDATED, uri)  # nobody knows what was missed
            update["arguments"] = {"uri": "test://note"}
            await gateway.ask("tools/call", update)
            assert await told(stream) == (UPDATED, uri)


async def test_the_gateways_environment_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program gets a small one and what is configured for it, its folder too (B28, U-32)."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    async with running({"files": program(cwd="/")}) as gateway:
        environment = (await gateway.ask("tools/call", {"name": "files__environment"})).text
        assert "AWS_SECRET_ACCESS_KEY" not in environment
        assert environment[MARK] == "none"
        assert environment["PATH"] == f"/usr/bin:/bin:{Path(sys.executable).parent}"
        assert (await gateway.ask("tools/call", {"name": "files__fold"})).text["cwd"] == "/"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_no_process_outlives_the_gateway(ending: signal.Signals) -> None:
    """However it ends, and however its programs behave (B27)."""
    text = mark()
    manners = ["--ignore-term", "--grandchild", "--daemon"]
    upstreams = {
        name: {"command": sys.executable, "args": [str(SERVER), *manners, *era], "env": {MARK: text}}
        for name, era in {"modern": [], "legacy": ["--era", "legacy"]}.items()
    }
    with processes.gateway(json.dumps(upstreams)) as served:
        client = Reachable(Addresses([served.endpoint], None))
        for name in upstreams:
            answer = await client.ask("tools/call", {"name": f"{name}__pid"})
            assert answer.text > 0
        assert len(await asyncio.to_thread(marked, text)) == 8
        served.program.process.send_signal(ending)
        await asyncio.to_thread(served.program.wait, 15)
        await none_left(text)


FORM = {"elicitation": {"form": {}}}


async def programs(text: str) -> int:
    """Return how many programs run, their keepers left out."""
    return len(await asyncio.to_thread(marked, text)) // 2


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(("isolation", "heard"), [("shared", "ann's"), ("caller", None), (None, "ann's")])
async def test_what_a_program_remembers_is_shared_or_kept_apart(
    era: str, isolation: str | None, heard: str | None
) -> None:
    """By the caller's credential; callers without one are nobody, and share the gateway's own (B07)."""
    text = mark()
    settings = program("--era", era, text=text, isolation=isolation)
    async with running({"files": settings}) as gateway:

        async def note(token: str | None) -> Any:
            return (await gateway.ask("tools/call", {"name": "files__get_note"}, token=token)).text

        setting = {"name": "files__set_note", "arguments": {"text": "ann's"}}
        await gateway.ask("tools/call", setting, token="TOK-ANN")
        assert await note("TOK-ANN") == "ann's"
        assert await note("TOK-BOB") == heard
        assert await note(None) == heard
        assert await programs(text) == (3 if isolation == "caller" else 1)
    assert await programs(text) == 0


@pytest.mark.parametrize("isolation", ["shared", "caller", "session"])
async def test_what_processes_of_callers_answer_is_shared_with_nobody(isolation: str) -> None:
    """They know of their caller alone; of one that serves all, `public` counts as any server's (C-24)."""
    async with running({"files": program(isolation=isolation)}) as gateway:
        scope = "public" if isolation == "shared" else "private"
        listed = [await gateway.ask("tools/list", token=token) for token in ("TOK-A", "TOK-B", "TOK-A")]
        assert [one.hints[1] for one in listed] == [scope] * 3
        words = [(one.header("mcp-gateway-cache") or "").partition(";")[0] for one in listed]
        assert words == ["miss", "hit" if isolation == "shared" else "miss", "hit"]
        nobody = await gateway.ask("tools/list")
        said = "hit; reason=fresh" if isolation == "shared" else "bypass; reason=not-shared"
        assert nobody.header("mcp-gateway-cache") == said


async def test_processes_of_callers_are_capped_and_idle_ones_end() -> None:
    """The one idle longest makes room; the gateway's own stays (B29)."""
    text = mark()
    settings = program(text=text, isolation="caller", sessions=3)
    async with running({"files": settings}, admin="127.0.0.1:0") as gateway:
        pids = {}
        for token in ("A", "B", "C", "B", "A"):
            answer = await gateway.ask("tools/call", {"name": "files__pid"}, token=f"TOK-{token}")
            pids.setdefault(token, []).append(answer.text)
        assert pids["B"][0] == pids["B"][1]
        assert pids["A"][0] != pids["A"][1]
        while await gateway.counted('upstream_sessions{upstream="files"}') != 3:
            pass  # the end of a process sends no event to wait for
        assert await gateway.counted('upstream_sessions_displaced_total{upstream="files"}') == 2
        _, status = await gateway.admin("/status.json")
        assert status["upstreams"]["files"]["sessions"] == {"open": 3, "most": 3}
    text = mark()
    settings = program(text=text, isolation="caller", session_idle=0.01)
    async with running({"files": settings}) as gateway:
        shared = (await gateway.ask("tools/call", {"name": "files__pid"})).text
        await gateway.ask("tools/call", {"name": "files__pid"}, token="TOK-A")
        while await programs(text) > 1:  # the end of a process sends no event to wait for
            pass
        assert (await gateway.ask("tools/call", {"name": "files__pid"})).text == shared


async def test_a_program_asks_the_one_caller_it_works_for() -> None:
    """In the middle of a call of an older era, which waits for the answer (M-19, M-22)."""
    settings = program("--era", "legacy", isolation="caller")
    async with running({"files": settings}) as gateway:
        call: dict[str, Any] = {"name": "files__ask", "arguments": {}}
        asked = await gateway.ask("tools/call", call, token="TOK-A", capabilities=FORM)
        [(key, question)] = asked.result["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        assert question["params"]["message"] == "[files] Who?"
        given = {"action": "accept", "content": {"name": "Ann"}}
        call |= {"inputResponses": {key: given}, "requestState": asked.result["requestState"]}
        answer = await gateway.ask("tools/call", call, token="TOK-A", capabilities=FORM)
        assert answer.text == given


async def test_a_call_whose_turn_does_not_come_is_told_why() -> None:
    """The user of another one has not answered yet, which is no fault of the server's."""
    settings = program("--era", "legacy", isolation="caller", timeout="2s")
    async with running({"files": settings}) as gateway:
        options: dict[str, Any] = {"token": "TOK-A", "capabilities": FORM}
        asked = await gateway.ask("tools/call", {"name": "files__ask"}, **options)
        refused = await gateway.ask("tools/call", {"name": "files__pid"}, **options)
        assert "Another call of yours waits for what its user answers" in refused.error["message"]
        assert gateway.status("files").state == "up"
        [key] = asked.result["inputRequests"]
        given = {"action": "accept", "content": {"name": "Ann"}}
        answers = {"inputResponses": {key: given}, "requestState": asked.result["requestState"]}
        assert (await gateway.ask("tools/call", {"name": "files__ask", **answers}, **options)).text == given


async def test_calls_that_may_be_asked_something_take_turns() -> None:
    """Else nobody could tell whose the question is (M-22)."""
    settings = program("--era", "legacy", isolation="caller")
    async with running({"files": settings}) as gateway:
        options: dict[str, Any] = {"token": "TOK-A", "capabilities": FORM}
        async with gateway.open("tools/call", {"name": "files__ask"}, **options) as first:
            asked = (await first.answer()).result
        async with gateway.open("tools/call", {"name": "files__pid"}, **options) as second:
            [key] = asked["inputRequests"]
            retry = {
                "name": "files__ask",
                "inputResponses": {key: {"action": "decline"}},
                "requestState": asked["requestState"],
            }
            answer = await gateway.ask("tools/call", retry, **options)
            assert answer.text == {"action": "decline"}
            assert (await second.answer()).text > 0


@pytest.mark.parametrize("isolation", ["shared", "caller"])
async def test_a_program_that_serves_many_may_ask_nobody(isolation: str) -> None:
    """Nothing is declared to it, and it is told so when it asks all the same (M-22)."""
    async with running({"files": program("--era", "legacy", isolation=isolation)}) as gateway:
        answer = await gateway.ask("tools/call", {"name": "files__ask"}, capabilities=FORM)
        assert answer.text["code"] == -32601


async def test_an_older_program_tells_of_changes_over_a_restart() -> None:
    """On the channel, to whoever listens; subscriptions are made anew (L-26)."""
    async with running({"files": program("--era", "legacy")}) as gateway:
        [uri] = (await gateway.ask("resources/list")).names
        wanted = {"toolsListChanged": True, "resourceSubscriptions": [uri]}
        async with listening(gateway, wanted) as stream:
            await gateway.ask("tools/call", {"name": "files__change"})
            assert await told(stream) == (TOOLS_CHANGED, None)
            update = {"name": "files__update", "arguments": {"uri": "test://note"}}
            await gateway.ask("tools/call", update)
            assert await told(stream) == (UPDATED, uri)
            os.kill((await gateway.ask("tools/call", {"name": "files__pid"})).text, signal.SIGKILL)
            assert await told(stream) == (UPDATED, uri)  # nobody knows what was missed
            await seen(gateway, "resources/subscribe")


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
async def test_a_server_of_the_official_sdk_is_served(era: str) -> None:
    """Whichever era it is greeted in, clients see the same."""
    settings = {"command": sys.executable, "args": [str(SERVER.with_name("sdk.py"))], "era": era}
    async with running({"sdk": settings}, startup_wait=15.0) as gateway:
        assert gateway.status("sdk").era == ("legacy" if era == "legacy" else "modern")
        assert (await gateway.ask("tools/list")).names == ["sdk__add", "sdk__count"]
        added = await gateway.ask("tools/call", {"name": "sdk__add", "arguments": {"a": 2, "b": 3}})
        assert added.result["structuredContent"] == {"result": 5}
        counted = await gateway.ask(
            "tools/call", {"name": "sdk__count", "arguments": {"to": 3}}, meta={"progressToken": "t"}
        )
        assert [notice["params"]["progress"] for notice in counted.notices] == [1, 2, 3]
        [uri] = (await gateway.ask("resources/list")).names
        read = await gateway.ask("resources/read", {"uri": uri})
        assert read.result["contents"][0]["text"] == "first"
        prompt = {"name": "sdk__greet", "arguments": {"name": "Ann"}}
        got = await gateway.ask("prompts/get", prompt)
        assert got.result["messages"][0]["content"]["text"] == "Hello Ann"


async def test_what_one_caller_does_to_their_own_program_is_no_other_callers_matter() -> None:
    """The upstream stays up, its cache too, and the next call of that caller gets another process."""
    async with running({"files": program(isolation="caller")}) as gateway:
        await gateway.ask("tools/call", {"name": "files__pid"}, token="TOK-B")
        died = await gateway.ask(
            "tools/call", {"name": "files__die", "arguments": {"code": 9}}, token="TOK-A"
        )
        assert died.error["message"] == "upstream files: its program ended, exit code 9"
        assert gateway.status("files").state == "up"
        assert (await gateway.ask("tools/call", {"name": "files__pid"}, token="TOK-A")).text > 0
        assert await gateway.counted('cache_invalidations_total{cause="reconnect"') == 0


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_change_in_a_callers_own_program_is_that_callers(era: str) -> None:
    """C-30: what was kept of it is forgotten, whoever listens to what; other callers keep theirs."""
    rules = {"min_ttl": {"tools/list": "10m"}}
    async with running({"files": program("--era", era, isolation="caller", cache=rules)}) as gateway:

        async def listed(token: str) -> str:
            answer = await gateway.ask("tools/list", token=token)
            return (answer.header("mcp-gateway-cache") or "").partition(";")[0]

        for token in ("TOK-A", "TOK-B"):
            assert [await listed(token), await listed(token)] == ["miss", "hit"]
        await gateway.ask("tools/call", {"name": "files__change"}, token="TOK-A")
        await gateway.until_counted('cache_invalidations_total{cause="list_changed"', 1)
        assert [await listed("TOK-B"), await listed("TOK-A")] == ["hit", "miss"]


async def test_sessions_of_older_clients_have_processes_of_their_own() -> None:
    """With `isolation: session`, with a credential or without; questions reach their session (M-15)."""
    settings = program("--era", "legacy", isolation="session")
    async with running({"files": settings}) as gateway:
        at = gateway.addresses.endpoints[0]
        async with (
            LegacyClient(at, "2025-06-18", capabilities={"elicitation": {}}) as ann,
            LegacyClient(at, "2025-06-18", capabilities={"elicitation": {}}) as bob,
        ):
            setting = {"name": "files__set_note", "arguments": {"text": "ann's"}}
            await ann.result("tools/call", setting)
            for client, heard in ((ann, '"ann\'s"'), (bob, "null")):
                got = await client.result("tools/call", {"name": "files__get_note", "arguments": {}})
                assert got["content"][0]["text"] == heard
            async with bob.open("tools/call", {"name": "files__ask", "arguments": {}}) as posted:
                question = await posted.next()
                assert question is not None
                assert question["method"] == "elicitation/create"
                await bob.respond(question["id"], {"action": "accept", "content": {"name": "Bob"}})
                answered = (await posted.answer())["result"]
                assert json.loads(answered["content"][0]["text"])["content"] == {"name": "Bob"}
