"""Rules over URIs against what real readers make of them, whatever is done to the spelling."""

import posixpath
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl
from yarl import URL

from gateway.config import Access, Config
from gateway.core.access import Policy, Sight
from gateway.core.readings import readings_of
from gateway.protocol.call import Principal, UpstreamName

FILES = UpstreamName("files")
BARE = Config.model_validate({"upstreams": {"files": {"url": "http://127.0.0.1:1/mcp"}}})
PORTS = {"http": 80, "https": 443}
TARGETS = (
    "file:///secret/x",
    "note://pub/secret",
    "https://intra.example/a/b",
    "http://10.0.0.1/a%20b",
    "db:table/x",
    "file:///s%C3%A9cret/x%25y",
)
OUTSIDE = ("../secret/x", "/secret/x", "..", "a/../../x", "%2e%2e/x", "..%5cx", "%3f/../../x", "#/../../x")
Reader = Callable[[str], Any]


def by_urllib(uri: str) -> Any:
    parts = urlsplit(uri)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or PORTS.get(parts.scheme)
    host = "" if parts.scheme == "file" and host == "localhost" else host
    return parts.scheme, host, port, posixpath.normpath(unquote(parts.path)), parts.query


def by_path_alone(uri: str) -> Any:
    """As a server does that has files only, and never looks at the rest."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ValueError(uri)
    return parts.scheme, posixpath.normpath("/" + unquote(parts.path).lstrip("/"))


def by_yarl(uri: str) -> Any:
    url = URL(uri)
    return url.scheme, url.host, url.port, posixpath.normpath(url.path), url.query_string


def by_pydantic(uri: str) -> Any:
    url = AnyUrl(uri)
    return url.scheme, url.host, url.port, posixpath.normpath(unquote(url.path or "/")), url.query or ""


def by_decoding_first(uri: str) -> Any:
    return by_urllib(unquote(uri))


def by_cutting(uri: str) -> Any:
    """As whoever takes what is behind the scheme for a path."""
    scheme, _, rest = uri.partition("://")
    return scheme, posixpath.normpath(unquote(rest))


READERS: tuple[Reader, ...] = (
    by_urllib,
    by_path_alone,
    by_yarl,
    by_pydantic,
    by_decoding_first,
    by_cutting,
)


def read(reader: Reader, uri: str) -> Any:
    try:
        return reader(uri)
    except ValueError:  # it refuses to read that
        return None


def seen(*rules: dict[str, Any], default: str = "deny") -> Sight:
    access = Access.model_validate({"rules": list(rules), "default": default})
    return Policy(BARE.model_copy(update={"access": access}), "/mcp").sight(Principal())


DENYING = {target: seen({"resources": [target], "deny": True}, {}) for target in TARGETS}
FOLDER = "file:///data/public/"
ALLOWING = seen({"resources": [FOLDER + "*"]})

INSERTED = st.sampled_from(
    (
        *("/", "//", "./", "../", "a/../", "/.", "/..", "\\", "\\..\\", "%2e/", "%2e%2e%2f", "%5c..", "..;/"),
        *("?", "#", "%3f", "%23", "?/../", "#/../", "%3F/..%2f..", "%253f/../"),
        *(" ", "\t", "%09", "%00", "%20", "\n", ";", "@", "u@", "u:p@", "%40", ":", ":443", ":80", ":0443"),
        *(".", "。", "．", "\u00ad", "localhost", "//localhost", "%25", "é", "%C3%A9", "+", "|", "xn--"),
    )
)


@st.composite
def mangled(draw: st.DrawFn, start: str) -> str:
    """Draw a URI that some readers may well take for this one."""
    uri = start
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(uri)))
        step = draw(
            st.sampled_from(("encode", "decode", "case", "insert", "insert", "drop", "slashes", "end"))
        )
        if step == "encode":
            char = uri[at : at + 1].encode(errors="surrogatepass")
            uri = uri[:at] + "".join(f"%{byte:02x}" for byte in char) + uri[at + 1 :]
        elif step == "decode":
            uri = uri[:at] + unquote(uri[at:], errors="surrogateescape")
        elif step == "case":
            uri = uri[:at] + uri[at:].swapcase()
        elif step == "insert":
            uri = uri[:at] + draw(INSERTED) + uri[at:]
        elif step == "drop":
            uri = uri[:at] + uri[at + 1 :]
        elif step == "slashes":
            scheme, colon, rest = uri.partition(":")
            uri = scheme + colon + draw(st.text("/\\", max_size=4)) + rest.lstrip("/\\")
        else:
            uri += draw(INSERTED)
    return uri


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_a_reader_takes_for_the_denied_is_denied(target: str, data: st.DataObject) -> None:
    uri = data.draw(mangled(target))
    denied = [reader.__name__ for reader in READERS if read(reader, uri) == read(reader, target) is not None]
    if denied:
        assert not DENYING[target].judge(FILES, "resource", uri).allowed, (uri, denied)


@settings(max_examples=300, deadline=None)
@given(uri=st.sampled_from(("", "a", *OUTSIDE)).map(FOLDER.__add__).flatmap(mangled))
def test_no_reader_is_led_out_of_what_is_allowed(uri: str) -> None:
    if ALLOWING.judge(FILES, "resource", uri).allowed:
        for reader in READERS:
            found = read(reader, uri)
            path = "" if found is None else found[1] if len(found) == 2 else found[3]
            assert found is None or f"{path}/".replace("//", "/").startswith("/data/public/"), (uri, found)


@settings(max_examples=300, deadline=None)
@given(
    value=st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20),
    safe=st.sampled_from(("", "/", "/é文:@!$&'()*+,;=")),
)
def test_values_of_templates_stay_inside(value: str, safe: str) -> None:
    """Whatever they are, but for what some reader would take for a detour."""
    assume(not any(part in (".", "..") for part in value.replace("\\", "/").replace("?", "/").split("/")))
    uri = f"{FOLDER}{quote(value, safe=safe)}/end"
    assume(not readings_of(uri).unclear)
    assert ALLOWING.judge(FILES, "resource", uri).allowed
    listed = seen({"resources": [f"note://{{q}}/{quote(value)}".replace("[", "[[]")]})
    assert listed.judge(FILES, "resource", f"note://{{q}}/{quote(value)}", listed=True).allowed


@settings(max_examples=300, deadline=None)
@given(value=st.text("abcXYZ019 éñ文/?&=+,!~_-'()", max_size=20))
def test_nothing_in_ordinary_values_is_unclear(value: str) -> None:
    assert not readings_of(f"{FOLDER}{quote(value, safe='')}x").unclear
    assert not readings_of(f"search://all?q={quote(value, safe='')}x#{quote(value)}x").unclear
