"""Parses answers of models that reason and do not call tools."""

from __future__ import annotations

from parallax_models.parsers.answer_parser import AnswerParser


class ThinkParser(AnswerParser):
    """Reasoning between ``<think>`` and ``</think>``; everything else is content."""
