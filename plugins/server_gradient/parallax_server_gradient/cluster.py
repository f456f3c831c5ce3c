"""Writes the state of a cluster, as the server has it, in the form of GradientHQ's Parallax."""

from __future__ import annotations

import math
from typing import Any

import msgspec

Json = dict[str, Any]

GIB = 2**30
WEIGHT_SHARE = 0.65
"""The share of a machine's memory that GradientHQ's Parallax plans for weights."""
AVAILABLE, WAITING = "available", "waiting"


class Profile(msgspec.Struct):
    """What a node says of its device."""

    device: str
    memory: int
    total_memory: int | None = None

    @property
    def gigabytes(self) -> float:
        """All its memory, or what is free if that is not known."""
        return round((self.total_memory or self.memory) / GIB, 1)


class Node(msgspec.Struct):
    """A node that has joined."""

    node: str
    state: str
    profile: Profile | None = None

    def write(self) -> Json:
        """Return its entry in the list of nodes."""
        found = self.profile
        name, memory = (found.device, found.gigabytes) if found else ("", 0)
        return _write_node(self.node, name, memory, is_serving=self.state == "serving")


class Stage(msgspec.Struct):
    """A stage of a replica."""

    node: str
    weight_bytes: int
    device: str | None = None


class Limits(msgspec.Struct):
    """The limits of a replica."""

    max_running: int


class Replica(msgspec.Struct):
    """A replica of a model."""

    model: str
    status: str
    stages: list[Stage]
    limits: Limits | None = None


class Plan(msgspec.Struct):
    """What is planned."""

    waits_for: str | None = None
    join_command: str | None = None


class Known(msgspec.Struct):
    """A model that the server knows."""

    id: str


class Cluster(msgspec.Struct):
    """The server's answer to ``GET /v1/cluster``."""

    model: str
    status: str
    models: list[Known]
    replicas: list[Replica]
    nodes: list[Node]
    plan: Plan | None = None

    def write_status(self) -> Json:
        """Return the answer to ``GET /cluster/status_json``, which is each line of ``/cluster/status``, too."""
        nodes = self._list_nodes()
        running = (each.limits.max_running for each in self.replicas if each.model == self.model and each.limits)
        status = {
            "status": AVAILABLE if self.status == "ready" else WAITING,
            "model_name": self.model or None,
            "init_nodes_num": len(nodes),
            "node_join_command": self._find_join_command(),
            "node_list": nodes,
            "need_more_nodes": bool(self.plan and self.plan.waits_for),
            "max_running_request": sum(running),
        }
        return {"type": "cluster_status", "data": status}

    def write_line(self) -> bytes:
        """Return the status as a line of JSON."""
        return msgspec.json.encode(self.write_status()) + b"\n"

    def write_join_command(self) -> Json:
        """Return the answer to ``GET /node/join/command``."""
        return {"type": "node_join_command", "data": self._find_join_command()}

    def write_models(self) -> Json:
        """Return the answer to ``GET /model/list``."""
        data = [{"name": each.id, "vram_gb": self._measure(each.id)} for each in self.models]
        return {"type": "model_list", "data": data}

    def _list_nodes(self) -> list[Json]:
        """Return the nodes; where none has joined, they are this server's own, which have the stages."""
        if self.nodes:
            return [each.write() for each in self.nodes]
        return [
            _write_node(stage.node, stage.device or "", 0, is_serving=replica.status == "ready")
            for replica in self.replicas
            for stage in replica.stages
        ]

    def _find_join_command(self) -> Json | None:
        command = self.plan.join_command if self.plan else None
        return {"command": command} if command else None

    def _measure(self, model: str) -> int:
        """Return the GiB of memory in which the weights of a model leave room; 0: it is not loaded, so unknown."""
        sizes = (sum(stage.weight_bytes for stage in each.stages) for each in self.replicas if each.model == model)
        return math.ceil(max(sizes, default=0) / GIB / WEIGHT_SHARE)


def _write_node(name: str, device: str, memory: float, *, is_serving: bool) -> Json:
    return {
        "node_id": name,
        "status": AVAILABLE if is_serving else WAITING,
        "gpu_num": 1,
        "gpu_name": device,
        "gpu_memory": memory,
    }
