"""Llama, and models of the same structure."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family

ADAPTER = Family(Dense())
