"""Messages by which a head has a node start further nodes on its machine, and open leases.

A head that serves several models has a node start a further node for each (`StartNode`), which joins it by itself, and
ends it when the model is unloaded (`EndNode`). A node that is to be in several pipelines opens a lease for each further
one (`OpenLease`), which joins by itself, too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.api import LARGEST, ServiceMessage


class StartNode(ServiceMessage, frozen=True, tag=29):
    """Asks a node to start a further node, a process of its own on the same machine; see `further_node`."""

    number: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class EndNode(ServiceMessage, frozen=True, tag=30):
    """Asks a node to end a further node that it has started."""

    number: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class OpenLease(ServiceMessage, frozen=True, tag=31):
    """Asks a node to have a lease join, which runs stages on the layers that the node holds; see `lease_node`."""

    number: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
