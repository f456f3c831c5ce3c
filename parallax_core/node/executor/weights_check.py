"""Whether all who serve a model hold the same weights of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint.weights_version import find_layer
from parallax_core.models.stage_tensors import format_layers

logger = logging.getLogger(__name__)

OWN = "this server's copy"
MOST_PARTS = 2**17
"""Parts that are remembered; no model has so many."""
MOST_NAMES = 3
"""Parts that are no layers, and are named in an error."""


class DifferentWeights(ParallaxError):
    """A stage holds other weights than those it would serve with."""


class WeightsCheck:
    """Compares what stages state of their weights, part by part, with each other and with the server's copy.

    One is shared by all replicas of a model. What was stated once holds for as long as the server runs: a stage that
    takes another's place is held against it.
    """

    def __init__(self, read_own: Callable[[], Mapping[str, str]] = dict) -> None:
        """Have ``read_own`` say what the server has of the model; it is called on a thread, once."""
        self._read_own = read_own
        self._reading: asyncio.Future[Mapping[str, str]] | None = None
        self._known: dict[str, tuple[str, str]] = {}
        """Of each part, the digest, and who stated it first."""

    def begin(self) -> None:
        """Read the server's copy in the meantime."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))

    async def check(self, who: str, parts: Mapping[str, str]) -> None:
        """Accept what the stage called ``who`` states of its weights: parts with their digests.

        Raises:
            DifferentWeights: naming what differs, and from whom; nothing is remembered then.
        """
        self.begin()
        assert self._reading is not None, "it has begun"
        for part, digest in (await asyncio.shield(self._reading)).items():
            self._known.setdefault(part, (digest, OWN))
        others = {part: self._known[part][1] for part, digest in parts.items() if self._differs(part, digest)}
        if others:
            other = next(iter(others.values()))
            what = describe_parts(part for part, stated in others.items() if stated == other)
            message = f"{who} has other weights than {other}: they differ in {what}"
            hint = "give all nodes the same model: `parallax models rm` it where it is old, and fetch it again there"
            raise DifferentWeights(message, f"{hint}; ORG/NAME@COMMIT names one revision of the hub for all")
        for part, digest in parts.items():
            if len(self._known) < MOST_PARTS:
                self._known.setdefault(part, (digest, who))

    def _differs(self, part: str, digest: str) -> bool:
        return self._known.get(part, (digest, ""))[0] != digest

    def _read(self) -> Mapping[str, str]:
        try:
            return self._read_own()
        except (OSError, ParallaxError) as error:
            logger.warning("the server's copy of the weights is not compared: %s", error)
            return {}


def describe_parts(parts: Iterable[str]) -> str:
    """Return parts of a model in words, layers as ``--layers`` takes them: ``layers 3-5,7-8 and lm_head.weight``."""
    numbers, names = set(), []
    for part in parts:
        number = find_layer(part)
        if number is None:
            names.append(part)
        else:
            numbers.add(number)
    rest = len(names) - MOST_NAMES
    words = [f"layers {format_layers(numbers)}"] if numbers else []
    words += [*sorted(names)[:MOST_NAMES], *([f"{rest} more"] if rest > 0 else [])]
    return " and ".join(words)
