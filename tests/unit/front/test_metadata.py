"""Under which URLs the endpoints are known, and where the documents about them are looked for."""

import json
from typing import Any

import pytest

from gateway.front.metadata import Resources, canonical, metadata_url
from tests.support.front import settings

ISSUER = {"corp": {"issuer": "https://login.example.com"}}
HERE = [("127.0.0.1", 8080)]
ENDPOINTS = ("/mcp", "/mcp/dev", "/")


def resources(**members: Any) -> Resources:
    """Return those of a configuration that takes tokens."""
    members.setdefault("authentication", {"tokens": ISSUER})
    return Resources(settings(**members), ENDPOINTS, HERE)


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("HTTPS://MCP.Example.COM/Mcp", "https://mcp.example.com/Mcp"),
        ("https://mcp.example.com:443/mcp/", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com:8443/mcp#x", "https://mcp.example.com:8443/mcp"),
        ("http://[::1]:80/", "http://[::1]"),
        ("https://mcp.example.com/mcp?a=B", "https://mcp.example.com/mcp?a=B"),
    ],
)
def test_a_resource_has_one_spelling(url: str, spelled: str) -> None:
    """Z-06: lower-case scheme and host, no fragment, no slash at the end that means nothing."""
    assert canonical(url) == spelled
    assert canonical(spelled) == spelled


def test_the_well_known_segment_stands_before_the_path() -> None:
    """RFC 9728, 3.1."""
    assert metadata_url("https://x.example") == "https://x.example/.well-known/oauth-protected-resource"
    assert metadata_url("https://x.example:8443/tools/mcp") == (
        "https://x.example:8443/.well-known/oauth-protected-resource/tools/mcp"
    )


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/.well-known/oauth-protected-resource/tools/gw/mcp", "/mcp"),
        ("/.well-known/oauth-protected-resource/tools/gw/mcp/", "/mcp"),
        ("/.well-known/oauth-protected-resource/tools/gw/mcp/dev", "/mcp/dev"),
        ("/.well-known/oauth-protected-resource/mcp", "/mcp"),
        ("/.well-known/oauth-protected-resource/mcp/dev", "/mcp/dev"),
        ("/tools/gw/.well-known/oauth-protected-resource/mcp", "/mcp"),
        ("/.well-known/oauth-protected-resource", "/"),
        ("/.well-known/oauth-protected-resource/tools/gw", "/"),
        ("/tools/gw/.well-known/oauth-protected-resource", "/"),
        ("/.well-known/oauth-protected-resource/other", None),
        ("/.well-known/oauth-authorization-server", None),
        ("/mcp", None),
    ],
)
def test_a_document_is_found_whatever_a_proxy_does_with_the_path(path: str, endpoint: str | None) -> None:
    """Kept, taken away, or put where the client takes the root to be (B37)."""
    assert resources(public_url="https://x.example/tools/gw").asked(path) == endpoint


def test_without_an_endpoint_at_the_root_the_first_one_is_meant_there() -> None:
    """Z-03: the document is at the root form, too."""
    ours = Resources(settings(authentication={"tokens": ISSUER}), ["/a", "/b"], HERE)
    assert ours.asked("/.well-known/oauth-protected-resource") == "/a"


def test_where_nobody_gives_out_tokens_there_is_no_document() -> None:
    """A client that holds a key has nothing to discover."""
    hash = "sha256:" + "0" * 64
    ours = resources(authentication={"keys": {"ci": {"hash": hash}}})
    assert ours.asked("/.well-known/oauth-protected-resource/mcp") is None
    assert ours.metadata("/mcp", "127.0.0.1:8080") is None


def test_the_document_says_who_gives_out_tokens() -> None:
    """Z-03: resource, servers, few scopes; what is not set is not there."""
    bare = json.loads(resources(public_url="https://MCP.example.com/").document("/mcp", "evil.example"))
    assert bare == {
        "resource": "https://mcp.example.com/mcp",
        "authorization_servers": ["https://login.example.com"],
        "bearer_methods_supported": ["header"],
        "resource_name": "mcp-gateway",
    }
    full = resources(
        public_url="https://mcp.example.com",
        identity={"title": "Acme tools"},
        authentication={
            "tokens": ISSUER,
            "scopes": ["mcp"],
            "scopes_supported": ["read", "mcp"],
            "documentation": "https://docs.example.com",
        },
    )
    said = json.loads(full.document("/mcp", ""))
    assert said["scopes_supported"] == ["mcp", "read"]
    assert said["resource_documentation"] == "https://docs.example.com"
    assert said["resource_name"] == "Acme tools"


def test_on_loopback_the_host_decides_between_the_names_of_this_machine() -> None:
    """With our own port: a token for another server of this machine must not be good here (Z-07)."""
    ours = resources()
    assert ours.url("/mcp", "localhost:8080") == "http://localhost:8080/mcp"
    assert ours.url("/mcp", "[::1]:8080") == "http://[::1]:8080/mcp"
    assert ours.url("/mcp", "localhost") == "http://localhost:8080/mcp"
    for foreign in ("127.0.0.1:8080", "localhost:9999", "evil.localhost:8080", "evil.example", ""):
        assert ours.url("/mcp", foreign) == "http://127.0.0.1:8080/mcp", foreign


def test_elsewhere_no_header_decides() -> None:
    """The public URL, or the address that is bound."""
    assert resources(public_url="https://x.example").url("/mcp", "localhost:8080") == "https://x.example/mcp"
    keys = {"keys": {"ci": {"hash": "sha256:" + "0" * 64}}}
    anywhere = Resources(settings(authentication=keys), ["/mcp"], [("10.0.0.1", 80), ("127.0.0.1", 80)])
    assert anywhere.url("/mcp", "localhost:80") == "http://10.0.0.1/mcp"
