"""Each notation: what it accepts, what it says otherwise, and that writing undoes reading."""

import os
from datetime import date, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.settings import values
from gateway.settings.values import (
    FromFile,
    parse_address,
    parse_moment,
    show_duration,
    show_size,
    shown_url,
    slug,
)

FILE = FromFile(Path("/"))


def read(kind: object, value: object) -> object:
    """Return a value as a file's key of this type gets it."""
    return TypeAdapter[object](kind).validate_python(value, context=FILE)


def refusal(kind: object, value: object) -> str:
    """Return what is said about a value that is refused."""
    with pytest.raises(ValidationError) as caught:
        read(kind, value)
    return caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("24h", 86400.0),
        ("1.5s", 1.5),
        ("0", 0.0),
        (0, 0.0),
        ("0s", 0.0),
    ],
)
def test_a_duration_has_a_unit(text: object, seconds: float) -> None:
    """The notation of the contract."""
    assert read(values.Duration, text) == seconds


@pytest.mark.parametrize(
    "text",
    ["30", 30, 1.5, "5 parsecs", "-1s", "1h30m", "", "s", "1e3s", "٣s", True, None, "999999999h", "30S", [1]],
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    """A bare number could be seconds or milliseconds."""
    refusal(values.Duration, text)


@pytest.mark.parametrize("text", ["999999999h", "99999999999999999999999999s", "9" * 300 + "h"])
def test_a_duration_too_long_is_said_to_be_that(text: str) -> None:
    """It has a number and a unit: that is not what is wrong with it."""
    assert "too large" in refusal(values.Duration, text)


@pytest.mark.parametrize("text", ["9999999999GiB", "9" * 40 + "B", 2**60])
def test_a_size_too_large_is_said_to_be_that(text: object) -> None:
    """More than a petabyte is a slip."""
    assert "too large" in refusal(values.Size, text)


@pytest.mark.parametrize("number", ["0x400", "0o17", "010", "1_000"])
def test_a_size_is_decimal(number: str) -> None:
    """What else YAML counts as a number arrives as its text."""
    assert "64MiB" in refusal(values.Size, number)


@pytest.mark.parametrize("text", [True, False, "true", "False"])
def test_a_flag_is_true_or_false(text: object) -> None:
    """As text only when a variable put it there."""
    assert read(values.Flag, text) is (str(text).lower() == "true")


@pytest.mark.parametrize("text", ["yes", "on", "1", 1, 0, "y", "", None, "t"])
def test_a_flag_is_nothing_else(text: object) -> None:
    """What other programs take for true is a question of taste."""
    assert "expected true or false" in refusal(values.Flag, text)


@pytest.mark.parametrize("url", ["http://host:99999", "http://host:0/mcp", "http://host:http/mcp"])
def test_a_port_out_of_range_is_said_to_be_that(url: str) -> None:
    """The rest of the URL is fine."""
    assert "expected a port between 1 and 65535" in refusal(values.UpstreamUrl, url)


def test_a_wait_is_not_zero() -> None:
    """A deadline of nothing would fail every call."""
    assert "more than 0" in refusal(values.Wait, "0s")


@given(st.integers(0, 10**7), st.sampled_from(["ms", "s", "m", "h"]))
def test_a_duration_survives_being_written(number: int, unit: str) -> None:
    """parse(show(parse(x))) == parse(x), for every number and unit within ten years."""
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
    if number * factor <= 10 * 365 * 86400:
        seconds = read(values.Duration, f"{number}{unit}")
        assert seconds == pytest.approx(number * factor)
        assert read(values.Duration, show_duration(float(str(seconds)))) == pytest.approx(seconds)


@given(st.integers(0, 2**40))
def test_a_size_survives_being_written(size: int) -> None:
    """Every number of bytes has a notation that means it."""
    assert read(values.Size, show_size(size)) == size
    assert read(values.Size, size) == size


@pytest.mark.parametrize("text", ["64MB", "64", "-1B", "1.5KiB", "KiB", "", True, -1, 1.5, None])
def test_what_is_no_size_is_refused(text: object) -> None:
    """MB could be 10**6 or 2**20."""
    assert "64MiB" in refusal(values.Size, text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:8080", "::1", 8080),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    """Written back it is the same."""
    address = parse_address(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize("text", ["8080", ":8080", "*:8080"])
def test_a_port_alone_asks_who_may_come(text: str) -> None:
    """This machine only or everybody is a decision that nobody should take by accident."""
    with pytest.raises(
        ValueError, match=r"127\.0\.0\.1:8080 is this machine only, 0\.0\.0\.0:8080 every interface"
    ):
        parse_address(text)


@pytest.mark.parametrize(
    "text", ["localhost", "a:65536", "::1:80", "http://a:80", "a:b", "", "a:80/mcp", "a b:1", "a:80\n"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Whole-string match: a line break at the end does not pass."""
    with pytest.raises(ValueError, match="expected host:port"):
        parse_address(text)


def test_off_is_off_in_every_yaml() -> None:
    """YAML 1.1 reads a bare off as false."""
    assert read(values.AddressOrOff, "off") == read(values.AddressOrOff, False) == "off"
    assert "host:port" in refusal(values.AddressOrOff, "on")
    assert "127.0.0.1:8080" in refusal(values.ListenAddress, 8080)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9001/mcp", "https://[::1]/mcp?x=1", "HTTP://host", "http://ü.example/"]
)
def test_an_upstream_url_is_kept_as_written(url: str) -> None:
    """Nothing is normalised: the server sees what the operator wrote."""
    assert read(values.UpstreamUrl, url) == url


@pytest.mark.parametrize(
    "url",
    ["", "host:1", "ftp://h/", "http://", "http:///mcp", "http://h:99999/", "http://h:0/", "http://h:x/", "http://[::1/",
     "http://h/a b", "http://h/\n", "http://h/#frag", "//h/mcp", "stdio:npx"],
)  # fmt: skip
def test_what_is_no_upstream_url_is_refused(url: str) -> None:
    """At the start, not at the first call."""
    refusal(values.UpstreamUrl, url)


@pytest.mark.parametrize(
    "url", ["http://u:hunter2@h/mcp", "http://hunter2@h/", "https://:hunter2@h", "http://@h/"]
)
def test_credentials_in_a_url_are_refused_without_being_said(url: str) -> None:
    """They would end up in logs and errors (B42); the message names the place where they belong."""
    said = refusal(values.UpstreamUrl, url)
    assert "auth" in said
    assert "hunter2" not in said
    assert "not supported" in refusal(values.ProxyUrl, url)


def test_a_url_is_shown_without_what_may_be_secret() -> None:
    """Userinfo, query and fragment stay unsaid (B42)."""
    assert shown_url("https://u:pw@h:1/mcp?api_key=K#x") == "https://h:1/mcp"
    assert shown_url("http://[::1]:9001/mcp") == "http://[::1]:9001/mcp"


@pytest.mark.parametrize(
    "text", ["tok\nen", "tok\ren", "tök", "", "  ", "\x00", 42, None, ["a"], {"file": 1}, {"f": "x"}]
)
def test_what_is_no_secret_is_refused(text: object) -> None:
    """A line break would end the header; the value is never repeated."""
    said = refusal(values.Secret, text)
    assert "tok" not in said
    assert "tök" not in said


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    """The line break that editors leave at its end is not part of it; a relative path works too."""
    (tmp_path / "token").write_text("s3cret\n")
    for path in (str(tmp_path / "token"), "token"):
        secret = TypeAdapter(values.Secret).validate_python({"file": path}, context=FromFile(tmp_path))
        assert secret.get_secret_value() == "s3cret"
        assert "s3cret" not in repr(secret)


def test_a_secret_file_that_gives_none_is_named(tmp_path: Path) -> None:
    """Missing, empty, a folder, not text: the path is said, the content is not."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_text("x" * 2**17)
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "empty", "binary", ".", "long", "pipe", "/dev/zero"):
        said = refusal(values.Secret, {"file": str(tmp_path / name)})
        assert str(tmp_path / name) in said


@given(st.text(max_size=40))
def test_any_text_has_a_valid_namespace_near(text: str) -> None:
    """The suggestion in an error is itself accepted (F-02)."""
    assert read(values.Namespace, slug(text)) == slug(text)


@pytest.mark.parametrize(
    "text", ["Time", "a_b", "1a", "-a", "a.b", "a+b", "a" * 32, "", "größe", "a\n", "Team Docs / v2"]
)
def test_what_is_no_namespace_is_refused_with_one_that_is(text: str) -> None:
    """`_`, `.` and `+` would make names and URIs ambiguous (F-02, B03)."""
    assert f'"{slug(text)}" would do' in refusal(values.Namespace, text)


@pytest.mark.parametrize("path", ["/", "/mcp", "/mcp/dev", "/a.b/c_d-e~f"])
def test_a_path_is_plain(path: str) -> None:
    """No escapes, so that it can only be written one way."""
    assert read(values.EndpointPath, path) == path


@pytest.mark.parametrize(
    "path",
    ["", "mcp", "/mcp/", "//", "/a//b", "/a b", "/a?b", "/a%20b", "/a#b", "/../a", "/a/.", "/.well-known",
     "/a\n", "/.Well-Known/oauth-protected-resource/mcp", "http://h/mcp", "/{x}", "/ü"],
)  # fmt: skip
def test_what_is_no_path_is_refused(path: str) -> None:
    """A trailing slash would be a second name for the same endpoint."""
    refusal(values.EndpointPath, path)


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Connection", "Mcp-Method", "ACCEPT", "a b", "a:b", "", "ä", "a\n"]
)
def test_headers_that_the_gateway_writes_are_nobody_elses(name: str) -> None:
    """A credential in one of them would be overwritten, or break the request."""
    refusal(values.HeaderName, name)


def test_authorization_may_be_a_header_of_its_own() -> None:
    """Not every upstream wants the word Bearer in it."""
    assert read(values.HeaderName, "Authorization") == "Authorization"


@pytest.mark.parametrize(
    "text",
    ["*", "https://app.example.com", "http://localhost:3000", "chrome-extension://abc", "http://[::1]:1"],
)
def test_an_origin_is_a_scheme_and_a_host(text: str) -> None:
    """What browsers send, or any."""
    assert read(values.OriginText, text) == text


@pytest.mark.parametrize(
    "text", ["null", "app.example.com", "https://h/", "https://h/x", "https://u@h", "", "https://"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    """It would never match anything."""
    refusal(values.OriginText, text)


@pytest.mark.parametrize("text", ["mcp.example.com", "*.svc", "*", "h:8443", "[::1]:1", "10.1.2.3"])
def test_a_host_is_what_the_host_header_says(text: str) -> None:
    """With or without a port (B31)."""
    assert read(values.HostText, text) == text


@pytest.mark.parametrize("text", ["https://h", "h/x", "", "a b", "h:port", "u@h"])
def test_what_is_no_host_is_refused(text: str) -> None:
    """It would never match anything."""
    refusal(values.HostText, text)


@pytest.mark.parametrize(
    ("text", "fine"),
    [("10.0.0.0/8", True), ("10.1.2.3", True), ("fd00::/8", True), ("10.1", False), ("lb", False)],
)
def test_a_trusted_proxy_is_a_network(text: str, fine: bool) -> None:
    """Names are not: who answers for a name decides whom we trust."""
    if fine:
        assert read(values.Network, text) == text
    else:
        refusal(values.Network, text)


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("2027-01-31", "2027-02-01T00:00:00+00:00"),
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00+00:00"),
        ("2027-01-31T00:00:00", "2027-01-31T00:00:00+00:00"),
        ("2027-01-31T12:00:00+02:00", "2027-01-31T10:00:00+00:00"),
        (date(2027, 1, 31), "2027-02-01T00:00:00+00:00"),
        (datetime(2027, 1, 31, 12), "2027-01-31T12:00:00+00:00"),
    ],
)
def test_what_ends_on_a_day_lasts_until_its_end(written: object, ends: str) -> None:
    """Whoever writes a last day means to use it; times without a zone are UTC, as days are."""
    assert parse_moment(written) == datetime.fromisoformat(ends).timestamp()


@pytest.mark.parametrize("written", ["tomorrow", "2027-13-01", "", True, None, [2027]])
def test_what_is_no_moment(written: object) -> None:
    """It is not guessed when a key ends."""
    with pytest.raises(ValueError, match="expected a date"):
        parse_moment(written)
