"""The answers that are being generated, by the ids that clients know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from parallax_core.server.response import ResponseFlow


class RunningFlows:
    """Finds the flow of a request by its id and its client."""

    def __init__(self) -> None:
        self._flows: dict[tuple[bytes, str], list[ResponseFlow]] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def count_adapters(self) -> Counter[str]:
        """Return the number of running requests by `Request.adapter`."""
        flows = {id(flow): flow for flows in self._flows.values() for flow in flows}.values()
        return Counter(flow.reading.request.adapter for flow in flows if flow.reading is not None)

    def add(self, flow: ResponseFlow, client: bytes, ids: Collection[str]) -> None:
        """Add a flow until it is closed; a client may use an id for several."""
        for each in ids:
            self._flows.setdefault((client, each), []).append(flow)
        flow.on_close = lambda: self._remove(flow, client, ids)

    def find(self, client: bytes, name: str) -> list[ResponseFlow]:
        """Return the flows of a client with that id."""
        return list(self._flows.get((client, name), ()))

    def _remove(self, flow: ResponseFlow, client: bytes, ids: Collection[str]) -> None:
        for each in ids:
            flows = self._flows.get((client, each), [])
            if flow in flows:
                flows.remove(flow)
            if not flows:
                self._flows.pop((client, each), None)
