"""Chooses the layers of each stage by cost, speed and memory. `node.executor` opens the stages."""
