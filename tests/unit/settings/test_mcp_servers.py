"""The servers file of a desktop client or an editor works as a configuration."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config import Config, ConfigError, load

ENV = {"TOK": "s3cret-token", "EMPTY": ""}


def read_text(
    text: str, *, env: Mapping[str, str] = ENV, folder: Path = Path("/work place")
) -> tuple[Config, list[str]]:
    """Return the configuration, and what was warned about."""
    warnings: list[str] = []
    return load(text, file="mcp.json", env=env, folder=folder, warn=warnings.append), warnings


def read(servers: object, **others: object) -> tuple[Config, list[str]]:
    return read_text(json.dumps({"mcpServers": servers, **others}, indent=2))


def refusal(servers: object, **others: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(servers, **others)
    return str(caught.value)


def test_urls_and_headers_become_upstreams() -> None:
    """In the file's order, headers as credentials, variables put in."""
    config, warnings = read(
        {
            "zeta": {"type": "http", "url": "http://z/mcp"},
            "alpha": {
                "type": "streamable-http",
                "url": "https://a/mcp",
                "headers": {"Authorization": "Bearer ${TOK}"},
            },
        }
    )
    assert list(config.upstreams) == ["zeta", "alpha"]
    assert config.upstreams["zeta"].auth.kind == "none"
    assert config.upstreams["zeta"].prefix == "zeta"
    assert config.upstreams["alpha"].auth.headers["Authorization"].get_secret_value() == "Bearer s3cret-token"
    assert list(config.endpoints) == ["/mcp"]
    assert warnings == []


@pytest.mark.parametrize("key", ["url", "httpUrl", "serverUrl"])
def test_the_address_has_several_names(key: str) -> None:
    """Claude and Cursor, Gemini, Windsurf."""
    config, _ = read({"a": {key: "http://a/mcp"}})
    assert config.upstreams["a"].url == "http://a/mcp"


def test_names_become_valid_and_stay_apart() -> None:
    """Each change is said, since tools are named after it."""
    config, warnings = read(
        {name: {"url": "http://a/mcp"} for name in ("My Server", "my-server", "my_server", "1")}
    )
    assert list(config.upstreams) == ["my-server", "my-server-2", "my-server-3", "u-1"]
    assert len(warnings) == 4


def test_a_program_is_started_as_the_client_would() -> None:
    """Arguments and environment as they are, numbers as text, what is not set left out."""
    config, warnings = read(
        {
            "fs": {
                "type": "stdio",
                "command": "npx",
                "args": ["-y", "server", 8080],
                "env": {"KEY": "${TOK}", "PORT": 1, "ON": True, "GONE": None, "EMPTY": "", "PEM": "a\nb é"},
                "cwd": "sub",
                "headers": {},
                "url": "",
            }
        }
    )
    upstream = config.upstreams["fs"]
    assert (upstream.command, upstream.args) == ("npx", ["-y", "server", "8080"])
    assert {name: value.get_secret_value() for name, value in upstream.env.items()} == {
        "KEY": "s3cret-token",
        "PORT": "1",
        "ON": "true",
        "EMPTY": "",
        "PEM": "a\nb é",
    }
    assert upstream.cwd == "/work place/sub"
    assert "s3cret" not in repr(config)
    assert warnings == []


@pytest.mark.parametrize(
    ("command", "args", "started"),
    [
        ("npx -y foo", None, ["npx", "-y", "foo"]),
        ("uvx mcp-server-git", ["--repo", "a b"], ["uvx", "mcp-server-git", "--repo", "a b"]),
        (["npx", "-y"], ["foo"], ["npx", "-y", "foo"]),
        ("/Applications/My App (new)/server", [], ["/Applications/My App (new)/server"]),
        ("C:\\Program Files\\nodejs\\npx.cmd", ["-y"], ["C:\\Program Files\\nodejs\\npx.cmd", "-y"]),
    ],
)
def test_a_command_with_its_arguments_inside_is_taken_apart(
    command: object, args: object, started: list[str]
) -> None:
    """Where it can be read in one way only: a folder may have a space in its name."""
    config, _ = read({"a": {"command": command, "args": args}})
    upstream = config.upstreams["a"]
    assert [upstream.command, *upstream.args] == started


