"""Gemma 2: sliding and full in turn, and norms before and after each part."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import list_periodic

ADAPTER = Family(Dense(norms=4, kinds=lambda settings: list_periodic(settings, 2)), is_tied=True)
