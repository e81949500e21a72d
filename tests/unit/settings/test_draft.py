"""What `init` writes is a configuration, says what it means, and holds no secret."""

import json
from pathlib import Path

import pytest

from gateway.config import FIRST, Config, Draft, draft_file, load

SECRETS = ("hunter2", "s3cretWordOfMany1234567")


def drafted(tmp_path: Path, servers: object, *, keep: bool = False, **others: object) -> Draft:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers, **others}))
    return draft_file(file, keep_secrets=keep, env={})


def read(made: Draft, **env: str) -> tuple[Config, list[str]]:
    """Return what the gateway makes of it, and what it warns of."""
    warnings: list[str] = []
    return load(made.text, env=env, warn=warnings.append), warnings


def test_the_first_configuration_is_right() -> None:
    """And gives nothing to warn of."""
    warnings: list[str] = []
    config = load(FIRST, env={}, warn=warnings.append)
    assert list(config.upstreams) == ["time"]
    assert warnings == []


def test_the_comments_of_the_first_configuration_are_right_too() -> None:
    """Whoever takes the # away has a configuration."""
    text = FIRST.replace("  # gh:", "  gh:").replace("  # files:", "  files:").replace("  #   ", "    ")
    config = load(text, env={"GH_TOKEN": "long-enough"})
    assert list(config.upstreams) == ["time", "gh", "files"]


def test_secrets_become_variables(tmp_path: Path) -> None:
    """Wherever they stand; the head names each and where it was."""
    made = drafted(
        tmp_path,
        {
            "gh": {"url": "https://gh/mcp", "headers": {"Authorization": "Bearer hunter2"}},
            "x": {
                "url": "https://x/mcp/s3cretWordOfMany1234567/a?key=hunter2&q=1",
                "headers": {"X-Api-Key": "hunter2"},
            },
            "pg": {
                "command": "npx",
                "args": [
                    "-y",
                    "pg",
                    "postgresql://u:hunter2@db/x",
                    "--token",
                    "hunter2",
                    "--api-key=hunter2",
                ],
                "env": {"PGPASSWORD": "hunter2", "REGION": "eu", "MAX_TOKENS": "4096", "OTHER": "sk-hunter2"},
            },
        },
    )
    assert not any(secret in made.text for secret in SECRETS)
    assert set(made.variables) == {
        "GH_TOKEN",
        "X_PATH",
        "X_KEY",
        "X_X_API_KEY",
        "PG_ARGUMENT",
        "PG_TOKEN",
        "PG_API_KEY",
        "PGPASSWORD",
        "OTHER",
    }
    assert all(f"#   {name} " in made.text for name in made.variables)
    config, warnings = read(made, **{name: f"value-of-{name.lower()}" for name in made.variables})
    assert warnings == []
    assert config.upstreams["gh"].auth.bearer is not None
    assert config.upstreams["x"].url == "https://x/mcp/value-of-x_path/a?key=value-of-x_key&q=1"
    assert config.upstreams["pg"].args == [
        "-y",
        "pg",
        "value-of-pg_argument",
        "--token",
        "value-of-pg_token",
        "--api-key=value-of-pg_api_key",
    ]
    env = {name: value.get_secret_value() for name, value in config.upstreams["pg"].env.items()}
    assert (env["REGION"], env["MAX_TOKENS"], env["PGPASSWORD"]) == ("eu", "4096", "value-of-pgpassword")


def test_secrets_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    """As they are, dollars included."""
    env = {"PASSWORD": "a$$b${c!}${d"}
    made = drafted(tmp_path, {"a": {"command": "x", "env": env, "args": ["$HOME"]}}, keep=True)
    config, warnings = read(made)
    assert config.upstreams["a"].env["PASSWORD"].get_secret_value() == "a$$b${c!}${d"
    assert config.upstreams["a"].args == ["$HOME"]
    assert made.variables == {}
    assert warnings == []


