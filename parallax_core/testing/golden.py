"""Golden vectors of the draw by an independent implementation; every sampler must match them.

A file of this package holds them as JSON: ``hashes`` (keys, bits and noise of some points), ``draws`` (the token drawn
from given logits, see `read_draft`), and ``scores`` (log-probabilities).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_core.api import Draft, Sampling


def read_golden() -> dict[str, list[dict[str, Any]]]:
    """Return all vectors."""
    golden: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("golden_draws.json").read_bytes())
    return golden


def read_logits(case: Mapping[str, Any]) -> list[float]:
    """Return the logits of a case, one for each token of its vocabulary; all are exact in float32."""
    a, b, m, d, c = case["logits"]
    return [((a * token + b) % m) / d - c for token in range(case["vocab"])]


def read_draft(case: Mapping[str, Any]) -> Draft:
    """Return the state at the draw of a case; tokens forbidden by a grammar are forbidden by bias here.

    Where a case does not say what the tokens before are, they do not matter, only how many there are.
    """
    fields = dict(case["sampling"])
    bias = [(token, float(value)) for token, value in fields.pop("logit_bias", ())]
    bias += [(token, -math.inf) for token in range(case["vocab"]) if token not in case.get("allowed", [token])]
    sampling = Sampling(**fields | {"logit_bias": tuple(bias), "stop_ids": tuple(fields.pop("stop_ids", ()))})
    return Draft(sampling, case.get("prompt", range(case["position"])), case.get("output", ()), case["choice"])
