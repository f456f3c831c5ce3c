"""Writes golden_frames.json: messages that use every field, as frames of this version of the format.

Run it from the root of the repository: ``python tests/unit/wire/make_golden_frames.py``. It refuses to change existing
frames of a version, so that a change of the format comes with a higher `WIRE_VERSION`.
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from parallax_cluster.wire.further import EndNode, OpenLease, StartNode
from parallax_cluster.wire.profile import (
    DeviceReport,
    LinkReport,
    LinkTried,
    NodeReport,
    Peer,
    Peers,
    Probe,
    ProbeAnswer,
    StoredLayers,
    TryLink,
)
from parallax_cluster.wire.relay import (
    NotReached,
    OfferRelay,
    PickUp,
    Reach,
    Reached,
    RelayPlace,
    Relays,
    RelayUser,
    RelayUsers,
    Relinked,
    Ring,
)
from parallax_cluster.wire.rendezvous import Announced, Follow
from parallax_cluster.wire.succession import ClusterState, Succession
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts import stage
from parallax_core.contracts.engine import EngineStats, PoolUse
from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.tensor import Tensor, TensorSpec
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.contracts.transport import Frame
from parallax_core.wire.api_data import ApiData
from parallax_core.wire.codec import WIRE_VERSION, encode
from parallax_core.wire.membership import Assign, HandOver, Hop, Join, Leave, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import (
    Failure,
    Heartbeat,
    Hello,
    Mask,
    Message,
    Result,
    Step,
    UnsupportedMessage,
    Welcome,
)
from parallax_engines.messages import (
    Abort,
    AssignEngine,
    Deltas,
    EngineLoading,
    EngineOpened,
    EngineRefused,
    EngineStatus,
    StopEngine,
    Submit,
    TokenDelta,
    TokenFinish,
)

GOLDEN = Path(__file__).with_name("golden_frames.json")
EPOCH = Epoch(3)

SAMPLING = Sampling(
    temperature=0.75,
    top_k=40,
    top_p=0.9375,
    min_p=0.0625,
    seed=2**64 - 1,
    presence_penalty=-1.5,
    frequency_penalty=0.5,
    repetition_penalty=1.25,
    logit_bias=((5, 2.0), (70000, -inf)),
    min_tokens=2,
    stop_ids=(1, 128001),
)
SPEC = stage.SequenceSpec(prompt_length=300, sampling=SAMPLING, adapter="poetry", priority=-2, salt="tenant")
EDITS = (
    stage.Open(SeqId(2**32), SPEC),
    stage.Fork(SeqId(1), SeqId(2), 256, 1, SPEC),
    stage.Fork(SeqId(1), SeqId(3), 256),
    stage.Truncate(SeqId(4), 100),
    stage.Drop(SeqId(5)),
)
PREFILL = stage.Row(
    SeqId(2),
    256,
    (15, 300, 70000, 0),
    outputs=(stage.Hidden(0, summed=1), stage.Score(1, 70000, top=5), stage.Draw(3, count=2, top=1, masked=True)),
    positions=(256, 257, 300, 2**53 - 1),
    spans=(stage.Span(0, 2, tensor=0, start=1),),
)
GRAMMAR = Grammar(kind="json_schema", source='{"type": "null"}', after=("</think>",), must_begin=True, whitespace=" ?")
DECODE = stage.Row(SeqId(2**32), 10**6, (128255,), (stage.Draw(0),))

INFO = stage.StageInfo(
    layers=stage.LayerRange(10, 20),
    num_layers=30,
    vocab_size=49152,
    context_length=8192,
    max_batch_tokens=128,
    pools=(
        stage.PoolInfo(kind="full", page_size=16, num_pages=1000),
        stage.PoolInfo(kind="window", page_size=16, num_pages=100, window=512, rewind=32),
        stage.PoolInfo(kind="state", page_size=16, num_pages=9, shares=False, checkpoint_every=256),
    ),
    device="cpu",
    dtype="float32",
    weight_bytes=2**33,
    weights_version="a1b2",
    capabilities=frozenset({"logprobs"}),
    takes=(TensorSpec(576, "float32"),),
    gives=(TensorSpec(576, "bfloat16", "hidden", (4,)), TensorSpec(8, "float32", "mix", is_exact=True)),
    saturation_rows=64,
    weights_parts={"model.layers.10": "00ff", "model.norm.weight": "a1b2"},
    steps_ahead=1,
)

ENGINE = EngineInfo(
    num_layers=30,
    vocab_size=49152,
    context_length=8192,
    max_running=256,
    max_batch_tokens=2048,
    seed="engine",
    honours=frozenset({"logit_bias"}),
    max_answers=8,
    max_logprobs=20,
    device="cuda",
    dtype="bfloat16",
    weight_bytes=2**33,
)

SAMPLES: dict[str, Message] = {
    "step": Step(
        EPOCH,
        12,
        edits=EDITS,
        rows=(PREFILL, DECODE),
        hidden=(Tensor("bfloat16", (5, 2), bytes(range(20))),),
        embeddings=(Tensor("float32", (3, 1), bytes(range(100, 112))),),
    ),
    "step that only edits": Step(EPOCH, 13, edits=(stage.Drop(SeqId(1)),)),
    "step that only decodes": Step(
        EPOCH, 14, rows=tuple(stage.Row(SeqId(i), 9, (i,), (stage.Draw(0),)) for i in range(3))
    ),
    "result": Result(
        EPOCH,
        12,
        stage=1,
        answers=(
            stage.State(0),
            stage.Scored(-0.5, ((3, -0.25),)),
            stage.Drawn((9, 128255), (-1.0, -inf), ((4, -0.125),)),
            stage.Drawn((2,)),
        ),
        free=(100, 2**40),
        seconds=0.015625,
        tensors=(Tensor("float16", (3,), b"abcdef"),),
        sampling_s=0.00390625,
    ),
    "result without answers": Result(EPOCH, 12, stage=0, free=(100,), seconds=0.5),
    "failure": Failure(EPOCH, 15, stage=2, message="out of memory: größer als 8 GB", lost=True),
    "failure of a sequence": Failure(EPOCH, 15, stage=2, message="NaN", sequences=(SeqId(2**32), SeqId(2))),
    "failure of a link": Failure(EPOCH, 15, stage=2, message="gone", lost=True, at_fault=False, cause="link"),
    "failure of a peer": Failure(
        EPOCH, 15, stage=2, message="?", lost=True, at_fault=False, cause="invalid_frame", peer="attic"
    ),
    "mask": Mask(EPOCH, 16, row=1, bits=Tensor("uint8", (3,), b"\x01\x80\x03"), output=2),
    "heartbeat": Heartbeat(EPOCH, -1, stage=1, steps=1000, tokens=2**33, queued=2, sequences=17),
    "heartbeat within a step": Heartbeat(EPOCH, 11, stage=1, running=12, running_s=2.5),
    "hello": Hello(WIRE_VERSION, "kitchen", "0.1.0", 1),
    "hello of a probe": Hello(WIRE_VERSION, "kitchen", "0.1.0", 1, "probe"),
    "welcome": Welcome(WIRE_VERSION, "attic", "0.1.0", 1),
    "join": Join("tcp://10.0.0.7:9001", ("mlx", "torch"), "attic", 4711, "org/model", 10, 20, 16 * 2**30),
    "node report": NodeReport(
        backend="torch",
        device=DeviceReport(
            memory=2**33,
            flops=5e12,
            bandwidth=2.5e10,
            flops_efficiency=0.5,
            bandwidth_efficiency=0.75,
            step_s=0.00390625,
            layer_s=0.0009765625,
            name="NVIDIA GeForce RTX 4090",
            total_memory=2**34,
            is_measured=True,
            expert_layer_s=0.001953125,
            forms=((0.625, 2e12, 2e10), (2.0, 5e12, 2.5e10)),
        ),
        dtype="bfloat16",
        disk_bandwidth=5e8,
        disk_free=2**40,
        stored=(StoredLayers("hf:org/model", 10, 20),),
        links=(LinkReport("head", 0.015625, 1e8), LinkReport("desk", 0.03125, 1e7, "head")),
        leases=True,
        unreached=("cellar",),
        labels=(("room", "attic"),),
        versions=(("parallax-core", "0.1.0"),),
        max_context=4096,
    ),
    "peers": Peers(
        (Peer("kitchen", "tcp://10.0.0.8:9001", b"key", is_measured=False), Peer("desk", "ipc:///run/desk"))
    ),
    "try a link": TryLink(Peer("kitchen", "tcp://10.0.0.8:9001", b"key")),
    "link tried": LinkTried("kitchen", is_reached=False, reason="no node answers there"),
    "unsupported": UnsupportedMessage(300),
    "too many": UnsupportedMessage(23, "too many"),
    "probe": Probe(bytes(range(8))),
    "answer to a probe": ProbeAnswer(),
    "succession": Succession(b"proof", (Peer("head", "tcp://10.0.0.9:9000", b"key"),)),
    "state of a cluster": ClusterState(b"state"),
    "hello of a client": Hello(WIRE_VERSION, "kitchen", "0.1.0", 1, "api"),
    "data of a client": ApiData(b"GET /v1/models HTTP/1.1\r\n"),
    "assign": Assign(EPOCH, 1, "mlx", "org/model", 10, 20, "float32", "gpu:1", 0.5, 1.0, 4096, 512),
    "assign a lease": Assign(EPOCH, 1, "mlx", "org/model", 10, 20, "float32", "", 0.5, 1.0, 0, 0, 5, 25, 0.25),
    "loading": Loading(EPOCH, 1, "loading weights", 2**30, 2**33),
    "ready": Ready(EPOCH, 1, INFO),
    "refusal": Refusal(EPOCH, 1, "there is too little memory", "close other programs"),
    "refusal of a lease": Refusal(EPOCH, 1, "the backend has no leases", lacks_leases=True),
    "refusal of a hop": Refusal(EPOCH, 1, "no node answers there", unreached="stage-2"),
    "hop": Hop(EPOCH, 1, "stage-0", "stage-2", "ipc:///run/stage-2.sock"),
    "linked": Linked(EPOCH, 1),
    "linked over a relay": Linked(EPOCH, 1, "head"),
    "hello of a user of relays": Hello(WIRE_VERSION, "kitchen", "0.1.0", 1, "relay"),
    "relays": Relays((RelayPlace("head", ""), RelayPlace("desk/1", "tcp://10.0.0.7:9001", b"key"))),
    "users of a relay": RelayUsers((RelayUser("kitchen/7", b"key"), RelayUser("attic/8"))),
    "offer of a relay": OfferRelay("tcp://10.0.0.7:9001"),
    "reach": Reach("kitchen/7"),
    "ring": Ring("attic/8", bytes(range(16))),
    "answer to a ring": PickUp(bytes(range(16))),
    "reached": Reached(),
    "not reached": NotReached("it carries too many streams"),
    "hand over": HandOver(),
    "relinked": Relinked("desk/1"),
    "release": Release(EPOCH),
    "release a lease": Release(EPOCH, keeps_layers=True),
    "leave": Leave(EPOCH),
    "start a node": StartNode(1),
    "end a node": EndNode(300),
    "open a lease": OpenLease(2),
    "join with fixed layers": Join("tcp://10.0.0.7:9001", ("mlx",), "attic", 4711, "hf:org/model", 10, 20, 0, True),
    "join from a place": Join("tcp://10.0.0.7:9001", ("mlx",), "attic", 4711, place="0123456789abcdef"),
    "hello at a rendezvous": Hello(WIRE_VERSION, "kitchen", "0.1.0", 1, "rendezvous"),
    "follow": Follow((bytes(range(16)), bytes(16))),
    "announced": Announced(b"announcement"),
    "assign an engine": AssignEngine("vllm", "org/model", "bfloat16", "cuda:1", 0.5, 1.0, 4096, 512),
    "loading an engine": EngineLoading("reading weights", 2**30, -1),
    "refused engine": EngineRefused("there is too little memory", "close other programs"),
    "stop an engine": StopEngine(),
    "engine ready": EngineOpened(ENGINE, {"model.layers.10": "00ff", "model.norm.weight": "a1b2"}),
    "submit": Submit(41, (1, 70000), 128, SAMPLING, (2, 128001), -2, 4, 5, 0, "poetry", "tenant", GRAMMAR),
    "submit with defaults": Submit(42, (1,), 1, Sampling()),
    "abort": Abort((41, 42)),
    "deltas": Deltas(
        (
            TokenDelta(41, prompt_logprobs=((70000, -0.5, ((3, -0.25),)),)),
            TokenDelta(41, (9,), 3, cached_tokens=256, logprobs=((9, -inf, ((4, -0.125), (5, -1.0))),)),
            TokenDelta(42, (9, 128255), ended="stop", finish=TokenFinish("stop", "", 16)),
            TokenDelta(43, finish=TokenFinish("error", "out of memory: größer als 8 GB")),
        ),
    ),
    "engine status": EngineStatus(
        "failed",
        "the engine core has died",
        EngineStats(
            running=3,
            waiting=2,
            steps=1000,
            prompt_tokens=2**33,
            cached_tokens=2**32,
            output_tokens=5000,
            preemptions=1,
            pools=(PoolUse(stage=0, kind="full", used=10, total=100),),
        ),
    ),
}


def read_golden() -> dict[str, dict[str, Frame]]:
    """Return the frames of every version, by the names of the messages."""
    found = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    return {version: {name: parse_frame(frame) for name, frame in frames.items()} for version, frames in found.items()}


def parse_frame(frame: dict[str, Any]) -> Frame:
    return Frame(bytes.fromhex(frame["header"]), tuple(bytes.fromhex(buffer) for buffer in frame["buffers"]))


def write_golden() -> None:
    golden, frames = read_golden(), {name: encode(message) for name, message in SAMPLES.items()}
    for name, frame in golden.get(str(WIRE_VERSION), {}).items():
        if frames.get(name) != frame:
            raise SystemExit(f"the frame {name!r} has changed: raise WIRE_VERSION first")
    golden[str(WIRE_VERSION)] = frames
    text = {
        version: {
            name: {"header": frame.header.hex(), "buffers": [bytes(buffer).hex() for buffer in frame.buffers]}
            for name, frame in frames.items()
        }
        for version, frames in golden.items()
    }
    GOLDEN.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
