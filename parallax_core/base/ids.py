"""Distinct types for the things we count, so that they cannot be mixed up."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""One request of a client, unique within a server."""

SeqId = NewType("SeqId", int)
"""A handle for one sequence on the stages; never reused within the life of an engine."""

LeaseId = NewType("LeaseId", int)
"""A head's claim on a stage: its own pages, handles and epoch."""

Epoch = NewType("Epoch", int)
"""Raised by a head when it builds, repairs or reloads a pipeline; what is older is discarded."""
