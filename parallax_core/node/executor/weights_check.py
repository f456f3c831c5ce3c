"""Checks that all stages of a model hold the same weights."""

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
"""The largest number of parts that are remembered; more than any model has."""
MOST_NAMES = 3
"""The largest number of parts, other than layers, that an error names."""


class DifferentWeights(ParallaxError):
    """A stage's weights differ from those of the other stages or of the server."""

    node = ""
    """The node of the stage; empty: unknown."""


class WeightsCheck:
    """Compares the digests of stages' weights, part by part, with each other and with the server's copy.

    All replicas of a model share one check. A digest stays known for as long as the server runs, so that a stage that
    replaces a lost one is compared with it.
    """

    def __init__(self, read_own: Callable[[], Mapping[str, str]] = dict) -> None:
        """Compare with ``read_own``, which returns the digests of the server's copy; it is called once, on a thread."""
        self._read_own = read_own
        self._reading: asyncio.Future[Mapping[str, str]] | None = None
        self._known: dict[str, tuple[str, str]] = {}
        """By part: its digest, and the name of the first stage that stated it."""

    def begin(self) -> None:
        """Start to read the server's copy in the background."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))

    async def check(self, name: str, parts: Mapping[str, str], model: str = "") -> None:
        """Check the weights of the stage called ``name``: the digests by part, of the files of ``model``.

        Raises:
            DifferentWeights: if some differ; it names the parts and the other stage. Nothing is remembered then.
        """
        del model  # all files are of one model; a class that knows of others compares those apart
        self.begin()
        assert self._reading is not None, "it has begun"
        for part, digest in (await asyncio.shield(self._reading)).items():
            self._known.setdefault(part, (digest, OWN))
        others = {part: self._known[part][1] for part, digest in parts.items() if self._differs(part, digest)}
        if others:
            other = next(iter(others.values()))
            differing = describe_parts(part for part, stated in others.items() if stated == other)
            message = f"{name} has other weights than {other}: they differ in {differing}"
            hint = "give all nodes the same model: `parallax models rm` it where it is old, and fetch it again there"
            raise DifferentWeights(message, f"{hint}; ORG/NAME@COMMIT names one revision of the hub for all")
        for part, digest in parts.items():
            if len(self._known) < MOST_PARTS:
                self._known.setdefault(part, (digest, name))

    def _differs(self, part: str, digest: str) -> bool:
        return self._known.get(part, (digest, ""))[0] != digest

    def _read(self) -> Mapping[str, str]:
        try:
            return self._read_own()
        except (OSError, ParallaxError) as error:
            logger.warning("the server's copy of the weights is not compared: %s", error)
            return {}


def describe_parts(parts: Iterable[str]) -> str:
    """Return a text that lists parts, layers as ``--layers`` takes them: ``layers 3-5,7-8 and lm_head.weight``."""
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
