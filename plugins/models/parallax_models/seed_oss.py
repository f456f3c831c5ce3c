"""Seed-OSS: biases of queries, keys and values."""

from __future__ import annotations

from parallax_models.dense import Dense
from parallax_models.family import Family

ADAPTER = Family(Dense(bias=True, output_bias="attention_out_bias"))
