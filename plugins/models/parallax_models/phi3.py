"""Phi-3 and Phi-4: all layers have a sliding window if the model has one."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family

ADAPTER = Family(Dense(bias=None, window=lambda settings: settings.size("sliding_window", 0)), turns_part=True)
