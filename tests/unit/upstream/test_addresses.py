"""Where an upstream may send the gateway, by the addresses themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.addresses import permitted


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # an address to refuse, not to bind
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "2002:a00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "localhost",
        "2130706433",
        "",
    ],
)
@pytest.mark.parametrize("loopback", [True, False])
def test_no_address_that_is_not_public(address: str, loopback: bool) -> None:
    """Private, link-local, shared, multicast, metadata; also inside an address of IPv6 (Z-12)."""
    assert not permitted(address, loopback=loopback)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"])
def test_this_machine_only_where_the_upstream_is_on_it(address: str) -> None:
    """A server on loopback may name another there; one elsewhere may not."""
    assert permitted(address, loopback=True)
    assert not permitted(address, loopback=False)


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "2606:4700::1", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    """IPv4, IPv6, and IPv4 behind a translator."""
    assert permitted(address, loopback=False)


@given(st.ip_addresses(v=4), st.booleans())
def test_an_address_means_the_same_however_ipv6_spells_it(address: object, loopback: bool) -> None:
    """A mapped address leads to the very same place."""
    assert permitted(f"::ffff:{address}", loopback=loopback) == permitted(str(address), loopback=loopback)
