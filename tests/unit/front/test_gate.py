"""Who may knock, decided from headers and the bound addresses alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.front.gate import Gate, is_own_name
from tests.support.front import settings

LOOPBACK = [("127.0.0.1", 8080)]
EVERYWHERE = [("0.0.0.0", 8080)]
PUBLIC = "https://mcp.example.com/tools/gw"


def refused(gate: Gate, peer: str = "127.0.0.1", **headers: str) -> str | None:
    """Return the reason of a refusal; header names are written with underscores."""
    named = CIMultiDict(
        {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    )
    refusal = gate.refuse(named, peer)
    return None if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("mcp.example.com", True),
        ("MCP.Example.Com.", True),
        ("mcp.example.com:443", True),
        ("mcp.example.com:8443", True),
        ("gw.example:8080", True),
        ("gw.example", True),
        ("gw.example:9", False),
        ("a.pods.example", True),
        ("pods.example", False),
        ("[fd00::1]:8080", True),
        ("[fd00::2]", False),
        ("localhost", False),
        ("127.0.0.1", False),
        ("mcp.example.com.evil.example", False),
        ("evil.example", False),
        ("", False),
    ],
)
def test_configured_hosts_and_the_public_url_are_served(host: str, fits: bool) -> None:
    """A port counts only where both sides say one; a star stands for any part of a name (B31)."""
    hosts = ["gw.example:8080", "*.pods.example", "[fd00::1]"]
    gate = Gate(settings(hosts=hosts, public_url=PUBLIC), EVERYWHERE)
    assert refused(gate, Host=host) == (None if fits else "host")


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "127.8.9.1:80", "[::1]", "a.localhost"])
def test_loopback_serves_every_spelling_of_itself(host: str) -> None:
    """Bound to loopback only."""
    assert refused(Gate(settings(), LOOPBACK), Host=host) is None
    assert refused(Gate(settings(), [("::1", 8080)]), Host=host) is None


def test_bound_to_everything_any_host_is_served() -> None:
    """Until `hosts` says which; an address of loopback beside another is not loopback."""
    assert refused(Gate(settings(), EVERYWHERE), Host="pod-7") is None
    assert refused(Gate(settings(), [*LOOPBACK, ("10.0.0.1", 80)]), Host="pod-7") is None
    assert refused(Gate(settings(hosts=["mcp.example"]), EVERYWHERE), Host="pod-7") == "host"


def test_several_origins_are_none() -> None:
    """Which of them a browser's user is at is anybody's guess."""
    gate = Gate(settings(origins=["https://a.example"]), LOOPBACK)
    several = CIMultiDict([("Host", "127.0.0.1"), ("Origin", "https://a.example")])
    assert gate.refuse(several, "127.0.0.1") is None
    several.add("Origin", "https://a.example")
    refusal = gate.refuse(several, "127.0.0.1")
    assert refusal is not None
    assert refusal.reason == "origin"


@pytest.mark.parametrize(
    ("target", "fits"),
    [
        ("http://gw.example/mcp", True),
        ("HTTP://GW.Example:8080/mcp?x=http://evil.example", True),
        ("http://gw.example", True),
        ("http://gw.example:9/mcp", False),
        ("http://evil.example/mcp", False),
        ("http://evil.example#gw.example", False),
        ("http://evil.example\\@gw.example/mcp", False),
        ("http://gw.example@evil.example/mcp", False),
        ("http://u@gw.example/mcp", False),
        ("http:///mcp", False),
        ("*", True),
        ("gw.example:8080", True),
    ],
)
def test_a_whole_url_in_the_first_line_is_judged_by_its_host(target: str, fits: bool) -> None:
    """It counts more than Host does (RFC 9112, 3.2.2); what is no URL is no endpoint either."""
    gate = Gate(settings(hosts=["gw.example:8080"]), EVERYWHERE)
    assert (gate.refuse_target(target) is None) == fits
    assert Gate(settings(), EVERYWHERE).refuse_target(target) is None


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        ("10.1.2.3", None),
        ("::ffff:10.1.2.3", None),
        ("fd00::9%eth0", None),
        ("11.0.0.1", "host"),
        ("", "host"),
    ],
)
def test_a_forwarded_host_is_believed_from_trusted_proxies(peer: str, reason: str | None) -> None:
    """By address or network, also when an IPv4 peer shows as IPv6."""
    config = settings(hosts=["mcp.example"], trusted_proxies=["10.0.0.0/8", "fd00::9"])
    gate = Gate(config, EVERYWHERE)
    assert refused(gate, peer, Host="pod-7", X_Forwarded_Host="mcp.example") == reason
    assert refused(gate, peer, Host="mcp.example", X_Forwarded_Host="evil.example") != reason


def test_a_client_names_no_host_for_itself_through_a_proxy() -> None:
    """Where proxies add to a list, what the client began it with stands left of theirs (B31)."""
    config = settings(hosts=["mcp.example"], trusted_proxies=["10.0.0.0/8"])
    gate = Gate(config, EVERYWHERE)
    hops = {"Host": "pod-7", "X_Forwarded_For": "1.2.3.4, 10.0.0.1"}
    assert refused(gate, "10.0.0.2", **hops, X_Forwarded_Host="mcp.example, inner.example") is None
    assert refused(gate, "10.0.0.2", **hops, X_Forwarded_Host="mcp.example, evil.example, inner") == "host"
    assert refused(gate, "10.0.0.2", Host="pod-7", Forwarded="for=1.2.3.4;host=mcp.example") is None
    assert refused(gate, "11.0.0.2", Host="pod-7", Forwarded="for=1.2.3.4;host=mcp.example") == "host"


def test_a_page_from_the_place_that_was_asked_for_is_our_own() -> None:
    """As seen from outside, where the Host is judged: else any page may have any name (B31)."""
    config = settings(hosts=["mcp.example", "gw.example:8443"], trusted_proxies=["10.0.0.0/8"])
    gate, proxy = Gate(config, EVERYWHERE), "10.0.0.2"
    told = {"Host": "pod-7", "X_Forwarded_Host": "mcp.example", "X_Forwarded_Proto": "https"}
    assert refused(gate, proxy, **told, Origin="https://mcp.example") is None
    assert refused(gate, proxy, **told, Origin="https://mcp.example:443") is None
    assert refused(gate, proxy, **told, Origin="http://mcp.example") == "origin"
    assert refused(gate, proxy, **told, Origin="https://gw.example") == "origin"
    assert refused(gate, proxy, Host="mcp.example", Origin="http://mcp.example") == "origin"
    assert refused(gate, "11.0.0.1", Host="gw.example:8443", Origin="http://gw.example:8443") is None
    assert refused(gate, "11.0.0.1", Host="gw.example:8443", Origin="https://gw.example:8443") == "origin"
    anybody = Gate(settings(), EVERYWHERE)
    assert refused(anybody, Host="evil.example", Origin="http://evil.example") == "origin"


@pytest.mark.parametrize(
    ("told", "called"),
    [
        ({"X_Forwarded_Host": "mcp.example.com", "X_Forwarded_Proto": "https"}, None),
        ({"X_Forwarded_Host": "mcp.example.com:443", "X_Forwarded_Prefix": "/tools/gw/"}, None),
        ({"Forwarded": "host=mcp.example.com;proto=http"}, "http://mcp.example.com/tools/gw"),
        (
            {"X_Forwarded_Host": "MCP.example.com", "X_Forwarded_Prefix": "/other"},
            "https://mcp.example.com/other",
        ),
        ({"X_Forwarded_Host": "other.example", "X_Forwarded_Proto": "http"}, None),
        ({"X_Forwarded_Proto": "http"}, None),
    ],
)
def test_a_public_url_that_is_not_what_clients_call_is_noticed(
    told: dict[str, str], called: str | None
) -> None:
    """By a trusted proxy's word alone (B37)."""
    gate = Gate(settings(public_url=PUBLIC, trusted_proxies=["10.0.0.0/8"]), EVERYWHERE)
    headers = CIMultiDict({name.replace("_", "-"): text for name, text in told.items()})
    assert gate.called_otherwise(headers, "10.0.0.2") == called
    assert gate.called_otherwise(headers, "11.0.0.2") is None


