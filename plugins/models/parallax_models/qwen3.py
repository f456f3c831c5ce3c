"""Qwen3, dense: norms of queries and keys."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.qwen2 import list_kinds

LAYERS = Dense(head_norms="each", kinds=list_kinds)
ADAPTER = Family(LAYERS)