def test_one_name_is_one_secret(tmp_path: Path) -> None:
    """Two servers with different tokens under one name get two variables, with the same token one."""
    servers = {
        name: {"command": "x", "env": {"API_TOKEN": token}}
        for name, token in (
            ("a", "hunter2-a"),
            ("b", "hunter2-b"),
            ("c", "hunter2-a"),
            ("d", "${API_TOKEN_2}"),
        )
    }
    made = drafted(tmp_path, servers)
    assert set(made.variables) == {"API_TOKEN", "B_API_TOKEN", "API_TOKEN_2"}
    config, _ = read(made, API_TOKEN="one", B_API_TOKEN="two", API_TOKEN_2="three")
    given = [one.env["API_TOKEN"].get_secret_value() for one in config.upstreams.values()]
    assert given == ["one", "two", "one", "three"]


def test_variables_are_spelled_as_the_gateway_does(tmp_path: Path) -> None:
    """Those of editors have names of their own; folders are written out."""
    made = drafted(
        tmp_path,
        {
            "a": {
                "command": "${workspaceFolder}/run",
                "args": ["${env:ONE}", "${TWO:-2}", "${input:third-key}"],
                "cwd": "sub",
            }
        },
        inputs=[{"id": "third-key", "password": True}],
    )
    assert set(made.variables) == {"ONE", "THIRD_KEY"}
    upstream = read(made, ONE="1", THIRD_KEY="3")[0].upstreams["a"]
    assert upstream.command == f"{tmp_path}/run"
    assert upstream.args == ["1", "2", "3"]
    assert upstream.cwd == f"{tmp_path}/sub"


def test_an_env_file_is_named_and_not_copied(tmp_path: Path) -> None:
    """Each of its variables is to be set."""
    (tmp_path / ".env").write_text("REGION=eu\n")
    made = drafted(tmp_path, {"a": {"command": "x", "envFile": ".env"}})
    assert made.variables == {"REGION": "mcpServers.a: in the file .env"}
    assert "eu" not in made.text.replace("REGION", "")


def test_what_is_not_taken_over_is_said_in_its_place(tmp_path: Path) -> None:
    """As a comment, which nothing in the file can end."""
    made = drafted(
        tmp_path,
        {
            "ok": {"url": "http://a/mcp", "timeout": 5, "type": "http", "disabledTools": ["x"]},
            "off": {"command": "x", "disabled": True},
            "bad\nlisten: 0.0.0.0:1": {"command": "bash -c 'x'"},
            "ed": {"command": "${command:pick}"},
            "pw": {"url": "http://u:hunter2@a/mcp"},
            "ws": {"type": "ws"},
        },
    )
    assert made.taken == 1
    assert len(made.problems) == 4
    assert "hunter2" not in made.text
    for said in (
        "mcpServers.ok.timeout is ignored",
        "mcpServers.off is disabled",
        "known to the editor only",
    ):
        assert f"# {said}" in made.text or said in made.text
    config, warnings = read(made)
    assert list(config.upstreams) == ["ok"]
    assert config.upstreams["ok"].tools.deny == ["x"]
    assert config.listen == "127.0.0.1:8080"
    assert warnings == []


@pytest.mark.parametrize("name", ["yes", "Ünïcode ☂", 'q"uote', "a: b", "# c", "null", "\u2028", "\x7f"])
def test_any_name_and_value_comes_through(tmp_path: Path, name: str) -> None:
    """What YAML would read as something else is quoted."""
    server = {"command": "x", "args": [name, "", " "], "env": {name: name}}
    upstream = read(drafted(tmp_path, {name: server}))[0].upstreams
    (only,) = upstream.values()
    assert only.args == [name, "", " "]
    assert {key: value.get_secret_value() for key, value in only.env.items()} == {name: name}


def test_http_sse_is_written_as_the_older_era(tmp_path: Path) -> None:
    """With the reason."""
    made = drafted(tmp_path, {"a": {"type": "sse", "url": "http://a/sse"}})
    assert "    # HTTP+SSE, the transport of 2024-11-05" in made.text
    assert "    era: legacy\n" in made.text