@pytest.mark.parametrize(
    ("remote", "client"),
    [("10.0.0.2", "1.2.3.4"), ("::ffff:10.0.0.2", "1.2.3.4"), ("11.0.0.2", "11.0.0.2"), (None, "")],
)
def test_the_address_beyond_trusted_proxies_is_the_clients(remote: str | None, client: str) -> None:
    """From anybody else the headers count for nothing."""
    headers = CIMultiDict({"X-Forwarded-For": "6.6.6.6, 1.2.3.4"})
    assert Gate(settings(trusted_proxies=["10.0.0.0/8"]), EVERYWHERE).peer(headers, remote) == client
    plain = remote if remote is None else remote.removeprefix("::ffff:")
    assert Gate(settings(), EVERYWHERE).peer(headers, remote) == (plain or "")


@pytest.mark.parametrize(
    ("origin", "fits"),
    [
        ("https://mcp.example.com", True),
        ("https://mcp.example.com:443", True),
        ("https://MCP.example.com", True),
        ("https://mcp.example.com:8443", False),
        ("http://mcp.example.com", False),
        ("https://app.example", True),
        ("https://page.example:3000", True),
        ("https://page.example", False),
        ("http://10.0.0.5:8080", True),
        ("http://localhost:3000", False),
        ("https://app.example.evil.example", False),
        ("https://app.example@evil.example", False),
        ("https://app.example/", False),
        ("null", False),
        ("", False),
        ("*", False),
    ],
)
def test_origins_are_compared_whole(origin: str, fits: bool) -> None:
    """Scheme, name and port: our own, the public URL's, `origins` and `cors.origins`."""
    config = settings(
        public_url=PUBLIC, origins=["https://app.example"], cors={"origins": ["https://page.example:3000"]}
    )
    gate = Gate(config, [("10.0.0.5", 8080)])
    assert refused(gate, Origin=origin) == (None if fits else "origin")


