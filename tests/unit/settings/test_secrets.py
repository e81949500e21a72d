"""No secret is shown, whatever form it stands in, and what is shown and what is not make up the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.secrets import Secret, has_login, in_arguments, in_header, in_url, in_value

S = "hunter22"


def shown(args: list[str]) -> list[str]:
    """Return arguments with <name> in the place of each secret."""
    return [
        "".join(part if isinstance(part, str) else f"<{part.name}>" for part in parts)
        for parts in in_arguments(args)
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([f"--token={S}", "/data"], ["--token=<--token>", "/data"]),
        (["--token", S, "/data"], ["--token", "<--token>", "/data"]),
        (["--pass", S, "x"], ["--pass", "<--pass>", "x"]),
        (["-p", S], ["-p", "<-p>"]),
        (["-pHunter2", "db"], ["-p<ARGUMENT>", "db"]),
        (["--pin", "1234"], ["--pin", "<--pin>"]),
        (["--dbPass", S], ["--dbPass", "<--dbPass>"]),
        (["--token", f"-{S}"], ["--token", "<--token>"]),
        (["--auth", "-y", "--verbose", "x"], ["--auth", "-y", "--verbose", "x"]),
        ([f"--env=API_KEY={S}", "x"], ["--env=API_KEY=<API_KEY>", "x"]),
        (
            ["run", "-e", f"API_KEY={S}", "-e", "TOKEN", "img"],
            ["run", "-e", "API_KEY=<API_KEY>", "-e", "TOKEN", "img"],
        ),
        ([f"-eAPI_KEY={S}", f"-eKEY={S}"], ["-eAPI_KEY=<-eAPI_KEY>", "-eKEY=<-eKEY>"]),
        ([f"API_KEY={S}", "run"], ["API_KEY=<API_KEY>", "run"]),
        ([f"--header=Authorization: {S}"], ["--header=Authorization: <Authorization>"]),
        (["--header", f"X-Team: {S} is a long one"], ["--header", "X-Team: <X-Team>"]),
        (["-H", f"Authorization: Bearer {S}"], ["-H", "Authorization: <Authorization>"]),
        ([f"-HX-Api-Key:{S}"], None),
        (["Authorization:", "Bearer", S], ["Authorization:", "Bearer", "<Bearer>"]),
        (["config", "set", "token", S], ["config", "set", "token", "<token>"]),
        (["--api-keys", S, f"{S}2", "-y", "x"], ["--api-keys", "<--api-keys>", "<--api-keys>", "-y", "x"]),
        (["-u", f"me:{S}"], ["-u", "<-u>"]),
        ([f"--user=me:{S}"], ["--user=<--user>"]),
        (["-u", "1000:1000", "-p", "8080:80"], ["-u", "1000:1000", "-p", "8080:80"]),
        (
            ["mcp-remote", f"https://h/sse?api_key={S}&a=1"],
            ["mcp-remote", "https://h/sse?api_key=<api_key>&a=1"],
        ),
        ([f"--url=https://h/sse?code={S}#access_token={S}"], None),
        ([f"https://h/token/{S}/mcp"], ["https://h/token/<path>/mcp"]),
        ([f"https://u:{S}@h/x"], ["<ARGUMENT>"]),
        ([f"--connection-string=postgres://u:{S}@h"], ["--connection-string=<--connection-string>"]),
        ([f"--db=postgres://u:{S}/{S}@h/db"], ["--db=<--db>"]),
        ([f"Server=h;User Id=sa;Password={S};"], None),
        ([f"host=h user=u password={S}"], None),
        (["-c", f"API_KEY='{S} {S}' npx x"], None),
        (["-c", f"npx x --token {S}"], None),
        ([f'{{"apiKey": "{S}"}}', f'"{{\\"apiKey\\":\\"{S}\\"}}"'], None),
        (["--set", f"a=1,token={S}"], None),
        ([f"/p:password={S}"], None),
        (["aHVudGVyMjI=", "x"], ["<ARGUMENT>", "x"]),
        (["-y", "@scope/server-everything-2024", "/nix/store/0a1b2c3d4e5f6a7b8c9d0e1f-x/bin/y"], ["="]),
        (["--port", "8080", "--max-tokens", "4096", "--region=eu-west-1", "--name", "n"], ["="]),
    ],
)
def test_secrets_in_arguments(args: list[str], said: list[str] | None) -> None:
    """Their names stay, what stands behind them does not; without a `said`, it only must not be shown."""
    found = shown(args)
    assert S not in " ".join(found)
    if said is not None:
        assert found == (args if said == ["="] else said)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            f"https://h/mcp?key={S}&a=b;token={S}#code={S}",
            "https://h/mcp?key=<key>&a=b;token=<token>#code=<code>",
        ),
        (f"h.example/mcp?key={S}", "h.example/mcp?key=<key>"),
        (f"http:/h?key={S}", "http:/h?key=<key>"),
        (f"https://h/mcp?{S}{S}{S}", "https://h/mcp?<query>"),
        (f"https://h/mcp?next=https%3A%2F%2Fu%3A{S}%40h", "https://h/mcp?next=<next>"),
        (f"https://h/bot123:{S}{S}{S}/mcp", "https://h/<path>/mcp"),
        ("https://h:8080/a/b?profile=me&n=1", "="),
    ],
)
def test_secrets_in_urls(url: str, said: str) -> None:
    """One is found in a path if it looks like one, in a query by its name, too."""
    found = "".join(part if isinstance(part, str) else f"<{part.name}>" for part in in_url(url))
    assert found == (url if said == "=" else said)


@pytest.mark.parametrize(
    ("url", "has"),
    [
        (f"https://u:{S}@h/mcp", True),
        (f"https://{S}@h", True),
        (f"https://u:{S}/{S}@h/mcp", True),
        (f"u:{S}@h/mcp", True),
        ("https://h:8080/@scope/mcp", False),
        ("https://[::1]:80/mcp?a=b@c", False),
        ("https://h/mcp", False),
    ],
)
def test_a_login_in_a_url(url: str, has: bool) -> None:
    """A password may hold any sign, a port and a path none that makes it one."""
    assert has_login(url) is has


WORDS = st.sampled_from(
    [
        "--token",
        "-p",
        "-e",
        "KEY=v",
        "Authorization: Bearer x",
        "https://h/p?key=v#f",
        "{",
        '"a":"b"',
        "=",
        " ",
    ]
)
TEXTS = st.lists(WORDS | st.text(max_size=12), max_size=5).map("".join)


@given(st.lists(TEXTS, max_size=6))
def test_the_parts_are_the_arguments(args: list[str]) -> None:
    """Whatever they are."""
    found = list(in_arguments(args))
    assert ["".join(p.value if isinstance(p, Secret) else p for p in parts) for parts in found] == args


@given(TEXTS, TEXTS)
def test_the_parts_are_the_value(name: str, text: str) -> None:
    """So are those of a header, of a variable and of a URL."""
    for parts in (in_value(name, text), in_header(name, text), in_url(f"https://{text}")):
        whole = "".join(p.value if isinstance(p, Secret) else p for p in parts)
        assert whole in (text, f"https://{text}")
