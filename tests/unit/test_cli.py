"""What the commands print, and how they end."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.app import ToolLine, ToolListing
from gateway.cli import main
from gateway.config import VERSION, Config, load, schema
from gateway.reloader import Origin
from gateway.server import Addresses

GOOD = (
    "upstreams:\n  time: http://127.0.0.1:9001/mcp?key=hunter2\n"
    "  gh: {url: https://gh.example/mcp, auth: {bearer: hunter2}}\n"
    "endpoints: {/mcp: {}, /mcp/dev: {upstreams: [gh]}}\n"
)


class ScriptedApp:
    """Plays gateway.app: the commands must need nothing else of it."""

    def __init__(
        self, *, code: int = 0, error: BaseException | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        self.code = code
        self.error = error
        self.problems = problems
        self.asked: list[str] = []
        self.warnings: tuple[str, ...] = ()
        self.config: Config | None = None

    def serve(
        self,
        config: Config,
        *,
        ready: Callable[[Addresses], None] | None = None,
        warnings: Sequence[str] = (),
        origin: Origin | None = None,
    ) -> int:
        self.config, self.warnings = config, tuple(warnings)
        assert origin is not None
        assert origin.read(lambda _: None) == config
        if self.error:
            raise self.error
        assert ready is not None
        ready(
            Addresses(
                tuple(f"http://127.0.0.1:4711{path}" for path in config.endpoints), "http://127.0.0.1:4712"
            )
        )
        return self.code

    def serve_stdio(
        self,
        config: Config,
        endpoint: str,
        *,
        authorization: str | None = None,
        warnings: Sequence[str] = (),
        origin: Origin | None = None,
    ) -> int:
        self.asked.append(f"{endpoint} {config.admin} {authorization}")
        if self.error:
            raise self.error
        return self.code

    async def list_tools(
        self,
        config: Config,
        endpoint: str,
        *,
        caller: str | None = None,
        scopes: Sequence[str] = (),
        claims: Mapping[str, object] | None = None,
    ) -> ToolListing:
        self.asked.append(endpoint)
        if self.error:
            raise self.error
        tools = (
            ()
            if endpoint == "/empty"
            else (ToolLine("gh__find", "gh", "search", "Find \x1b[31mthings\nmore"),)
        )
        if caller is None:
            return ToolListing(tools, self.problems)
        granted = f"{caller} {sorted(scopes)} {dict(claims or {})}"
        return ToolListing(tools, self.problems, (("gh__\x1b[31mdrop", granted),))


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text("admim: off\nupstreams: {gh: {url: http://gh, timout: 1s}}\n")
    return str(path)


# check


def test_check_says_that_a_file_is_fine(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what is in it; nothing is started, and nothing needs to be reachable."""
    assert main(["check", good]) == 0
    assert capsys.readouterr() == (f"{good}: fine, 2 upstreams, 2 endpoints\n", "")