def test_a_star_lets_every_origin_in_but_null() -> None:
    """`null` may be anybody: a sandboxed frame, a file."""
    gate = Gate(settings(origins=["*"]), EVERYWHERE)
    assert refused(gate, Origin="https://any.example") is None
    assert refused(gate, Origin="null") == "origin"


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_host_and_origin_is_judged_and_never_echoed_raw(host: str, origin: str) -> None:
    """Whatever the header holds, the lines for the answer are one header each."""
    gate = Gate(settings(hosts=["a.example"], cors={"origins": ["*"]}), LOOPBACK)
    refused(gate, Host=host, Origin=origin)
    lines = gate.cors_lines(origin)
    assert lines.count(b"\r\n") in (1, 3)
    assert lines.count(b"\n") == lines.count(b"\r")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:9090", True),
        ("10.1.2.3", True),
        ("[fd00::7]:9090", True),
        ("[::1]", True),
        ("localhost:9090", True),
        ("a.localhost", True),
        ("mcp-gateway-admin:9090", True),
        ("mcp-gateway-admin.mcp.svc:9090", True),
        ("MCP-gateway.mcp.svc.cluster.local.", True),
        ("gw.internal", True),
        ("", True),
        ("evil.example", False),
        ("evil.example.", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:9090", False),
        ("x.svc.evil.example", False),
        ("evil.example:9090@127.0.0.1", False),
        ("evil.local", False),
        ("status.corp.example:9", True),
        ("a.pods.example", True),
        ("mcp.example.com", True),
        ("evil.mcp.example.com", False),
    ],
)
def test_a_name_that_nobody_else_can_have_is_our_own(host: str, own: bool) -> None:
    """DNS rebinding: a page comes under a name that its author has registered."""
    known = settings(hosts=["status.corp.example:8080", "*.pods.example"], public_url=PUBLIC)
    assert is_own_name(host, known) is own


def test_a_star_makes_every_name_our_own() -> None:
    """Who writes it has been told what it means."""
    assert is_own_name("evil.example", settings(hosts=["*"]))
