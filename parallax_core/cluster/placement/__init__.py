"""Chooses the layers of each stage by cost, speed and memory. Opening the stages is in `node.executor`."""
