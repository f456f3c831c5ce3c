"""Lists the addresses of this machine's network interfaces."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv6Address
from pathlib import Path

IPV6_TABLE = Path("/proc/net/if_inet6")
GET_ADDRESS = {"linux": 0x8915, "darwin": 0xC0206921}
"""SIOCGIFADDR, which asks for the IPv4 address of an interface, by system."""
GET_NETMASK = {"linux": 0x891B, "darwin": 0xC0206925}
"""SIOCGIFNETMASK, which asks for its netmask."""
NAME_BYTES, REQUEST_BYTES, ADDRESS_AT = 16, 40, 20
"""The longest name of an interface, the size of a request, and the place of the address in the answer."""
MOST_BROADCAST_BITS = 30
"""The longest prefix of a network with a broadcast address."""


def list_own_addresses(table: Path = IPV6_TABLE) -> list[IPv4Address | IPv6Address]:
    """Return the addresses of all interfaces that are up, IPv4 first; without loopback and link-local ones.

    Of the IPv6 addresses, those that ``table``, a file of Linux, lists.
    """
    found: list[IPv4Address | IPv6Address] = [*(each.ip for each in _list_ipv4()), *_list_ipv6(table)]
    return [each for each in dict.fromkeys(found) if not (each.is_loopback or each.is_link_local)]


def list_broadcast_addresses() -> list[IPv4Address]:
    """Return the address of each IPv4 network of this machine that reaches all its machines; not that of loopback."""
    found = (each.network for each in _list_ipv4() if not each.is_loopback)
    return list(dict.fromkeys(each.broadcast_address for each in found if 0 < each.prefixlen <= MOST_BROADCAST_BITS))


def _list_ipv4() -> Iterator[IPv4Interface]:
    """Yield the first address of each interface, with its network."""
    codes = (GET_ADDRESS.get(sys.platform), GET_NETMASK.get(sys.platform))
    if None in codes:
        return
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{NAME_BYTES}s{REQUEST_BYTES - NAME_BYTES}x", name.encode()[: NAME_BYTES - 1])
            with contextlib.suppress(OSError, ValueError):  # it has none, or is gone
                answers = [fcntl.ioctl(probe.fileno(), code or 0, request) for code in codes]
                address, mask = (str(IPv4Address(each[ADDRESS_AT : ADDRESS_AT + 4])) for each in answers)
                yield IPv4Interface(f"{address}/{mask}")


def _list_ipv6(table: Path) -> Iterator[IPv6Address]:
    with contextlib.suppress(OSError, ValueError, IndexError):  # another system
        for line in table.read_text(encoding="ascii").splitlines():
            yield IPv6Address(bytes.fromhex(line.split()[0]))
