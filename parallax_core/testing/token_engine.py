"""What the tests of a backend's own engine need: the engine as core serves it, with text."""

from parallax_core.node.whole_model.engine import TextEngine

__all__ = ["TextEngine"]
