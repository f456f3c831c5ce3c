"""Opens HTTP connections for commands: directly to this machine, else through the proxy."""

from __future__ import annotations

import ipaddress
import urllib.request
from typing import Any
from urllib.parse import urlsplit


def open_request(request: urllib.request.Request, timeout_s: float | None) -> Any:  # noqa: ANN401 -- as `urlopen`
    """Return the response to a request; raises what `urllib.request.urlopen` raises.

    ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` hold as in other programs. A proxy is never asked
    for an address of this machine: it would take it for its own, and see prompts and keys.
    """
    if not is_own(urlsplit(request.full_url).hostname or ""):
        return urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 -- the user's own address
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return direct.open(request, timeout=timeout_s)


def is_own(host: str) -> bool:
    """Return whether a host is this machine, by its name or address."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def complete_url(url: str) -> str:
    """Return the URL of an API with its scheme, by default ``http``, as for ``127.0.0.1:8000/v1``."""
    return url if "://" in url else f"http://{url.removeprefix('//')}"
