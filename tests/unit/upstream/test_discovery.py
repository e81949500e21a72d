"""Where tokens are given out: what counts of what is found at the places where that is said."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.discovery import (
    Issuer,
    Resource,
    Unfit,
    canonical,
    read_issuer,
    read_resource,
    scopes_of,
)


def said(**members: object) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("HTTPS://MCP.Example/", "https://mcp.example"),
        ("https://mcp.example:443/mcp", "https://mcp.example/mcp"),
        ("https://mcp.example:8443/mcp/", "https://mcp.example:8443/mcp/"),
        ("http://[::1]:80/mcp#part", "http://[::1]/mcp"),
        ("https://mcp.example/a%2Fb?x=1", "https://mcp.example/a%2Fb?x=1"),
    ],
)
def test_the_name_of_a_server_in_tokens(url: str, named: str) -> None:
    """Lower case, no default port, no fragment, no slash that means nothing (Z-06)."""
    assert canonical(url) == named


URL = "https://x.example/a/mcp"


@pytest.mark.parametrize("resource", [URL, "https://X.example:443/a/mcp"])
def test_metadata_of_the_server(resource: str) -> None:
    """What it says of itself is what tokens must be for."""
    body = said(
        resource=resource, authorization_servers=["https://as.example"], scopes_supported=["r", "a b"]
    )
    assert read_resource(body, URL) == Resource(resource, ("https://as.example",), ("r",))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (said(authorization_servers=["https://as.example"]), "resource"),
        (said(resource=URL), "no authorization server"),
        (said(resource=URL, authorization_servers=[]), "no authorization server"),
        (said(resource=URL, authorization_servers="https://as.example"), "no authorization server"),
        (said(resource=URL, authorization_servers=["https://u:p@as.example"]), "no authorization server"),
        (said(resource=URL, authorization_servers=["https://as.example?x"]), "no authorization server"),
        (said(resource=URL, authorization_servers=["as.example", "file:///x"]), "no authorization server"),
        (said(resource=URL, authorization_servers=["https://as.example:99999"]), "no authorization server"),
        (said(resource="https://y.example/a/mcp", authorization_servers=["https://as.example"]), "another"),
        (said(resource="http://x.example/a/mcp", authorization_servers=["https://as.example"]), "another"),
        (said(resource="https://x.example/a/m", authorization_servers=["https://as.example"]), "another"),
        (said(resource="https://x.example/a/mcp/b", authorization_servers=["https://as.example"]), "another"),
        (said(resource="https://x.example@", authorization_servers=["https://as.example"]), "another"),
        (said(resource="https://[", authorization_servers=["https://as.example"]), "another"),
    ],
)
def test_metadata_that_does_not_count(body: bytes, message: str) -> None:
    """Of another resource above all: a token for that is none for us (RFC 9728, 3.3)."""
    with pytest.raises(Unfit, match=message):
        read_resource(body, URL)


@pytest.mark.parametrize("resource", ["https://X.example/a", "https://x.example/", "https://x.example"])
def test_metadata_of_more_than_the_server_does_not_count(resource: str) -> None:
    """Such a token would be good for its neighbours; unless the operator says what tokens are for."""
    body = said(resource=resource, authorization_servers=["https://as.example"])
    with pytest.raises(Unfit, match="another resource"):
        read_resource(body, URL)
    assert read_resource(body, URL, resource).resource == resource
    if not resource.endswith("/a"):
        assert read_resource(body, URL, "https://named.example")


def test_a_slash_at_the_end_makes_no_other_server() -> None:
    """What it calls itself is what tokens are asked for."""
    for resource, url in ((f"{URL}/", URL), (URL, f"{URL}/")):
        body = said(resource=resource, authorization_servers=["https://as.example"])
        assert read_resource(body, url).resource == resource


def test_an_issuer_speaks_for_itself_alone() -> None:
    """Its identifier is the one that led to it, to the letter (RFC 8414, 3.3)."""
    body = said(issuer="https://as.example", token_endpoint="https://as.example/token")
    assert read_issuer(body, "https://as.example") == Issuer("https://as.example", "https://as.example/token")
    for other in ("https://as.example/", "https://AS.example", "https://evil.example"):
        with pytest.raises(Unfit, match="another issuer"):
            read_issuer(body, other)
    body = said(issuer="https://as.example", token_endpoint="https://as.example:99999/token")
    with pytest.raises(Unfit, match="token_endpoint"):
        read_issuer(body, "https://as.example")
    with pytest.raises(Unfit, match="token_endpoint"):
        read_issuer(said(issuer="https://as.example"), "https://as.example")


def test_scopes_are_taken_from_a_challenge_once_and_only_if_they_are_some() -> None:
    """What could not be asked for is left out, and there is an end to it."""
    assert scopes_of('r w r  x" \\y') == ("r", "w")
    assert scopes_of(None) == ()
    assert len(scopes_of(" ".join(map(str, range(1000))))) == 64


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_anything_is_read_or_unfit(body: bytes) -> None:
    """A document is whatever somebody serves."""
    for read, of in ((read_resource, URL), (read_issuer, "https://as.example")):
        with contextlib.suppress(Unfit):
            read(body, of)


@given(st.text())
def test_any_resource_is_judged(resource: str) -> None:
    """Also what is no URL at all."""
    with contextlib.suppress(Unfit):
        read_resource(said(resource=resource, authorization_servers=["https://as.example"]), URL)
