"""GLM-4, dense: norms before and after each part."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family

ADAPTER = Family(Dense(bias=True, output_bias="", norms=4), turns_part=True)
