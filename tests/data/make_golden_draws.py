"""Write golden_draws.json: draws by an implementation in numpy that shares nothing with parallax_core.

Run it from the root of the repository: ``python tests/data/make_golden_draws.py``. The file it writes is committed and
changes only together with the definition of the draw, which `docs/explanation/design.md` gives.

Logits come from a formula, ``((a * token + b) % m) / d`` with ``d`` a power of two, so that they are exact in float32.
A case is kept only when its winner leads by more than `MARGIN` and moving top_p by `SLACK` changes nothing, so that
every implementation must agree, whatever its rounding.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Reals = NDArray[np.float32]

MARGIN = 1e-3
SLACK = 1e-5
LAWS = {
    "distinct": (40503, 7, 65536, 4096),
    "ties": (7919, 13, 101, 16),
    "steps": (5, 3, 16, 4),
    "flat": (1, 0, 1, 1),
    "peaked": (40503, 7, 65536, 1024),
}
LONELY = 2397904069835358208
"""A seed for which the best of 17 "distinct" tokens has minus infinity as its noise at position 11.

With top_k 1 it is drawn all the same, being the only one: a sampler must not fall back to a token it filtered out.
"""
SEEDS = (0, 1, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1)


def scramble(words: Words) -> Words:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        words = (words ^ (words >> np.uint32(shift))) * np.uint32(factor)
    return words


def noise_bits(seed: int, position: int, vocab: int) -> tuple[int, Words]:
    golden = np.array([0x9E3779B9], np.uint32)
    halves = np.array([seed], np.uint64).view("<u4").astype(np.uint32)
    key = scramble(halves[:1] ^ golden)
    key = scramble(key ^ halves[1:])
    key = scramble(key ^ np.array([position], np.uint32))
    return int(key[0]), scramble(key ^ scramble(np.arange(vocab, dtype=np.uint32) + golden))


def gumbel_noise(bits: Words) -> Reals:
    v = (bits.astype(np.float64) + 0.5).astype(np.float32) * np.float32(2.0**-32)
    with np.errstate(divide="ignore"):
        noise: Reals = -np.log(-np.log1p(-v))
    return noise


def kept_tokens(scaled: Reals, top_k: int, top_p: float) -> NDArray[np.bool_]:
    kept = np.ones(len(scaled), np.bool_)
    if top_k:
        kept &= scaled >= np.sort(scaled)[-min(top_k, len(scaled))]
    if top_p < 1:
        weights = np.where(kept, np.exp(scaled - scaled.max()), 0).astype(np.float64)
        levels, place = np.unique(weights, return_inverse=True)
        mass = np.bincount(place, weights)[::-1].cumsum()[::-1] / weights.sum()
        kept &= weights >= levels[mass >= top_p].max()
    return kept


def draw_case(
    law: str, vocab: int, seed: int, position: int, sampling: tuple[float, int, float]
) -> dict[str, Any] | None:
    """Return the case, or None if rounding could decide it. ``sampling``: temperature, top_k, top_p."""
    temperature, top_k, top_p = sampling
    a, b, m, d = LAWS[law]
    logits = ((np.arange(vocab, dtype=np.int64) * a + b) % m / d).astype(np.float32)
    case = {"logits": [a, b, m, d], "vocab": vocab, "seed": seed, "position": position}
    case |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if temperature == 0:
        return case | {"kept": vocab, "token": int(logits.argmax()), "margin": None}
    scaled = logits / np.float32(temperature)
    kept, *others = (kept_tokens(scaled, top_k, p) for p in (top_p, top_p - SLACK, min(top_p + SLACK, 1)))
    scores = np.where(kept, scaled + gumbel_noise(noise_bits(seed, position, vocab)[1]), -np.inf)
    best = np.sort(scores)[::-1]
    margin = float(best[0] - best[1]) if vocab > 1 and np.isfinite(best[1]) else None
    if (margin is not None and margin <= MARGIN) or (top_p < 1 and any((other != kept).any() for other in others)):
        return None
    token = int(np.flatnonzero(kept)[scores[kept].argmax()])
    return case | {"kept": int(kept.sum()), "token": token, "margin": margin}


def all_draws() -> list[dict[str, Any]]:
    samplings = [(1.0, 0, 1.0), (0.7, 0, 0.9), (1.5, 40, 1.0), (1.0, 7, 0.5), (0.25, 3, 1.0), (2.0, 0, 0.35)]
    small = itertools.product(("distinct", "ties", "steps", "flat"), (2, 17, 1000), SEEDS[::5], (4095,), samplings)
    single = itertools.product(("distinct",), (1,), SEEDS[:1], (0,), samplings)
    large = itertools.product(("distinct", "ties", "peaked"), (49152,), SEEDS[-1:], (2**31,), samplings[:4])
    greedy = itertools.product(LAWS, (1, 17, 1000), (0,), (5,), [(0.0, 0, 1.0), (0.0, 3, 0.5)])
    seeds = itertools.product(("flat",), (50,), SEEDS, (0, 1, 2, 3, 2**32 - 1), [(1.0, 0, 1.0)])
    lonely = [("distinct", 17, LONELY, 11, (1.0, 1, 1.0))]
    cases = (draw_case(*given) for given in itertools.chain(single, small, large, greedy, seeds, lonely))
    return [case for case in cases if case is not None]


def all_hashes() -> list[dict[str, Any]]:
    hashes = []
    for seed, position in itertools.product(SEEDS, (0, 1, 4095, 2**32 - 1)):
        key, bits = noise_bits(seed, position, 128256)
        tokens = [0, 1, 2, 49151, 128255]
        hashes.append(
            {
                "seed": seed,
                "position": position,
                "key": key,
                "tokens": tokens,
                "bits": [int(bits[token]) for token in tokens],
                "gumbel": [round(float(gumbel_noise(bits[token : token + 1])[0]), 5) for token in tokens],
            }
        )
    return hashes


def write_golden(path: Path) -> None:
    rows = {"hashes": all_hashes(), "draws": all_draws()}
    lines = [f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows[name]) + "\n ]" for name in rows]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden(Path(__file__).with_name("golden_draws.json"))
