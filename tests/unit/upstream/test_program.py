"""A program that was started: what it is given, what it says, and that none of it is left."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from pydantic import SecretStr

from gateway import config
from gateway.protocol.call import Reason, UpstreamName
from gateway.protocol.lines import TooLong
from gateway.support.tasks import Background
from gateway.upstream.failures import Failed, ProgramEnded
from gateway.upstream.program import Allowance, Launch, Program, ending, environment
from tests.support.kin import MARK, mark, marked, none_left, zombies

SERVER = Path(__file__).parents[2] / "support" / "programs" / "server.py"
NAME = UpstreamName("files")
DISCOVER = b'{"jsonrpc":"2.0","id":1,"method":"server/discover"}'


def launch(*arguments: str, text: str = "none", **members: object) -> Launch:
    """Return the scripted server with these manners."""
    settings = config.Upstream.model_validate({"url": "http://127.0.0.1:1/", "prefix": "files"}).model_copy(
        update={
            "url": None,
            "command": sys.executable,
            "args": [str(SERVER), *arguments],
            "env": {MARK: SecretStr(text)},
            **members,
        }
    )
    return Launch.of(NAME, settings, {"PATH": "/usr/bin:/bin", "HOME": "/tmp"})


@asynccontextmanager
async def started(how: Launch, *, limit: int = 2**20, step: float = 0.3) -> AsyncIterator[Program]:
    background = Background()
    program = await Program.start(how, limit=limit, background=background, step=step)
    try:
        yield program
    finally:
        await program.stop()
        await background.close(1)


async def said(program: Program, count: int = 1) -> list[bytes | TooLong]:
    found: list[bytes | TooLong] = []
    while len(found) < count:
        found += await program.receive()
    return found


async def ask(program: Program, id: int, name: str, **arguments: object) -> None:
    params = {"name": name, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    await program.send(json.dumps(message).encode(), 5)


async def test_a_line_goes_in_and_a_line_comes_out() -> None:
    text = mark()
    async with started(launch(text=text)) as program:
        await program.send(DISCOVER, 5)
        [line] = await said(program)
        assert isinstance(line, bytes)
        assert json.loads(line)["id"] == 1
        assert await asyncio.to_thread(marked, text) != []
    assert await asyncio.to_thread(marked, text) == []
    assert zombies() == []


async def test_the_environment_is_small() -> None:
    """Nothing is inherited but what any program needs (B28)."""
    environ = {
        "PATH": "/bin",
        "HOME": "/home/a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "SHELL": "() { :; }",
        "LC_ALL": "C",
    }
    assert environment(environ, {"KEY": "v", "HOME": "/else"}) == {
        "PATH": "/bin",
        "HOME": "/else",
        "LC_ALL": "C",
        "KEY": "v",
    }
    windows = {"Path": "C:\\bin", "ComSpec": "cmd", "SystemRoot": "C:\\W", "AWS_SECRET_ACCESS_KEY": "s"}
    assert environment(windows, {"key": "v"}, windows=True) == {
        "PATH": "C:\\bin",
        "COMSPEC": "cmd",
        "SYSTEMROOT": "C:\\W",
        "KEY": "v",
    }


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/usr/bin:/bin", "/usr/bin:/bin:/venv/bin"),
        ("/venv/bin:/bin", "/venv/bin:/bin"),
        (None, f"{os.defpath}:/venv/bin"),
    ],
)
def test_its_path_ends_where_the_gateway_was_installed(path: str | None, found: str) -> None:
    """Whoever starts the gateway by its whole path has not activated anything; what is configured stays."""
    environ = {} if path is None else {"PATH": path}
    assert environment(environ, {}, beside="/venv/bin") == {"PATH": found}
    assert environment(environ, {"PATH": "/own"}, beside="/venv/bin") == {"PATH": "/own"}


def test_on_windows_as_well() -> None:
    found = environment({"Path": "C:\\bin"}, {}, beside="C:\\venv\\Scripts", windows=True)
    assert found == {"PATH": "C:\\bin;C:\\venv\\Scripts"}


async def test_a_program_beside_the_interpreter_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And finds the others there itself."""
    script = tmp_path / "only-here"
    script.write_text('#!/bin/sh\necho "$PATH"\n')
    script.chmod(0o755)
    monkeypatch.setattr("gateway.upstream.program._BESIDE", str(tmp_path))
    async with started(launch(command="only-here", args=[])) as program:
        assert await said(program) == [f"/usr/bin:/bin:{tmp_path}".encode()]


def test_one_on_path_goes_before_one_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sh").write_text("not this one")
    (tmp_path / "sh").chmod(0o755)
    monkeypatch.setattr("gateway.upstream.program._BESIDE", str(tmp_path))
    assert launch(command="sh").resolved() in ("/usr/bin/sh", "/bin/sh")


