"""What adapters of other families are made of.

Names in this module keep their meaning until the minor version of this distribution changes.
"""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, list_periodic, slide_layers
from parallax_models.weights import Experts, Heads, MambaWidths, add_weights, count_mlp, gated_mlp, share_experts

__all__ = [
    "FULL",
    "SLIDING",
    "Dense",
    "Experts",
    "Family",
    "Heads",
    "MambaWidths",
    "add_weights",
    "count_mlp",
    "gated_mlp",
    "list_periodic",
    "share_experts",
    "slide_layers",
]
