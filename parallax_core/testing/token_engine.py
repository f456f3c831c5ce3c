"""What the tests of a backend's own engine need: the engine as core serves it, with text."""

from parallax_core.node.text_engine import TextEngine

__all__ = ["TextEngine"]