async def test_the_program_has_that_environment_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    async with started(launch()) as program:
        await ask(program, 1, "environment")
        [line] = await said(program)
        assert isinstance(line, bytes)
        seen = json.loads(json.loads(line)["result"]["content"][0]["text"])
    assert seen.keys() - {"LC_CTYPE"} == {"PATH", "HOME", MARK}  # python itself sets LC_CTYPE


@pytest.mark.parametrize(
    ("manners", "how"),
    [
        ((), "exit code 0"),
        (("--ignore-term",), "killed by SIGKILL"),
        (("--grandchild",), "exit code 0"),
        (("--daemon",), "exit code 0"),
        (("--ignore-term", "--grandchild", "--daemon"), "killed by SIGKILL"),
    ],
)
async def test_stopping_leaves_no_child_grandchild_or_zombie(manners: tuple[str, ...], how: str) -> None:
    """Its stdin is closed, then comes SIGTERM, then SIGKILL, to all that it started (U-31, B27)."""
    text = mark()
    async with started(launch(*manners, text=text)) as program:
        await program.send(DISCOVER, 5)
        await said(program)
        await program.stop()
        assert await asyncio.to_thread(marked, text) == []
        assert program.end == how
    assert zombies() == []


async def test_a_program_that_ends_by_itself_takes_its_kin_along() -> None:
    """Or the next one would be started beside what the last one left (B27)."""
    text = mark()
    async with started(launch("--grandchild", "--daemon", text=text)) as program:
        await ask(program, 1, "die", code=9)
        with pytest.raises(ProgramEnded) as caught:
            await said(program)
        assert str(caught.value) == "upstream files: its program ended, exit code 9"
        await program.exited()
        assert await asyncio.to_thread(marked, text) == []


async def its_end_by_its_keepers() -> None:
    """See a program end whose keeper is killed, with one of its group that holds its pipes."""
    text = mark()
    async with started(launch("--ignore-term", "--grandchild", text=text)) as program:
        await program.send(DISCOVER, 5)
        await said(program)
        os.kill(program.pid, signal.SIGKILL)
        with pytest.raises(ProgramEnded) as caught:
            await program.receive()
        assert caught.value.detail == "its program ended, killed by SIGKILL"
    await none_left(text)


async def its_end_without_its_daemon() -> None:
    """What left the group of a program whose keeper was killed keeps nobody waiting."""
    text = mark()
    async with started(launch("--daemon", text=text)) as program:
        await program.send(DISCOVER, 5)
        await said(program)
        os.kill(program.pid, signal.SIGKILL)
        with pytest.raises(ProgramEnded):
            await program.receive()
    for daemon in await asyncio.to_thread(marked, text):
        with suppress(ProcessLookupError):
            os.kill(int(daemon.split()[0]), signal.SIGKILL)
    await none_left(text)


async def its_closed_stdout() -> None:
    """See that nothing more is to be heard of one that lives on."""
    text = mark()
    async with started(launch("--ignore-term", text=text)) as program:
        await ask(program, 1, "close_stdout")
        with pytest.raises(ProgramEnded) as caught:
            await program.receive()
        assert caught.value.detail == "its program ended, it closed its stdout"
    assert await asyncio.to_thread(marked, text) == []


async def its_descriptors() -> None:
    """See that it has its three streams alone, whatever the gateway was itself started with."""
    inherited = await asyncio.to_thread(_inherited)
    try:
        async with started(launch()) as first, started(launch()) as second:
            for program in (first, second):
                await program.send(DISCOVER, 5)
                await said(program)
                [command] = await asyncio.to_thread(_children_of, program.pid)
                assert sorted(await asyncio.to_thread(os.listdir, f"/proc/{command}/fd")) == ["0", "1", "2"]
                assert os.fstat(inherited).st_ino not in await asyncio.to_thread(_files_of, program.pid)
    finally:
        os.close(inherited)


