"""A config.json that lies is refused, or read, at once: no other error, nothing negative, and little memory."""

from __future__ import annotations

import copy
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from parallax_backend_torch.api import Config
from parallax_core.api import ParallaxError, list_borders
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import SERVED, make_config

SPECS = {name: spec for spec in parallax_register_models() for name in spec.architectures}
NUMBERS: tuple[Any, ...] = (-1, 0, 1, 3, 10**9, 10**18, 10**400, -(10**9), 1.5, float("nan"), float("inf"))
OTHERS: tuple[Any, ...] = ("x", "", None, True, [], {}, [[]], [None], [10**9], ["full"] * 3, {"a": 1})
TIMES = 20
MOST_BYTES = 32 << 20


def list_places(table: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys of every setting."""
    for key, value in table.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from list_places(value, (*before, key))


def spoil(config: dict[str, Any], place: tuple[str, ...], source: random.Random) -> None:
    """Change a setting, or one entry of a list."""
    table: Any = config
    for key in place[:-1]:
        table = table[key]
    old, value = table[place[-1]], source.choice(NUMBERS + OTHERS)
    is_entry = isinstance(old, list) and old and source.random() < 0.5
    at = source.randrange(len(old)) if is_entry else 0
    table[place[-1]] = [*old[:at], value, *old[at + 1 :]] if is_entry else value


@pytest.mark.parametrize("kind", SERVED)
def test_config_that_lies_is_refused_or_read_in_little_memory(kind: str) -> None:
    config, source = make_config(kind), random.Random(kind)
    adapter = SPECS[config["architectures"][0]].adapter.load()
    places, num_read = [place for place in list_places(config) if place != ("architectures",)], 0
    assert adapter.read_shape(config).layers
    tracemalloc.start()
    try:
        for _ in range(TIMES):
            spoil(lying := copy.deepcopy(config), source.choice(places), source)
            try:
                shape = adapter.read_shape(lying)
            except ParallaxError:
                continue
            num_read += 1
            assert list_borders(shape)
            assert min(shape.before_weights, *(layer.weights for layer in shape.layers)) >= 0
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < MOST_BYTES
    assert num_read < TIMES


@pytest.mark.parametrize("kind", ["glm4", "llama", "qwen3_next"])
def test_heads_that_no_model_has_are_refused_before_memory_is_taken(kind: str) -> None:
    config = make_config(kind) | {"head_dim": 10**9}
    blocks = SPECS[config["architectures"][0]].blocks["torch"].load()
    with pytest.raises(ParallaxError, match="are not supported"):
        blocks(Config(config))
