"""What `init` writes is a configuration, says what it means, and holds no secret."""

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import FIRST, Config, Draft, Upstream, draft_file, load

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


LETTERS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=12)
SECRET = st.tuples(LETTERS, st.sampled_from("0123456789$_.!"), LETTERS).map(lambda one: f"Q7{''.join(one)}7Q")
"""Nothing that a file's other texts hold, so that it is seen wherever it went."""
NAMES = st.sampled_from(
    [
        "token",
        "api-key",
        "api_key",
        "apiKey",
        "password",
        "pass",
        "client-secret",
        "dbPass",
        "pwd",
        "access-key",
    ]
)
VARIABLES = st.sampled_from(
    ["API_KEY", "GITHUB_TOKEN", "KEY", "DB_PASS", "PASSWORD", "MY_SECRET", "SENTRY_DSN"]
)
HEADERS = st.sampled_from(["Authorization", "X-Api-Key", "Cookie", "x-goog-api-key", "X-Auth-Token"])
SCHEMES = st.sampled_from(["", "Bearer ", "Basic ", "token "])
PLAIN = st.sampled_from(
    [
        ["-y"],
        ["run", "-i", "--rm"],
        ["/data"],
        ["--region=eu"],
        ["--port", "8080"],
        ["--verbose"],
        ["img:1"],
        ["$X"],
    ]
)


def forms(secret: str) -> st.SearchStrategy[list[str]]:
    """Return ways in which people put a secret into arguments."""

    def of(names: st.SearchStrategy[str], *forms: Callable[[str], list[str]]) -> st.SearchStrategy[list[str]]:
        return st.builds(lambda name, form: form(name), names, st.sampled_from(forms))

    headers = st.builds(
        lambda name, sep, scheme: f"{name}{sep}{scheme}{secret}",
        HEADERS,
        st.sampled_from([":", ": "]),
        SCHEMES,
    )
    quoted = json.dumps(secret)
    return st.one_of(
        of(
            NAMES,
            lambda name: [f"--{name}={secret}"],
            lambda name: [f"--{name}", secret],
            lambda name: [f"-{name}={secret}"],
            lambda name: [f"-{name}", secret],
            lambda name: [f"{name}={secret}"],
            lambda name: [f"https://h.example/sse?{name}={secret}"],
            lambda name: [f"https://h.example/sse?a=1&{name}={secret}#x"],
            lambda name: [f"--url=https://h.example/#{name}={secret}"],
            lambda name: [f"--set=a=1,{name}={secret}"],
            lambda name: ["--config", f'{{"a": 1, "{name}": {quoted}}}'],
            lambda name: ["--config", json.dumps(f'{{"{name}": {quoted}}}')],
            lambda name: ["-c", f"exec npx -y thing --{name} {secret} --x"],
            lambda name: ["-c", f"exec npx -y thing --{name}='{secret} {secret}'"],
        ),
        of(
            VARIABLES,
            lambda name: ["-e", f"{name}={secret}"],
            lambda name: [f"-e{name}={secret}"],
            lambda name: ["--env", f"{name}={secret}"],
            lambda name: [f"--env={name}={secret}"],
            lambda name: [f"{name}={secret}", "npx", "thing"],
            lambda name: ["-c", f"{name}={secret} npx thing"],
            lambda name: ["-c", f"export {name}={quoted}; npx thing"],
        ),
        of(
            headers,
            lambda header: ["--header", header],
            lambda header: [f"--header={header}"],
            lambda header: ["-H", header],
            lambda header: [f"-H{header}"],
            lambda header: ["-c", f"npx mcp-remote https://h.example/mcp --header '{header}'"],
        ),
        st.sampled_from(
            [
                [f"postgres://me:{secret}@db/x"],
                [f"--dsn=redis://:{secret}@db"],
                [f"--db=mongodb+srv://me:{secret}@db/?w=1"],
                [f"https://{secret}@h.example/x.git"],
                [f"https://h.example/token/{secret}/mcp"],
                [f"Server=h;User Id=sa;Password={secret};"],
                [f"host=h user=u password={secret} dbname=x"],
                [f"--connection-string=AccountName=x;AccountKey={secret};"],
                ["-u", f"me:{secret}"],
                [f"--user=me:{secret}"],
                ["-p", secret],
                ["Authorization:", "Bearer", secret],
                [f"sk-{secret}"],
                [f"--x=ghp_{secret}"],
                [f"--token={secret}-${{HOST}}-{secret}"],
                [f"postgres://me:{secret}@${{HOST}}/x"],
                [f"--token=${{GIVEN_TOKEN:-{secret.replace('$', '')}}}"],
                [f"--x=${{GIVEN_KEY:-{secret.replace('$', '')}}}"],
            ]
        ),
    )


