"""Which proxy and which certificates lead to an upstream."""

import ssl

import pytest

from gateway import config
from gateway.upstream.connecting import proxy_for, shown_url, ssl_context

ENVIRON = {
    "HTTPS_PROXY": "http://proxy:3128",
    "NO_PROXY": ".svc,10.0.0.0/8,exact.example:8443,*.wild.example",
}


def upstream(url, **settings):
    return config.Upstream(url=url, prefix="a", **settings)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://far.example/mcp", "http://proxy:3128"),
        ("http://far.example/mcp", None),
        ("https://a.b.svc/mcp", None),
        ("https://10.1.2.3/mcp", None),
        ("https://11.1.2.3/mcp", "http://proxy:3128"),
        ("https://exact.example:8443/mcp", None),
        ("https://exact.example/mcp", "http://proxy:3128"),
        ("https://a.wild.example/mcp", None),
        ("https://127.0.0.1/mcp", None),
        ("https://[::1]/mcp", None),
        ("https://localhost:1/mcp", None),
    ],
)
def test_the_environment_leads_when_switched_on(url, expected):
    """NO_PROXY takes suffixes, networks and ports; loopback is never proxied (B49)."""
    assert proxy_for(upstream(url, trust_env=True), ENVIRON) == expected
    assert proxy_for(upstream(url), ENVIRON) is None


def test_the_upstreams_own_proxy_wins():
    """What is written beside the upstream needs no switch."""
    settings = upstream("https://far.svc/mcp", proxy="http://other:1", trust_env=True)
    assert proxy_for(settings, ENVIRON) == "http://other:1"


def test_lower_case_and_all_proxy():
    """Lower case wins, all_proxy is the last resort, a bare host:port is http, * bypasses everything."""
    far = upstream("https://far.example/mcp", trust_env=True)
    assert proxy_for(far, {"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}) == "http://b"
    assert proxy_for(far, {"ALL_PROXY": "c:1"}) == "http://c:1"
    assert proxy_for(far, {**ENVIRON, "no_proxy": "*"}) is None


def test_a_file_that_will_not_do_fails_at_construction(tmp_path):
    """A file may change after it was checked; the message names the setting and no content (B49)."""
    empty = tmp_path / "ca.pem"
    empty.write_text("not a certificate")
    for field in ("ca_file", "client_cert"):
        with pytest.raises(ValueError, match=rf"upstreams\.alpha\.tls\.{field}"):
            ssl_context("alpha", config.Tls.model_construct(**{field: str(empty)}))


def test_the_system_is_trusted_unless_told_otherwise():
    """Verification is on; skipping it is explicit."""
    assert ssl_context("alpha", config.Tls()).verify_mode is ssl.CERT_REQUIRED
    assert ssl_context("alpha", config.Tls(insecure_skip_verify=True)).verify_mode is ssl.CERT_NONE


def test_a_shown_url_has_no_secret():
    """Neither userinfo nor query (B42)."""
    assert shown_url("https://u:pw@h:8/mcp?api_key=K#f") == "https://h:8/mcp"
    assert shown_url("http://[::1]/mcp") == "http://[::1]/mcp"