def _inherited() -> int:
    """Return a listening socket that children of this process would have as well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        copy = os.dup(listener.fileno())
    os.set_inheritable(copy, True)
    return copy


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _files_of(pid: int) -> list[int]:
    return [each.stat().st_ino for each in Path(f"/proc/{pid}/fd").iterdir()]


@pytest.mark.parametrize(
    "seen", [its_end_by_its_keepers, its_end_without_its_daemon, its_closed_stdout, its_descriptors]
)
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_whatever_the_event_loop_it_is_so(
    loop: Callable[[], asyncio.AbstractEventLoop], seen: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(seen())
    assert zombies() == []


async def test_the_death_of_its_parent_ends_it() -> None:
    """The gateway may be killed, too (B27)."""
    text = mark()
    code = (
        "import asyncio, sys\n"
        "from gateway.support.tasks import Background\n"
        "from gateway.upstream.program import Program\n"
        "from tests.unit.upstream.test_program import DISCOVER, launch\n"
        "async def main():\n"
        f"    how = launch('--ignore-term', '--grandchild', '--daemon', text={text!r})\n"
        "    program = await Program.start(how, limit=99999, background=Background(), step=0.1)\n"
        "    await program.send(DISCOVER, 5)\n"
        "    await program.receive()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"ready\n"
    assert len(await asyncio.to_thread(marked, text)) == 4  # a keeper, the program, and its two
    parent.kill()
    await parent.wait()
    await none_left(text)


async def test_no_such_program() -> None:
    with pytest.raises(Failed, match="connection failed") as caught:
        async with started(launch(command="no-such-program")):
            pass
    assert caught.value.reason is Reason.CONNECT
    assert caught.value.detail == "no program no-such-program"


async def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(Failed) as caught:
        async with started(launch(cwd=str(tmp_path / "none"))):
            pass
    assert caught.value.detail.endswith("cannot be started: No such file or directory")


async def test_a_file_that_is_no_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    async with started(launch(command=str(broken))) as program:
        assert await program.exited() == "exit code 126"
    assert "broken cannot be started: Exec format error" in caplog.text


async def test_a_command_with_a_folder_is_found_from_its_cwd(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "run"
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o755)
    async with started(launch(command="bin/run", args=[], cwd=str(tmp_path))) as program:
        assert await said(program) == [str(tmp_path).encode()]


async def test_stderr_is_always_read_and_a_little_of_it_told(caplog: pytest.LogCaptureFixture) -> None:
    """A megabyte before the answer fills no pipe; the log gets some lines, tagged, not as errors (B28)."""
    caplog.set_level(logging.INFO)
    async with started(launch("--stderr", "1000000")) as program:
        await program.send(DISCOVER, 5)
        await said(program)
    told = [record for record in caplog.records if "upstream files: stderr: xxx" in record.getMessage()]
    assert 50 <= len(told) < 500
    assert {record.levelno for record in told} == {logging.INFO}


async def test_secrets_are_taken_out_of_what_it_writes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = SecretStr("hunter22")
    script = (
        "import os, sys; print(os.environ['KEY'], file=sys.stderr); print('Bearer abcdefgh', file=sys.stderr)"
    )
    async with started(launch(args=["-c", script], env={"KEY": secret})) as program:
        await program.exited()
    assert "hunter22" not in caplog.text
    assert "abcdefgh" not in caplog.text
    assert caplog.text.count("stderr: ") == 2


async def test_a_line_beyond_the_limit_is_skipped_and_the_program_lives_on() -> None:
    async with started(launch(), limit=100_000) as program:
        await ask(program, 1, "size", bytes=5_000_000)
        await ask(program, 2, "size", bytes=90_000)
        long, line = await said(program, 2)
        assert isinstance(long, TooLong)
        assert long.id() == b"1"
        assert isinstance(line, bytes)
        assert json.loads(line)["id"] == 2


async def test_fifteen_megabytes_pass_in_one_line_either_way() -> None:
    """asyncio itself stops at 64 KiB (B25)."""
    async with started(launch(), limit=2**25) as program:
        await ask(program, 1, "size", bytes=15_000_000)
        [line] = await said(program)
        assert len(line) > 15_000_000 if isinstance(line, bytes) else False
        await ask(program, 2, "echo", text="x" * 3_000_000)
        [line] = await said(program)
        assert len(line) > 3_000_000 if isinstance(line, bytes) else False


async def test_a_program_that_does_not_read_stops_nobody() -> None:
    async with started(launch(args=["-c", "import time; time.sleep(600)"]), limit=2**22) as program:
        await program.send(b"x" * 2_000_000, 0.1)  # more than any pipe holds: the rest waits beside it
        with pytest.raises(Failed) as caught:
            await program.send(DISCOVER, 0.1)
        assert (caught.value.reason, caught.value.unsent) == (Reason.TIMEOUT, True)
        assert program.post(b"a word")
    assert program.end == "killed by SIGTERM"


async def test_nothing_is_sent_to_a_program_that_ended() -> None:
    async with started(launch("--crash", "7")) as program:
        await program.exited()
        with pytest.raises(ProgramEnded) as caught:
            await program.send(DISCOVER, 5)
        assert caught.value.unsent
        assert not program.post(b"a word")


async def test_stopping_fails_what_waits_as_stopping() -> None:
    async with started(launch()) as program:
        reading = asyncio.ensure_future(said(program))
        await program.stop()
        with pytest.raises(Failed) as caught:
            await reading
        assert caught.value.reason is Reason.STOPPING


def test_some_pass_and_the_others_are_counted() -> None:
    now = [0.0]
    allowance = Allowance(2, 1.0, lambda: now[0])
    assert [allowance.passes() for _ in range(5)] == [0, 0, None, None, None]
    now[0] = 1.0
    assert [allowance.passes() for _ in range(2)] == [3, None]


def test_how_a_program_ended() -> None:
    assert [ending(code) for code in (0, 3, 137, -9, 127, 255)] == [
        "exit code 0",
        "exit code 3",
        "killed by SIGKILL",
        "killed by SIGKILL",
        "exit code 127",
        "exit code 255",
    ]
