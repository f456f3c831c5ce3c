"""Finds out which nodes have become slow, and in which order pipelines get other layers."""