def test_check_lists_every_problem_and_what_to_do(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line per problem, on stderr, then the next step."""
    assert main(["check", bad]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[:2] == [
        f"{bad}:1: admim: unknown key; did you mean `admin`?",
        f"{bad}:2: upstreams.gh.timout: unknown key; did you mean `timeout`?",
    ]
    assert err.splitlines()[2] == "error: 2 problems in the configuration"
    assert err.splitlines()[-1] == (
        f"next: mend this and try `mcp-gateway check {bad}`; `mcp-gateway schema` prints every key"
    )
    assert main(["serve", "-c", bad], app=ScriptedApp()) == 2
    assert f"`mcp-gateway check {bad}`" in capsys.readouterr().err


def test_check_answers_programs(good: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same facts as data, on stdout, with the same exit code."""
    assert main(["check", good, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "problems": [], "warnings": []}
    assert main(["check", bad, "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["problems"][0] == {
        "file": bad, "line": 1, "path": "admim", "message": "unknown key; did you mean `admin`?"
    }  # fmt: skip


def test_warnings_do_not_fail_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Allowed is allowed."""
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"My Server": {"url": "http://a/mcp"}}}')
    assert main(["check", str(path)]) == 0
    assert 'warning: mcpServers."My Server" becomes the upstream my-server' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "serve", "tools", "doctor"])
def test_a_missing_file_is_said_plainly(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for what happens every day."""
    missing = str(tmp_path / "nope.yaml")
    assert main([command, missing], app=ScriptedApp()) == 2
    err = capsys.readouterr().err
    assert f"{missing}: cannot be read: No such file or directory" in err
    assert "Traceback" not in err


# serve


@pytest.mark.parametrize("arguments", [["--config"], ["-c"], []])
def test_serve_says_where_everything_is(
    arguments: list[str], good: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As bound, with each upstream, and without a secret (B42)."""
    assert main(["serve", *arguments, good], app=ScriptedApp()) == 0
    out = capsys.readouterr().out
    assert "http://127.0.0.1:4711/mcp/dev" in out
    assert "http://127.0.0.1:4712" in out
    assert "https://gh.example/mcp" in out
    assert "auth bearer" in out
    assert "hunter2" not in out


def test_serve_tells_programs_in_one_line(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A test or a supervisor reads the ports that `port 0` became."""
    assert main(["serve", good, "--json"], app=ScriptedApp()) == 0
    assert json.loads(capsys.readouterr().out) == {
        "endpoints": {"/mcp": "http://127.0.0.1:4711/mcp", "/mcp/dev": "http://127.0.0.1:4711/mcp/dev"},
        "admin": "http://127.0.0.1:4712",
        "upstreams": ["time", "gh"],
        "verified": False,
        "anonymous": True,
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "not verified: everybody comes in  may use everything"),
        ("access: {default: deny}", "not verified: everybody comes in  0 rules of access, else denied"),
        (
            "authentication: {tokens: {corp: {issuer: 'https://a'}}, anonymous: true, keys: {ci: {hash: "
            f"'sha256:{64 * 'a'}'}}}}}}\naccess: {{rules: [{{deny: true}}], default: allow}}",
            "verified by tokens of corp or 1 API key; others are anonymous  1 rule of access, else allowed",
        ),
    ],
)
def test_serve_says_who_comes_in(
    more: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever starts it sees whether it is open to all."""
    path = tmp_path / "gateway.yaml"
    path.write_text(f"upstreams: {{a: http://a}}\n{more}\n")
    assert main(["serve", str(path)], app=ScriptedApp()) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "callers" in line]
    assert " ".join(said.split()) in " ".join(line.split())


def test_serve_listens_where_it_is_told_whatever_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A servers file says nothing of it; what is told is judged as if it stood there."""
    path, app = tmp_path / "mcp.json", ScriptedApp()
    path.write_text('{"mcpServers": {"a": {"url": "http://a/mcp"}}}')
    assert main(["serve", str(path), "--listen", "0.0.0.0:81", "--admin", "off"], app=app) == 0
    assert app.config is not None
    assert (app.config.listen, app.config.admin) == ("0.0.0.0:81", "off")
    assert any("answers to any Host header" in warning for warning in app.warnings)
    assert main(["serve", str(path), "--listen", "nowhere"], app=app) == 2
    assert "--listen: expected host:port" in capsys.readouterr().err


def test_serve_hands_warnings_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads JSON lines gets JSON lines; what stops the start is said in words."""
    path, app = tmp_path / "mcp.json", ScriptedApp()
    path.write_text('{"mcpServers": {"My Server": {"url": "http://a/mcp"}}}')
    assert main(["serve", str(path)], app=app) == 0
    assert capsys.readouterr().err == ""
    assert app.warnings == (
        'mcpServers."My Server" becomes the upstream my-server: its tools are named after that',
    )
    path.write_text('{"mcpServers": {"My Server": {"url": "nope"}}}')
    assert main(["serve", str(path)], app=app) == 2
    assert 'warning: mcpServers."My Server" becomes' in capsys.readouterr().err


def test_serve_ends_with_the_code_of_the_gateway(good: str) -> None:
    """A second signal ends with 1."""
    assert main(["serve", good], app=ScriptedApp(code=1)) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EADDRINUSE, "address already in use"), "another port"),
        (PermissionError(errno.EACCES, "permission denied"), "above 1023"),
        (OSError(errno.EADDRNOTAVAIL, "cannot assign"), "an address of this machine"),
        (OSError(-2, "Name or service not known"), "an address of this machine"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/run/ca.pem"), "/run/ca.pem"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_gateway_that_cannot_start_says_what_to_do(
    error: BaseException, said: str, good: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1: the configuration is right, the machine is not ready for it."""
    assert main(["serve", good], app=ScriptedApp(error=error)) == 1
    assert said in capsys.readouterr().err


# tools


def test_tools_shows_what_a_client_sees(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Name, origin, first line; what an upstream wrote does not steer the terminal."""
    app = ScriptedApp()
    assert main(["tools", "--config", good], app=app) == 0
    out = capsys.readouterr().out
    assert out.split()[:3] == ["gh__find", "gh:", "search"]
    assert "\x1b" not in out
    assert "more" not in out
    assert app.asked == ["/mcp"]


def test_tools_asks_for_the_endpoint_named(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An endpoint that is not there is wrong usage."""
    app = ScriptedApp()
    assert main(["tools", good, "--endpoint", "/mcp/dev", "--json"], app=app) == 0
    assert json.loads(capsys.readouterr().out)["tools"] == [
        {
            "name": "gh__find",
            "upstream": "gh",
            "original": "search",
            "description": "Find \x1b[31mthings\nmore",
        }
    ]
    assert main(["tools", good, "--endpoint", "/nope"], app=app) == 2
    assert "next: use --endpoint /mcp or --endpoint /mcp/dev" in capsys.readouterr().err
    assert app.asked == ["/mcp/dev"]


def test_tools_that_are_missing_are_a_problem(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, in both forms."""
    app = ScriptedApp(problems=("gh: connection failed",))
    assert main(["tools", good], app=app) == 1
    assert "problem: gh: connection failed" in capsys.readouterr().err
    assert main(["tools", good, "--json"], app=app) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["gh: connection failed"]


def test_tools_that_cannot_be_asked_for_say_what_to_do(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A certificate that went away since the file was checked."""
    error = FileNotFoundError(errno.ENOENT, "No such file", "/run/ca.pem")
    assert main(["tools", good], app=ScriptedApp(error=error)) == 1
    assert "cannot read /run/ca.pem" in capsys.readouterr().err


def test_no_tools_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty answer would look like a failure."""
    path = tmp_path / "c.yaml"
    path.write_text("upstreams: {a: http://a}\nendpoints: {/empty: }")
    assert main(["tools", str(path)], app=ScriptedApp()) == 0
    assert capsys.readouterr().out == "/empty shows no tools\n"


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (["--as", "corp:alice"], "corp:alice [] {}"),
        (["--as", "corp:alice", "--scopes", "b a"], "corp:alice ['a', 'b'] {}"),
        (["--as", "corp:alice", "--claims", '{"groups": ["dev"]}'], "corp:alice [] {'groups': ['dev']}"),
    ],
)
def test_tools_are_shown_as_a_caller_sees_them(
    good: str, capsys: pytest.CaptureFixture[str], asked: list[str], granted: str
) -> None:
    """Behind the list stands what rules keep from it."""
    assert main(["tools", "--config", good, *asked], app=ScriptedApp()) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"gh__ [31mdrop: {granted}"
    assert main(["tools", "--config", good, "--json", *asked], app=ScriptedApp()) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == [{"name": "gh__\x1b[31mdrop", "why": granted}]


def test_a_caller_that_cannot_be_is_said(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows is about nobody, so a slip of the pen is not taken for an answer."""
    said = "without `authentication` everybody is `anonymous`"
    assert main(["tools", "--config", good, "--as", "Key:ci"], app=ScriptedApp()) == 0
    assert f"warning: {said}" in capsys.readouterr().err
    assert main(["tools", "--config", good, "--json", "--as", "Key:ci"], app=ScriptedApp()) == 0
    assert json.loads(capsys.readouterr().out)["warning"] == said
    assert main(["tools", "--config", good, "--as", "anonymous"], app=ScriptedApp()) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked",
    [["--scopes", "a"], ["--claims", "{}"], ["--as", "x", "--claims", "[]"], ["--as", "x", "--claims", "{"]],
)
def test_scopes_and_claims_are_some_callers(
    good: str, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    """Nobody is asked for what makes no sense."""
    app = ScriptedApp()
    assert main(["tools", "--config", good, *asked], app=app) == 2
    assert "--as corp:alice" in capsys.readouterr().err
    assert app.asked == []


# explain, purge


class Admin:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        self.status = 200
        self.answer: object = {}
        playing = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                playing.asked.append((self.command, self.path, self.headers.get("Authorization"), body))
                said = json.dumps(playing.answer).encode()
                self.send_response(playing.status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.file = str(folder / "running.yaml")
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        Path(self.file).write_text(f"admin: {self.address}\nupstreams: {{gh: http://gh.example}}\n")

    def __enter__(self) -> "Admin":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    """Play the operators' listener of a running gateway; the file beside it names its address."""
    with Admin(tmp_path) as playing:
        yield playing


LOOKUP = {"verdict": "HIT", "reason": "hit", "key": {"upstream": "gh", "target": None, "partition": "ab12"}}
KEPT = {"arm": "private", "scope": "private", "age": 12.0, "ttl": 60.0, "remaining": 48.0, "bytes": 9}
EXPLAINED = {
    "endpoint": "/mcp",
    "method": "tools/list",
    "caller": "ab12",
    "profile": "p",
    "verdict": "BYPASS",
    "reason": "partial",
    "view": {"remembered": False},
    "parts": [
        {
            "upstream": "gh",
            "verdict": "HIT",
            "reason": "fresh",
            "lookups": [LOOKUP | KEPT | {"overrides": ["min_ttl"]}],
        },
        {"upstream": "time", "verdict": "BYPASS", "reason": "upstream-down", "lookups": []},
    ],
}


def test_explain_prints_part_by_part(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict, reason, what is kept and under which key; what has no value is left out."""
    admin.answer = EXPLAINED
    assert main(["explain", "--config", admin.file, "--endpoint", "/mcp", "tools/list", "gh__find"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "/mcp tools/list for ab12: BYPASS partial"
    assert "private arm, scope private, age 12.0s, 48.0s left of 60s, 9 bytes, by min_ttl" in out
    assert "upstream gh, partition ab12" in out
    assert "BYPASS upstream-down" in out
    assert admin.asked == [("GET", "/explain?method=tools%2Flist&endpoint=%2Fmcp&name=gh__find", None, b"")]


def test_explain_asks_on_behalf_of_a_token(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands in the environment, never in the list of processes, and is not printed."""
    admin.answer = EXPLAINED
    asked = ["explain", "--config", admin.file, "--token-env", "TOK", "--json", "resources/read", "a:1"]
    monkeypatch.setenv("TOK", "hunter2\n")
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out) == EXPLAINED
    monkeypatch.setenv("TOK", "Basic aHVudGVyMg==")
    assert main(asked) == 0
    path = "/explain?method=resources%2Fread&uri=a%3A1"
    assert admin.asked == [("GET", path, "Bearer hunter2", b""), ("GET", path, "Basic aHVudGVyMg==", b"")]
    for wrong in ("", "two\nlines hunter2"):
        monkeypatch.setenv("TOK", wrong)
        capsys.readouterr()
        assert main(asked) == 2
        assert "hunter2" not in capsys.readouterr().err


def test_explain_hands_the_arguments_of_a_call_on(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    """As they are written; what is too long to be kept is not even asked about."""
    admin.answer = EXPLAINED
    asked = ["explain", "--config", admin.file, "tools/call", "gh__find", "--arguments"]
    assert main([*asked, '{"q": 1}']) == 0
    assert admin.asked[0][1].endswith("&name=gh__find&arguments=%7B%22q%22%3A+1%7D")
    assert main([*asked, '{"q": "' + "x" * 70_000 + '"}']) == 2
    assert "is kept\nnext: " in capsys.readouterr().err
    assert len(admin.asked) == 1


def test_explain_of_what_is_not_known_is_a_problem(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, in both forms."""
    admin.answer = EXPLAINED | {"view": None, "parts": [], "problem": "no upstream has it"}
    assert main(["explain", "--config", admin.file, "resources/read", "a:1"]) == 1
    assert "no upstream has it" in capsys.readouterr().err
    assert main(["explain", "--config", admin.file, "--json", "resources/read", "a:1"]) == 1


def test_purge_says_what_it_forgot(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it when nothing is named."""
    admin.answer = {"purged": [{"upstream": "gh", "method": None, "uri": None}]}
    assert main(["purge", "--config", admin.file]) == 0
    assert capsys.readouterr().out == "forgotten:\n  gh  everything\n"
    assert (
        main(["purge", "-c", admin.file, "gh", "--method", "resources/read", "--uri", "a:1", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == admin.answer
    assert [json.loads(body) for *_, body in admin.asked] == [
        {"all": True},
        {"upstream": "gh", "method": "resources/read", "uri": "a:1"},
    ]


def test_purge_of_a_callers_own_hands_the_token_on_in_a_header(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never in the body, nor on the command line; alone or beside what else narrows it."""
    admin.answer = {"purged": [{"upstream": "gh", "method": None, "uri": None, "caller": "ab12"}]}
    monkeypatch.setenv("TOK", "hunter2")
    asked = ["purge", "-c", admin.file, "--token-env", "TOK"]
    assert main(asked) == 0
    assert capsys.readouterr() == ("forgotten:\n  gh  everything  of caller ab12\n", "")
    assert main([*asked, "gh", "--method", "tools/list"]) == 0
    assert [(authorization, json.loads(body)) for _, _, authorization, body in admin.asked] == [
        ("Bearer hunter2", {"caller": True}),
        ("Bearer hunter2", {"upstream": "gh", "method": "tools/list", "caller": True}),
    ]
    monkeypatch.setenv("TOK", "")
    assert main(asked) == 2
    assert "next: export TOK=TOKEN" in capsys.readouterr().err
    assert len(admin.asked) == 2


def test_purge_of_an_unknown_upstream_asks_nobody(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage."""
    assert main(["purge", "--config", admin.file, "nope"]) == 2
    assert "choose one of gh" in capsys.readouterr().err
    assert admin.asked == []


@pytest.mark.parametrize("command", [["explain", "tools/list"], ["purge"]])
def test_a_gateway_that_was_started_with_another_address_is_asked_there(
    command: list[str], admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the file says, where another gateway may listen; whoever does not know is told."""
    file = tmp_path / "other.yaml"
    file.write_text("admin: 127.0.0.1:1\nupstreams: {gh: http://gh.example}\n")
    asked = [command[0], "--config", str(file), *command[1:]]
    admin.answer = EXPLAINED if command[0] == "explain" else {"purged": []}
    assert main([*asked, "--admin", admin.address]) == 0
    assert len(admin.asked) == 1
    capsys.readouterr()
    assert main(asked) == 1
    assert "and the same --admin" in capsys.readouterr().err
    for wrong in ("off", "nowhere"):
        assert main([*asked, "--admin", wrong]) == 2
        assert "next: use --admin 127.0.0.1:" in capsys.readouterr().err
    assert len(admin.asked) == 1


@pytest.mark.parametrize("command", [["explain", "tools/list"], ["purge"]])
@pytest.mark.parametrize(
    ("status", "answer", "code", "said"),
    [
        (400, {"error": "that cannot be"}, 2, "the gateway refused: that cannot be"),
        (404, {"error": "There is nothing at this path"}, 1, "nothing at this path"),
        (200, ["something else"], 1, "is no MCP Gateway"),
    ],
)
def test_a_gateway_that_refuses_is_quoted(
    command: list[str],
    status: int,
    answer: object,
    code: int,
    said: str,
    admin: Admin,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2 for what makes no sense, 1 for the rest."""
    admin.status, admin.answer = status, answer
    assert main([command[0], "--config", admin.file, *command[1:]]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["explain", "tools/list"], ["purge"]])
@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("off", 2, "`admin: off`"),
        ("127.0.0.1:0", 2, "port 0"),
        ("127.0.0.1:1", 1, "no gateway answers at 127.0.0.1:1: Connection refused"),
    ],
)
def test_a_gateway_that_cannot_be_asked_says_why(
    command: list[str],
    address: str,
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Off and unknown are the configuration's fault, silence is not."""
    path = tmp_path / "c.yaml"
    path.write_text(f"admin: {address}\nupstreams: {{a: http://a}}\n")
    assert main([command[0], "--config", str(path), *command[1:]]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "next: " in err


# schema, version, usage


def test_schema_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """Ready to be redirected into a file."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


@pytest.mark.parametrize("number", ["0", "257", "x", "-1", "9" * 5000])
def test_a_number_that_cannot_be_is_refused_in_words(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what was expected and what was found."""
    with pytest.raises(SystemExit):
        main(["serve", "a.yaml", f"--workers={number}"])
    assert f"--workers: expected a number from 1 to 256, found '{number}'" in capsys.readouterr().err


def test_version_names_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """For people and for programs."""
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"mcp-gateway {VERSION}\n"
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == VERSION


@pytest.mark.parametrize(
    "arguments",
    [[], ["frob"], ["serve"], ["serve", "a", "--config", "b"], ["check"], ["tools"], ["check", "a", "--frob"],
     ["serve", "a", "b"], ["explain", "tools/list"], ["explain", "-c", "a"], ["purge"], ["doctor"],
     ["doctor", "a", "--max-reads", "-1"], ["doctor", "a", "--max-reads", "x"]],
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_a_next_step(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a traceback, never exit code 1."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "--help` shows" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [[], ["serve"], ["check"], ["tools"], ["explain"], ["purge"], ["doctor"], ["schema"], ["version"]],
)
def test_help_is_an_answer(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0; the main one has examples."""
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "usage: mcp-gateway" in out
    assert command or "examples:" in out


def test_quick_commands_do_not_load_the_server() -> None:
    """check, schema and version must be fast: no aiohttp, no gateway.app."""
    code = (
        "import sys; from gateway.cli import main; main(['version']); "
        "sys.exit(any(name in sys.modules for name in ('aiohttp', 'asyncio', 'cryptography', 'gateway.app')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("command", ["serve", "stdio"])
def test_signals_while_it_is_about_to_start_end_nothing(command: str, tmp_path: Path) -> None:
    """What takes time is imported after they are seen to: here they come at its first import."""
    code = (
        "import os, signal, sys\n"
        "class Early:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gateway.commands':\n"
        "            os.kill(os.getpid(), signal.SIGHUP)\n"
        "            os.kill(os.getpid(), signal.SIGUSR2)\n"
        "from gateway.cli import main\n"
        "assert not {'gateway.commands', 'gateway.config', 'pydantic'} & sys.modules.keys()\n"
        "sys.meta_path.insert(0, Early())\n"
        f"sys.argv[1:] = [{command!r}, {str(tmp_path / 'none.yaml')!r}]\n"
        "sys.exit(main())\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ran.returncode == 2, ran
    assert "cannot be read: No such file" in ran.stderr


def test_a_reader_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mcp-gateway schema | head -1` ends quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["schema"]) == 1
        monkeypatch.setattr(sys, "stdout", io.StringIO())


SERVERS = """{"mcpServers": {
  "gh": {"url": "https://gh/mcp", "headers": {"Authorization": "Bearer hunter2"}, "timeout": 5},
  "ed": {"command": "${command:pick}"},
}}
"""


@pytest.fixture
def servers(tmp_path: Path) -> str:
    path = tmp_path / "mcp.json"
    path.write_text(SERVERS)
    return str(path)


def test_init_writes_a_configuration_that_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what comes next; only its owner may read what may come to hold secrets."""
    path = tmp_path / "gateway.yaml"
    assert main(["init", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{path}: written\n"
    assert said.err == f"next: check it with `mcp-gateway check {path}`\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["check", str(path)]) == 0


def test_init_overwrites_nothing(good: str, servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever stands in the file."""
    assert main(["init", good]) == 2
    assert main(["init", good, "--from", servers]) == 2
    assert capsys.readouterr().err.count(f"error: {good} is there already and stays as it is") == 2
    assert Path(good).read_text() == GOOD


def test_init_from_a_servers_file_tells_what_is_left_to_do(
    servers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables to set, what was ignored, what was not taken over."""
    path = Path(servers).with_name("new.yaml")
    assert main(["init", "--from", servers, str(path)]) == 1
    said = capsys.readouterr().err
    assert "warning: mcpServers.gh.timeout is ignored" in said
    assert "problem: mcpServers.ed is not taken over: ${command:pick} is known to the editor only" in said
    assert f"next: set GH_TOKEN, and then try `mcp-gateway check {path}`" in said
    assert main(["check", str(path)]) == 2
    assert "the variable GH_TOKEN is not set" in capsys.readouterr().err
    monkeypatch.setenv("GH_TOKEN", "long-enough")
    assert main(["check", str(path)]) == 0


def test_init_writes_to_stdout(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The text alone; secrets only when they are asked for."""
    assert main(["init", "--from", servers, "-"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("# Written by `mcp-gateway init`")
    assert "hunter2" not in text
    assert main(["init", "--from", servers, "--keep-secrets", "-"]) == 1
    assert "hunter2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upstreams: {a: http://a}", "expected the servers file of an editor"),
        ('{"mcpServers": {}}', "holds no server that can be taken over"),
        ('{"mcpServers": {"a": 5}}', "holds no server that can be taken over"),
        ("{", "not valid YAML"),
    ],
)
def test_init_makes_nothing_of_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """No file is left behind."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(text)
    assert main(["init", "--from", str(source), str(target)]) == 2
    assert said in capsys.readouterr().err
    assert not target.exists()


def test_stdio_listens_nowhere_unless_asked(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may start many of it, which could not share an address."""
    app = ScriptedApp()
    assert main(["stdio", good], app=app) == 0
    assert main(["stdio", good, "--admin"], app=app) == 0
    assert main(["stdio", "-c", good, "--admin", "127.0.0.1:7", "--endpoint", "/mcp/dev"], app=app) == 0
    assert app.asked == ["/mcp off None", "/mcp 127.0.0.1:9090 None", "/mcp/dev 127.0.0.1:7 None"]
    monkeypatch.setenv("TOK", "hunter2")
    assert main(["stdio", good, "--token-env", "TOK"], app=app) == 0
    assert app.asked[-1] == "/mcp off Bearer hunter2"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--endpoint", "/none"), "there is no endpoint /none"),
        (("--admin", "nowhere"), "--admin: "),
        (("--token-env", "NOT_SET_HERE"), "holds no token"),
    ],
)
def test_stdio_says_what_is_wrong_on_stderr(
    good: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stdout is the client's."""
    assert main(["stdio", good, *options], app=ScriptedApp()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "next: " in err


def test_an_address_that_is_taken_ends_stdio(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As it ends serve."""
    app = ScriptedApp(error=OSError(errno.EADDRINUSE, "Address already in use"))
    assert main(["stdio", good, "--admin"], app=app) == 1
    assert "cannot listen" in capsys.readouterr().err


# key


def test_key_makes_a_key_that_its_hash_in_the_configuration_knows(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed can be pasted as it is; each key is another one."""
    assert main(["key", "ci"]) == 0
    out, err = capsys.readouterr()
    key = out.splitlines()[1]
    assert key.startswith("mcpgw_")
    assert len(key) >= 40
    pasted = out.partition("for the configuration:\n")[2]
    assert key not in pasted
    settings = load(f"{GOOD}{pasted}").authentication
    assert settings.keys["ci"].hash == f"sha256:{sha256(key.encode()).hexdigest()}"
    assert err.startswith("next: ")
    assert main(["key"]) == 0
    assert key not in (again := capsys.readouterr().out)
    assert '"caller":' in again


def test_key_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """For programs that make keys."""
    assert main(["key", "ci", "--json"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["name"] == "ci"
    assert said["hash"] == f"sha256:{sha256(said['key'].encode()).hexdigest()}"
    assert err == ""


def test_key_refuses_what_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Before a key is shown that the configuration would not take."""
    assert main(["key", "a b"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: this is no name for a caller\nnext: take 1 to 64 characters of A-Z a-z 0-9 _ - .\n",
    )
