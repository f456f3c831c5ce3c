"""OLMo 3: every fourth layer has full attention, and norms are of all queries together."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import list_periodic

ADAPTER = Family(Dense(head_norms="all", kinds=lambda settings: list_periodic(settings, 4)))
