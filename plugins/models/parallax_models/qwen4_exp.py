"""Qwen4-Exp: residual streams with gates, rows of hashed n-grams, and an index of blocks of tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, ModelShape, Part, Plane, TokenUse, Unsupported
from parallax_models.family import PREFIX, Family
from parallax_models.qwen3_next import read_attention, read_delta_net, read_kinds
from parallax_models.sliding import FULL
from parallax_models.weights import Heads, add_weights, share_experts

INDEXED = "indexed_attention"
"""The name that transformers writes for layers of attention, which all have an index."""
MIXER = re.compile(rf"{PREFIX}(?:model\.)?hyper_connection_mixer\.")
MOST_HEADS, MOST_ROWS = 1024, 2**30
"""The most heads of n-grams in a model, and the most rows of a head: each number of rows is a prime to search."""
WORD, GAMMA, MIXES, STRIDE = 2**64 - 1, 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB), 10_007
"""Constants of SplitMix64, and the distance of the seeds of two layers."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names of published files for the kinds of layers."""
    kinds = settings.get("layer_types")
    if not isinstance(kinds, list):
        return settings
    return {**settings, "layer_types": [FULL if each == INDEXED else each for each in kinds]}


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    hidden, streams, rank = read_streams(settings)
    tables, kinds = list_tables(settings), read_kinds(settings)
    for index, kind in enumerate(kinds):
        layer = add_index(settings, read_attention(settings)) if kind == FULL else read_delta_net(settings)
        layer = share_experts(settings, layer)
        if index in tables:
            layer = add_ngrams(settings, layer, tables[index])
        extra = 2 * streams * hidden * (1 + 2 * rank + streams) - 2 * hidden  # in place of two norms
        yield add_weights(layer, extra, gives=(Plane("hidden", (streams, hidden)),) if index + 1 < len(kinds) else ())


def read_streams(settings: ConfigReader) -> tuple[int, int, int]:
    """Return the width of a stream, their number, and the rank of the gates that mix them."""
    return (
        settings.count("hidden_size"),
        settings.count("hc_count", default=4),
        settings.count("hc_lowrank", default=320),
    )


def add_index(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with an index added, which has one head of keys.

    Raises:
        Unsupported: if it would have several, or choose a part of a block.
    """
    num, width, block = (settings.count(f"indexer_{name}") for name in ("n_heads", "head_dim", "compress_ratio"))
    if settings.count("indexer_kv_heads") != 1:
        raise refuse(settings, "indexer_kv_heads", "an index has one head of keys")
    if settings.count("indexer_budget") % block:
        raise refuse(settings, "indexer_budget", f"an index chooses whole blocks of {block} tokens")
    extra = settings.count("hidden_size") * (num + 1) * width + 2 * width
    flops = 4 * Heads.read(settings).queries + 2 * num * width // block
    return add_weights(layer, extra, kv_width=layer.kv_width + width, context_flops=flops)


def list_tables(settings: ConfigReader) -> dict[int, tuple[int, ...]]:
    """Return the layers that look up rows of n-grams, and the number of rows of each head: distinct primes.

    Raises:
        Unsupported: if one of them is not a layer with a state, or there are too many heads or rows.
    """
    kinds, numbers = read_kinds(settings), sorted(set(settings.list_numbers("ple_layer_ids")))
    if any(not 1 <= number <= len(kinds) or kinds[number - 1] == FULL for number in numbers):
        reason = "these are to be layers with a state by 'layer_types', numbered from 1"
        raise refuse(settings, "ple_layer_ids", reason)
    if not numbers:
        return {}
    heads, base = count_heads(settings), settings.count("ngram_vocab_size_base", default=20_000_000)
    if heads * len(numbers) > MOST_HEADS:
        raise refuse(settings, "heads_per_ngram", f"there are at most {MOST_HEADS} heads")
    if base > MOST_ROWS:
        raise refuse(settings, "ngram_vocab_size_base", f"a head has at most {MOST_ROWS} rows")
    primes = find_primes(base)
    return {number - 1: tuple(islice(primes, heads)) for number in numbers}


def count_heads(settings: ConfigReader) -> int:
    """Return the number of heads of a table, as many for each length of n-grams."""
    heads = (settings.count("ngram_size", default=3) - 1) * settings.count("heads_per_ngram", default=8)
    if not heads or read_width(settings) % heads:
        reason = "it is to be a multiple of the number of heads by 'ngram_size' and 'heads_per_ngram'"
        raise refuse(settings, "ple_embed_dim", reason)
    return heads


def read_width(settings: ConfigReader) -> int:
    """Return the width of the rows of all heads."""
    return settings.count("ple_embed_dim", default=settings.count("hidden_size"))


def add_ngrams(settings: ConfigReader, layer: LayerShape, sizes: Sequence[int]) -> LayerShape:
    """Return a layer with a table of ``sizes`` rows for each head, and with what its rows are mixed by."""
    hidden, streams, _ = read_streams(settings)
    width, length = read_width(settings), settings.count("ngram_size", default=3)
    kernel, unit = (
        settings.count("ple_conv_kernel_size", default=4),
        settings.count("make_ngram_vocab_size_divisible_by", default=128),
    )
    table = math.ceil(sum(sizes) / unit) * unit * (width // len(sizes))
    others = width * hidden * (streams + 1) + streams * hidden * (3 + kernel) + length + 2 * len(sizes)
    return replace(
        layer,
        weights=layer.weights + others + table,
        active_weights=layer.active_weights + others,
        table_weights=table,
        state_width=layer.state_width + (kernel - 1) * length * streams * hidden + length - 1,
        tokens=TokenUse(num_before=length - 1),
    )


def find_primes(least: int) -> Iterator[int]:
    """Yield the primes from ``least`` on."""
    number = max(least, 2)
    while True:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            yield number
        number += 1


def find_multipliers(settings: ConfigReader, place: int) -> list[int]:
    """Return the odd factors of the ids of a token and of those before it, at the ``place``-th table of the model."""
    half = max(1, (2**63 - 1) // settings.count("vocab_size") // 2)
    seed, found = settings.size("seed", 1234) + STRIDE * place, []
    for index in range(1, settings.count("ngram_size", default=3) + 1):
        value = seed + GAMMA * (index + 1) & WORD
        for shift, factor in zip((30, 27), MIXES, strict=True):
            value = (value ^ value >> shift) * factor & WORD
        found.append(2 * ((value ^ value >> 31) % half) + 1)
    return found


def refuse(settings: ConfigReader, name: str, reason: str) -> Unsupported:
    """Return the error for a setting."""
    return Unsupported(f"{name!r} in config.json is {settings.raw.get(name)!r}: {reason}", "fetch the model again")


class Qwen4Exp(Family):
    """The adapter: gates that mix the streams are in place of the final norm."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape of a model; see `parallax_core.api.ModelAdapter`."""
        shape = Family.read_shape(self, config)
        hidden, streams, rank = read_streams(self.read_settings(config))
        return replace(shape, after_weights=shape.after_weights + streams * hidden * (1 + 2 * rank) - hidden)

    @staticmethod
    def find_part(tensor: str) -> Part:
        """Return where a tensor belongs; see `parallax_core.api.ModelAdapter`."""
        return "after" if MIXER.match(tensor) else Family.find_part(tensor)


ADAPTER = Qwen4Exp(read_layers, unify=unify, turns_part=True)
