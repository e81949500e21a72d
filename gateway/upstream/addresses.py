"""Which addresses an upstream may send the gateway to: public ones, or this machine's where it runs there.

A name says nothing about where it leads, so addresses are judged, after DNS (Z-12, U-29). No I/O.
"""

import ipaddress
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLOSED_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",  # a cloud's metadata, at an address that looks public
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_CLOSED_6 = tuple(
    # Teredo and 6to4 among them: they hide an IPv4 address.
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


def permitted(text: str, *, loopback: bool) -> bool:
    """Whether an upstream may send the gateway to this address; `loopback` when it runs on this machine."""
    try:
        address = _plain(ipaddress.ip_address(text))
    except ValueError:
        return False
    if address.is_loopback:
        return loopback
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _CLOSED_4)
    return address in _GLOBAL_6 and not any(address in network for network in _CLOSED_6)


def _plain(address: Address) -> Address:
    """Return the IPv4 address that stands inside one of IPv6, if one does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
