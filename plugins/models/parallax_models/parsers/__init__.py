"""Parsers of model output, one module per format of tool calls."""
