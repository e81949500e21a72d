"""Where metadata is looked for, and in which order."""

from gateway.protocol.well_known import issuer_places, resource_places


def test_an_issuer_is_looked_for_in_the_order_of_the_specification() -> None:
    """Path inserted for OAuth, inserted for OpenID, appended for OpenID (Z-11)."""
    assert issuer_places("https://as.example/tenant") == (
        "https://as.example/.well-known/oauth-authorization-server/tenant",
        "https://as.example/.well-known/openid-configuration/tenant",
        "https://as.example/tenant/.well-known/openid-configuration",
    )
    for issuer in ("https://as.example:8443", "https://as.example:8443/"):
        assert issuer_places(issuer) == (
            "https://as.example:8443/.well-known/oauth-authorization-server",
            "https://as.example:8443/.well-known/openid-configuration",
        )


def test_an_upstreams_metadata_is_looked_for_at_its_path_then_at_the_root() -> None:
    """RFC 9728, 3.1."""
    assert resource_places("https://x.example/a/mcp?tenant=1") == (
        "https://x.example/.well-known/oauth-protected-resource/a/mcp",
        "https://x.example/.well-known/oauth-protected-resource",
    )
    assert resource_places("https://[2001:db8::1]:81/") == (
        "https://[2001:db8::1]:81/.well-known/oauth-protected-resource",
    )