def values(secret: str) -> st.SearchStrategy[dict[str, str]]:
    """Return an environment with a secret in it."""
    quoted = json.dumps(secret)
    return st.one_of(
        st.builds(lambda name: {name: secret}, VARIABLES),
        st.builds(lambda header, scheme: {"EXTRA": f'{{"{header}": "{scheme}{secret}"}}'}, HEADERS, SCHEMES),
        st.builds(lambda name: {"EXTRA": f"https://h.example/x?{name}={secret}"}, NAMES),
        st.builds(lambda name: {"NODE_OPTIONS": f"--a --{name}={quoted}"}, NAMES),
        st.just({"DATABASE_URL": f"postgres://me:{secret}@db/x"}),
    )


SERVERS = SECRET.flatmap(
    lambda secret: st.tuples(
        st.just(secret),
        st.fixed_dictionaries(
            {
                "a": st.fixed_dictionaries(
                    {
                        "command": st.just("npx"),
                        "args": st.lists(PLAIN | forms(secret), max_size=5).map(
                            lambda some: list(itertools.chain(*some))
                        ),
                        "env": st.dictionaries(st.sampled_from(["REGION", "MAX_TOKENS"]), st.just("12"))
                        | values(secret),
                    }
                ),
                "b": st.fixed_dictionaries(
                    {
                        "url": st.just("https://h.example/mcp")
                        | st.builds(
                            lambda name: f"https://h.example/mcp?{name}={secret.replace('$', '')}", NAMES
                        ),
                        "headers": st.builds(lambda name, scheme: {name: scheme + secret}, HEADERS, SCHEMES),
                    }
                ),
            }
        ),
    )
)
GIVEN = {"HOST": "h0st", "GIVEN_TOKEN": "given-t", "GIVEN_KEY": "given-k"}


def texts(upstream: Upstream) -> list[str]:
    """Return all that a server is given."""
    headers = upstream.auth.headers or {}
    bearer = [] if upstream.auth.bearer is None else [f"Bearer {upstream.auth.bearer.get_secret_value()}"]
    named = {**upstream.env, **headers}
    return [
        upstream.url or "",
        upstream.command or "",
        *upstream.args,
        *(f"{name}={value.get_secret_value()}" for name, value in named.items() if name != "Authorization"),
        *(value.get_secret_value() for name, value in headers.items() if name == "Authorization"),
        *bearer,
    ]


def solved(made: Draft, wanted: list[str]) -> Mapping[str, str]:
    """Return what the variables must be for the servers to be given all that is wanted."""
    marks = {name: f"q{number}mark" for number, name in enumerate(made.variables)}
    written = "\0".join(
        text for one in read(made, **{**GIVEN, **marks})[0].upstreams.values() for text in texts(one)
    )
    pattern, seen = "", set[str]()
    for piece in re.split(r"(q[0-9]+mark)", written):
        name = next((name for name, mark in marks.items() if mark == piece), None)
        if name is None:
            pattern += re.escape(piece)
        else:
            value = GIVEN.get(name, r"[^\0]+")
            pattern += f"(?P={name})" if name in seen else f"(?P<{name}>{value})"
            seen.add(name)
    hit = re.fullmatch(pattern, "\0".join(wanted), re.DOTALL)
    assert hit is not None, (written, wanted)
    return hit.groupdict()


def as_name(text: str) -> str:
    """Return a text as the name of a variable would have it."""
    return re.sub(r"[^A-Z0-9]+", "_", text.upper())


@given(SERVERS)
def test_no_secret_is_written_and_nothing_else_is_changed(drawn: tuple[str, Mapping[str, object]]) -> None:
    """With the variables set, the servers are given what the editor's file gives them."""
    secret, servers = drawn
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        made = draft_file(file, env={})
        said = "\n".join(
            [made.text, *made.variables, *made.variables.values(), *made.remarks, *made.problems]
        )
        for one in (secret, secret.replace("$", "")):
            assert as_name(one) not in as_name(said)
        assert made.problems == []
        same = load(file.read_text(), env=GIVEN)
        wanted = [text for one in same.upstreams.values() for text in texts(one)]
        env = {**GIVEN, **solved(made, wanted)}
        assert [text for one in read(made, **env)[0].upstreams.values() for text in texts(one)] == wanted


@pytest.mark.parametrize("command", ["API_KEY=hunter2 npx x", ["API_KEY=hunter2", "npx"]])
def test_variables_before_a_program_are_refused(tmp_path: Path, command: object) -> None:
    """Only a shell knows them; the message does not repeat them."""
    made = drafted(tmp_path, {"a": {"command": command}})
    assert made.problems == [
        "mcpServers.a is not taken over: expected the program first: its variables belong into `env`"
    ]
    assert "hunter2" not in made.text
