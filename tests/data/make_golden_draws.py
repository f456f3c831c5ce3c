"""Writes the golden draws of parallax_core.testing, with a numpy implementation that shares no code with core.

Run it from the root of the repository: ``python tests/data/make_golden_draws.py``. The file it writes is committed and
changes only together with the definition of the draw, which `parallax_core/sampling/reference.py` states.

Logits come from a formula, ``((a * token + b) % m) / d - c`` with ``d`` a power of two, so that they are exact in
float32. A case without a prompt stands for any history of ``position`` tokens. A case is kept only when its winner
leads by more than `MARGIN` and moving top_p and min_p by `SLACK` changes nothing, so that every implementation must
agree, whatever its rounding.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Reals = NDArray[np.float32]
Point = tuple[int, int, int]
"""Seed, choice and position."""
Sampling = dict[str, Any]
History = dict[str, Any]
"""Prompt and output tokens, or the tokens a grammar allows, or nothing."""
Cases = Iterable[tuple[str, int, Point, Sampling]]

MARGIN = 1e-3
SLACK = 1e-5
LAWS = {
    "distinct": (40503, 7, 65536, 4096, 0),
    "ties": (7919, 13, 101, 16, 0),
    "steps": (5, 3, 16, 4, 0),
    "flat": (1, 0, 1, 1, 0),
    "peaked": (40503, 7, 65536, 1024, 0),
    "signed": (40503, 7, 65536, 16384, 2),
}
LONELY = 299266719820546048
"""A seed for which the best of 17 "distinct" tokens has minus infinity as its noise at position 11.

