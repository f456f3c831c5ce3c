"""What adapters of other families are made of.

Names in this module keep their meaning until the minor version of this distribution changes.
"""

from __future__ import annotations

from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Experts, Heads, gated_mlp

__all__ = ["FULL", "SLIDING", "Experts", "Family", "Heads", "gated_mlp", "slide_layers"]
