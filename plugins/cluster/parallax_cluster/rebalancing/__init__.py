"""Detects nodes that have become slow, and orders the moves of layers between pipelines."""