With top_k 1 it is drawn anyway, as the only candidate: a sampler must not fall back to a token it filtered out.
"""
SEEDS = (0, 1, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1)


def scramble(words: Words) -> Words:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        words = (words ^ (words >> np.uint32(shift))) * np.uint32(factor)
    return words


def noise_bits(point: Point, vocab: int) -> tuple[int, Words]:
    seed, choice, position = point
    golden = np.array([0x9E3779B9], np.uint32)
    halves = np.array([seed], np.uint64).view("<u4").astype(np.uint32)
    key = scramble(halves[:1] ^ golden)
    for word in (halves[1:], np.array([choice], np.uint32), np.array([position], np.uint32)):
        key = scramble(key ^ word)
    return int(key[0]), scramble(key ^ scramble(np.arange(vocab, dtype=np.uint32) + golden))


def gumbel_noise(bits: Words) -> Reals:
    v = (bits.astype(np.float64) + 0.5).astype(np.float32) * np.float32(2.0**-32)
    with np.errstate(divide="ignore"):
        noise: Reals = -np.log(-np.log1p(-v))
    return noise


def make_logits(law: str, vocab: int) -> Reals:
    a, b, m, d, c = LAWS[law]
    exact: NDArray[np.float64] = (np.arange(vocab, dtype=np.int64) * a + b) % m / d - c
    return exact.astype(np.float32)


def adjusted_logits(logits: Reals, case: Mapping[str, Any]) -> Reals:
    given, vocab = case["sampling"], len(logits)
    past = np.array(case.get("output", []), np.int64)
    prompt = np.array(case.get("prompt", []), np.int64)
    counts = np.bincount(past, minlength=vocab)
    seen = (counts + np.bincount(prompt, minlength=vocab)) > 0
    factor = np.float32(given.get("repetition_penalty", 1))
    out: NDArray[np.float64] = np.where(seen, np.where(logits > 0, logits / factor, logits * factor), logits)
    out = out - counts * np.float32(given.get("frequency_penalty", 0))
    out = out - (counts > 0) * np.float32(given.get("presence_penalty", 0))
    for token, bias in given.get("logit_bias", []):
        out[token] += float(bias)
    if len(past) < given.get("min_tokens", 0):
        out[given["stop_ids"]] = -np.inf
    if "allowed" in case:
        out[~np.isin(np.arange(vocab), case["allowed"])] = -np.inf
    return out.astype(np.float32)


def kept_tokens(scaled: Reals, top_k: int, top_p: float, min_p: float) -> NDArray[np.bool_]:
    kept = np.isfinite(scaled)
    if top_k:
        kept &= scaled >= np.sort(scaled)[-min(top_k, len(scaled))]
    weights = np.where(kept, np.exp(scaled - scaled.max()), 0).astype(np.float64)
    if top_p < 1:
        levels, place = np.unique(weights, return_inverse=True)
        mass = np.bincount(place, weights)[::-1].cumsum()[::-1] / weights.sum()
        kept &= weights >= levels[mass >= top_p].max()
    return kept & (weights >= min_p)


def filtered_tokens(scaled: Reals, given: Mapping[str, Any]) -> NDArray[np.bool_] | None:
    """Return the tokens that the filters keep, or None if rounding could decide it."""
    top_k, top_p, min_p = given.get("top_k", 0), given.get("top_p", 1), given.get("min_p", 0)
    kept = kept_tokens(scaled, top_k, top_p, min_p)
    for slack in (-SLACK, SLACK):
        moved = min(top_p + slack, 1) if top_p < 1 else 1, min_p * (1 + slack)
        if (kept_tokens(scaled, top_k, *moved) != kept).any():
            return None
    return kept


def draw_case(law: str, vocab: int, point: Point, sampling: Sampling, history: History) -> dict[str, Any] | None:
    """Return the case, or None if rounding could decide it."""
    seed, choice, position = point
    case = {"logits": LAWS[law], "vocab": vocab, "position": position, "choice": choice}
    case |= {"sampling": {"seed": seed, **sampling}, **history}
    logits = adjusted_logits(make_logits(law, vocab), case)
    temperature = sampling.get("temperature", 1)
    if temperature == 0:
        first, second = np.sort(logits)[::-1][:2] if vocab > 1 else (logits[0], -np.inf)
        exact = math.log2(sampling.get("repetition_penalty", 1)).is_integer()
        certain = first - second > MARGIN or (first == second and exact)
        return case | {"kept": None, "token": int(logits.argmax()), "margin": None} if certain else None
    scaled = logits / np.float32(temperature)
    kept = filtered_tokens(scaled, sampling)
    if kept is None:
        return None
    scores = np.where(kept, scaled + gumbel_noise(noise_bits(point, vocab)[1]), -np.inf)
    best = np.sort(scores)[::-1]
    margin = float(best[0] - best[1]) if vocab > 1 and np.isfinite(best[1]) else None
    if margin is not None and margin <= MARGIN:
        return None
    token = int(np.flatnonzero(kept)[scores[kept].argmax()])
    return case | {"kept": int(kept.sum()), "token": token, "margin": margin}


def make_history(prompt: int, output: int, vocab: int) -> History:
    """Return tokens that repeat often, as in texts."""
    return {
        "prompt": [(7 * n * n + 1) % vocab % 29 for n in range(prompt)],
        "output": [(5 * n * n + 3) % vocab % 11 for n in range(output)],
    }


def filter_cases() -> Cases:
    """Yield cases of seeds, positions, choices and filters, whatever the history."""
    samplings: list[Sampling] = [
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 40},
        {"top_k": 7, "top_p": 0.5},
        {"temperature": 0.25, "top_k": 3},
        {"temperature": 2.0, "top_p": 0.35},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.05},
    ]
    greedy: list[Sampling] = [{"temperature": 0}, {"temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1}]
    points = [(seed, 0, 4095) for seed in SEEDS[::5]]
    lonely = ("distinct", 17, (LONELY, 0, 11), {"top_k": 1})
    return itertools.chain(
        itertools.product(("distinct",), (1,), [(0, 0, 0)], samplings),
        itertools.product(("distinct", "ties", "steps", "flat"), (2, 17, 1000), points, samplings),
        itertools.product(("distinct", "ties", "peaked"), (49152,), [(SEEDS[-1], 1, 2**31)], samplings[:4]),
        itertools.product(LAWS, (1, 17, 1000), [(0, 0, 5)], greedy),
        itertools.product(("flat",), (50,), itertools.product(SEEDS, (0, 1, 5), (0, 1, 2, 2**32 - 1)), [{}]),
        [lonely],
    )


def penalty_cases() -> Cases:
    """Yield cases that depend on the history."""
    samplings: list[Sampling] = [
        {"frequency_penalty": 0.75},
        {"presence_penalty": 1.5},
        {"presence_penalty": -2.0, "frequency_penalty": 0.25, "top_p": 0.8},
        {"repetition_penalty": 2.0},
        {"repetition_penalty": 0.5, "top_k": 9},
        {"repetition_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": 0.5, "min_p": 0.1},
        {"logit_bias": [[2, 4.0], [3, 3.5], [5, -2.0]]},
        {"logit_bias": [[0, "-inf"], [1, "-inf"], [4, 2.5]], "top_k": 6},
        {"min_tokens": 24, "stop_ids": [1, 2, 3, 4, 6, 9]},
        {"min_tokens": 25, "stop_ids": [1, 2, 3, 4, 6, 9], "logit_bias": [[2, 9.0], [7, 1.0]]},
    ]
    samplings += [{**sampling, "temperature": 0} for sampling in samplings]
    points = [(SEEDS[4], 0, 37), (SEEDS[3], 2, 37), (1, 0, 37)]
    return itertools.product(("signed", "steps", "flat"), (17, 200), points, samplings)


def all_draws() -> list[dict[str, Any]]:
    cases = [draw_case(*given, {}) for given in filter_cases()]
    for given in penalty_cases():
        vocab = given[1]
        cases += [draw_case(*given, make_history(*lengths, vocab)) for lengths in ((13, 24), (37, 0))]
    for given in itertools.product(("signed", "flat"), (17, 200), [(5, 0, 37), (6, 1, 37)], [{}, {"top_p": 0.6}]):
        cases.append(draw_case(*given, {"allowed": [0, 3, 4, 11, 16]}))
    return [case for case in cases if case is not None]


def all_hashes() -> list[dict[str, Any]]:
    hashes = []
    points = itertools.product(SEEDS, (0, 1, 2**32 - 1), (0, 1, 4095, 2**32 - 1))
    for point in points:
        key, bits = noise_bits(point, 128256)
        tokens = [0, 1, 2, 49151, 128255]
        hashes.append(
            {
                **dict(zip(("seed", "choice", "position"), point, strict=True)),
                "key": key,
                "tokens": tokens,
                "bits": [int(bits[token]) for token in tokens],
                "gumbel": [round(float(gumbel_noise(bits[token : token + 1])[0]), 5) for token in tokens],
            }
        )
    return hashes


def all_scores() -> list[dict[str, Any]]:
    """Return log-probabilities of the raw logits; among equally probable tokens the lowest id comes first."""
    scores = []
    for law, vocab in itertools.product(LAWS, (1, 17, 1000)):
        logits = make_logits(law, vocab).astype(np.float64)
        found = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        order = np.argsort(-found, kind="stable")[:5].tolist()
        top = [[token, round(float(found[token]), 6)] for token in order]
        scores.append({"logits": LAWS[law], "vocab": vocab, "last": round(float(found[-1]), 6), "top": top})
    return scores


def write_golden(path: Path) -> None:
    rows = {"hashes": all_hashes(), "draws": all_draws(), "scores": all_scores()}
    lines = [f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows[name]) + "\n ]" for name in rows]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden(Path(__file__).parents[2] / "parallax_core/testing/golden_draws.json")