@pytest.mark.parametrize(
    "command", ["bash -c 'echo hi'", "/usr/bin/npx -y foo", "node C:\\a b\\server.js", "npx foo && npx bar"]
)
def test_a_command_that_can_be_read_in_two_ways_is_refused(command: str) -> None:
    """A guess would start something else."""
    assert "mcpServers.a.command: expected the program alone" in refusal({"a": {"command": command}})


def test_http_sse_is_the_older_era() -> None:
    """`type: sse` says which transport it is."""
    config, warnings = read({"a": {"type": "sse", "url": "http://a/sse"}})
    assert config.upstreams["a"].era == "legacy"
    assert warnings == []


def test_variables_of_editors_are_put_in() -> None:
    """Cursor's and VS Code's, and `$$` is two dollars there."""
    config, _ = read(
        {
            "a": {
                "command": "${workspaceFolder}/bin/${workspaceFolderBasename}",
                "args": [
                    *("${env:TOK}", "${userHome}", "${NONE:-fall back}", "${env:EMPTY:-x}"),
                    *("$$ $5 ${/}", "a${b!c}${", "${}$"),
                ],
            },
            "b": {"url": "http://b/${env:TOK}"},
        }
    )
    assert config.upstreams["a"].command == "/work place/bin/work place"
    assert config.upstreams["a"].args == [
        *("s3cret-token", str(Path.home()), "fall back", "x"),
        *("$$ $5 /", "a${b!c}${", "${}$"),
    ]
    assert config.upstreams["b"].url == "http://b/s3cret-token"


def test_the_workspace_is_the_folder_around_the_editors_own() -> None:
    """The files of a project lie in .vscode or .cursor."""
    text = json.dumps({"servers": {"a": {"command": "${workspaceFolder}/x"}}})
    config, _ = read_text(text, folder=Path("/project/.vscode"))
    assert config.upstreams["a"].command == "/project/x"


VS_CODE = """
// of this project
{
\t"inputs": [
\t\t{"type": "promptString", "id": "github-token", "description": "A token", "password": true},
\t\t{"type": "pickString", "id": "level", "options": ["a", "b"], "default": "b"}, /* the last */
\t],
\t"servers": {
\t\t"gh": {
\t\t\t"type": "http", // a URL holds "//" too
\t\t\t"url": "https://gh/mcp",
\t\t\t"headers": {"Authorization": "Bearer ${input:github-token}", "X-Level": "${input:level}-level",},
\t\t},
\t},
}
"""


def test_vs_code_asks_and_the_gateway_reads_variables() -> None:
    """Named after the id of the question; its JSON has comments, tabs and commas too many."""
    config, warnings = read_text(VS_CODE, env={"GITHUB_TOKEN": "s3cret-token"})
    headers = config.upstreams["gh"].auth.headers
    assert headers["Authorization"].get_secret_value() == "Bearer s3cret-token"
    assert headers["X-Level"].get_secret_value() == "b-level"
    assert warnings == []


def test_an_unanswered_question_names_its_variable_and_its_line() -> None:
    """Lines are counted with the comments in place."""
    with pytest.raises(ConfigError) as caught:
        read_text(VS_CODE)
    assert "mcp.json:12: servers.gh.headers.Authorization: the editor asks" in str(caught.value)
    assert "GITHUB_TOKEN: set it" in str(caught.value)


def test_a_mistake_between_comments_is_said_of_the_json() -> None:
    """Not of the comment before it, which YAML would stumble over."""
    with pytest.raises(ConfigError) as caught:
        read_text('// servers\n{\n  "servers": {\n    "a": {"url": "http://a"\n  }\n')
    assert str(caught.value).startswith(("mcp.json:5", "mcp.json:6"))


def test_vs_codes_settings_hold_it_below_mcp() -> None:
    """Beside everything else that a settings.json holds, which is one warning."""
    settings: dict[str, object] = {f"editor.{number}": number for number in range(20)}
    settings["mcp"] = {
        "inputs": [{"id": "k", "default": "abc"}],
        "servers": {"a": {"command": "x", "args": ["${input:k}"]}},
    }
    config, warnings = read_text(json.dumps(settings))
    assert config.upstreams["a"].args == ["abc"]
    assert len(warnings) == 1
    assert "and 12 more are ignored: only mcp.servers is read" in warnings[0]


