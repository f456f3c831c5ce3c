"""Distinct types for the things we count, so that they cannot be mixed up."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""One request of a client, unique within a server."""

SeqId = NewType("SeqId", int)
"""A handle for one sequence on the stages; never reused within the life of an engine."""
