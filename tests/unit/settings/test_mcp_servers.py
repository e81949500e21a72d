"""A desktop client's mcpServers file works as a configuration."""

import json

import pytest

from gateway.config import Config, ConfigError, load


def read(servers: object, **others: object) -> tuple[Config, list[str]]:
    """Return the configuration, and what was warned about."""
    warnings: list[str] = []
    text = json.dumps({"mcpServers": servers, **others}, indent=2)
    return load(text, file="mcp.json", env={"TOK": "s3cret"}, warn=warnings.append), warnings


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
    assert config.upstreams["alpha"].auth.headers["Authorization"].get_secret_value() == "Bearer s3cret"
    assert list(config.endpoints) == ["/mcp"]
    assert warnings == []


@pytest.mark.parametrize("key", ["url", "httpUrl", "serverUrl"])
def test_the_address_has_several_names(key: str) -> None:
    """Clients do not agree on the key."""
    config, _ = read({"a": {key: "http://a/mcp"}})
    assert config.upstreams["a"].url == "http://a/mcp"


def test_names_become_valid_and_stay_apart() -> None:
    """Each change is said, since tools are named after it."""
    config, warnings = read(
        {name: {"url": "http://a/mcp"} for name in ("My Server", "my-server", "my_server", "1")}
    )
    assert list(config.upstreams) == ["my-server", "my-server-2", "my-server-3", "u-1"]
    assert len(warnings) == 4


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"command": "npx", "args": ["-y", "x"], "env": {"KEY": "hunter2"}}, "`command` is not supported"),
        ({"type": "stdio"}, "`command` is not supported"),
        ({"type": "sse", "url": "http://a/sse"}, "`type` is not supported"),
        ({"url": "http://u:hunter2@a/mcp"}, "auth"),
        ({"url": "http://a/mcp", "headers": {"Authorization": "Bearer hunter2\n"}}, "line break"),
        ({"url": "http://a/mcp", "headers": {"X": "${NOPE}"}}, "NOPE is not set"),
        ({"url": "http://a/mcp", "headers": {"Host": "hunter2"}}, "writes this header itself"),
        ({"type": "http"}, "expected either `url` or `command`"),
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
        "on": {"url": "http://a/mcp", "timeout": 60000, "autoApprove": []},
        "off": {"command": "x", "disabled": True},
    }
    config, warnings = read(servers, globalShortcut="Ctrl+X")
    assert list(config.upstreams) == ["on"]
    assert len(warnings) == 4


@pytest.mark.parametrize("servers", [{}, [], None, {"a": {"command": "x", "disabled": True}}])
def test_a_file_without_a_server_is_refused(servers: object) -> None:
    """Nothing to serve is a mistake."""
    assert "mcpServers" in refusal(servers)


def test_own_keys_do_not_mix_with_it() -> None:
    """`listen` beside mcpServers would be lost silently otherwise."""
    assert "mcp.json:7: listen: mcpServers stands alone" in refusal(
        {"a": {"url": "http://a/mcp"}}, listen="127.0.0.1:1"
    )
