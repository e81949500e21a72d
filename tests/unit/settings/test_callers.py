"""What a configuration may say of callers: names and proofs that mean one thing only."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.settings.callers import Authentication

CORP = {"issuer": "https://corp.example"}
HASH = f"sha256:{'0' * 64}"


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Authentication.model_validate(settings)
    return str(caught.value)


@pytest.mark.parametrize("name", ["key", "cert", "anonymous"])
def test_no_issuer_is_called_as_other_callers_are(name: str) -> None:
    """Else its callers could pass for them."""
    assert "choose another" in refused({"tokens": {name: CORP}})


def test_an_issuer_and_a_key_have_one_name() -> None:
    """Which of two would a caller be?"""
    assert "a and b are the same issuer" in refused({"tokens": {"a": CORP, "b": CORP}})
    assert "a and b are the same key" in refused({"keys": {"a": {"hash": HASH}, "b": {"hash": HASH}}})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"issuer": "http://corp.example"}, "expected https"),
        ({"jwks_url": "http://corp.example/jwks"}, "expected https"),
        ({"introspection_url": "http://corp.example/introspect"}, "expected https"),
        ({"issuer": "https://user:pw@corp.example"}, "no credentials"),
        ({"algorithms": ["HS256"]}, "RS256"),
        ({"algorithms": ["none"]}, "RS256"),
        ({"algorithms": []}, "at least one"),
        ({"client_id": "gw", "client_secret": "s"}, "go with introspection_url"),
        ({"introspection_url": "https://corp.example/i", "client_id": "gw"}, "go together"),
    ],
)
def test_an_issuer_that_would_prove_nothing(changes: dict[str, Any], why: str) -> None:
    """What decides who gets in comes over https, and by signatures that nobody else can make."""
    assert why in refused({"tokens": {"corp": {**CORP, **changes}}})


@pytest.mark.parametrize(
    "header",
    ["Authorization", "Cookie", "Set-Cookie", "X-Forwarded-For", "X-Forwarded-Client-Cert", "Forwarded",
     "Connection", "TE", "Host", "Mcp-Session-Id", "Origin", "X-Real-IP", "Proxy-Authorization"],
)  # fmt: skip
def test_a_key_comes_in_no_header_that_means_something_else(header: str) -> None:
    """Each request with one of these would be refused, or be let in for what others wrote there."""
    assert "header" in refused({"key_header": header})
    Authentication.model_validate({"key_header": "X-API-Key"})


@pytest.mark.parametrize("header", ["Authorization", "X-Forwarded-For", "Cookie", "Transfer-Encoding"])
def test_a_certificate_is_reported_in_no_header_that_means_something_else(header: str) -> None:
    """A proxy writes there what a client says."""
    assert "header" in refused({"certificates": {"source": "header", "header": header}})


@pytest.mark.parametrize("header", ["X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert", "Client-Cert"])
def test_the_headers_of_proxies_report_certificates(header: str) -> None:
    """As Envoy, Traefik and RFC 9440 call them."""
    Authentication.model_validate({"certificates": {"source": "header", "header": header}})


def test_one_header_is_not_for_keys_and_certificates() -> None:
    """Which of the two would stand there?"""
    same = {"key_header": "X-Who", "certificates": {"source": "header", "header": "x-who"}}
    assert "the same header" in refused(same)


def test_a_key_is_no_name() -> None:
    """Names stand in logs."""
    assert "a key itself" in refused({"keys": {"mcpgw_abc": {"hash": HASH}}})


def test_a_scope_brings_what_it_includes() -> None:
    """However far that goes, and in circles, too."""
    ways = Authentication(implies={"admin": ["write"], "write": ["read"], "read": ["write"]})
    assert ways.granted(["admin"]) == {"admin", "write", "read"}
    assert ways.granted(["other"]) == {"other"}