def test_an_env_file_stands_below_env(tmp_path: Path) -> None:
    """Its values are taken as they are."""
    (tmp_path / ".env").write_text(
        "# secrets\nexport A=1\nB='two # words' # why\nC=\"x\\ny\"\nD=plain # why\n\nE=${TOK}\nnothing\n"
    )
    server = {"command": "x", "envFile": "${workspaceFolder}/.env", "env": {"A": "own"}}
    config, warnings = read_text(json.dumps({"mcpServers": {"a": server}}), folder=tmp_path)
    assert {name: value.get_secret_value() for name, value in config.upstreams["a"].env.items()} == {
        "A": "own",
        "B": "two # words",
        "C": "x\ny",
        "D": "plain",
        "E": "${TOK}",
    }
    assert warnings == ["mcpServers.a.envFile: passed over what is no NAME=VALUE, on line 8"]


def test_tools_that_a_client_hides_stay_hidden() -> None:
    """By their names, in which no character is a pattern."""
    config, _ = read(
        {
            "a": {"url": "http://a/mcp", "disabledTools": ["drop*"]},
            "b": {"url": "http://b/mcp", "includeTools": ["x"], "excludeTools": ["y"], "disabledTools": []},
        }
    )
    assert config.upstreams["a"].tools.deny == ["drop[*]"]
    assert (config.upstreams["b"].tools.allow, config.upstreams["b"].tools.deny) == (["x"], ["y"])


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"type": "stdio"}, "expected a `command`"),
        ({"type": "ws", "url": "http://a"}, "this `type` is not known"),
        ({"url": "http://u:hunter2@a/mcp"}, "auth"),
        ({"url": "http://a/mcp", "headers": {"Authorization": "Bearer hunter2\n"}}, "line break"),
        ({"url": "http://a/mcp", "headers": {"X": "${NOPE}"}}, "NOPE is not set"),
        ({"url": "http://a/mcp", "headers": {"X": "${env:EMPTY}"}}, "would be no credential"),
        ({"url": "http://a/mcp", "headers": {"X": "${input:a-key}"}}, "the variable A_KEY: set it"),
        ({"url": "http://a/mcp", "headers": {"X": "${config:a.b}"}}, "known to the editor only"),
        ({"url": "http://a/mcp", "headers": {"Host": "hunter2"}}, "writes this header itself"),
        ({"type": "http"}, "expected either `url` or `command`"),
        ({"url": "http://a/mcp", "command": "x"}, "expected either `url` or `command`"),
        ({"command": "x", "env": {"K": {"a": "hunter2"}}}, "expected text"),
        ({"command": "x", "envFile": "/nowhere/.env"}, "cannot be read"),
        ("http", "expected a URL"),
        (42, "expected a mapping"),
    ],
)
def test_what_cannot_be_served_is_said_at_its_place(server: object, said: str) -> None:
    """By the file's own path, once, without a secret."""
    message = refusal({"odd": server})
    assert said in message
    assert "mcpServers.odd" in message
    assert "hunter2" not in message
    assert message.count("\n") == 0


def test_what_is_passed_over_is_said() -> None:
    """Disabled servers, keys of clients, keys of other tools."""
    servers = {
        "on": {"url": "http://a/mcp", "timeout": 60000, "autoApprove": [], "disabled": False, "cwd": "/"},
        "off": {"command": "x", "disabled": True},
        "no": {"command": "x", "enabled": False},
    }
    config, warnings = read(servers, globalShortcut="Ctrl+X")
    assert list(config.upstreams) == ["on"]
    assert sorted(warning.partition(" is ")[0] for warning in warnings) == [
        "globalShortcut",
        "mcpServers.no",
        "mcpServers.off",
        "mcpServers.on.autoApprove",
        "mcpServers.on.cwd",
        "mcpServers.on.timeout",
    ]


@pytest.mark.parametrize("servers", [{}, [], None, {"a": {"command": "x", "disabled": True}}])
def test_a_file_without_a_server_is_refused(servers: object) -> None:
    """Nothing to serve is a mistake."""
    assert "mcpServers" in refusal(servers)


def test_own_keys_do_not_mix_with_it() -> None:
    """`listen` beside mcpServers would be lost silently otherwise."""
    assert "mcp.json:7: listen: mcpServers stands alone" in refusal(
        {"a": {"url": "http://a/mcp"}}, listen="127.0.0.1:1"
    )
