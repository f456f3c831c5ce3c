"""Hypothesis strategies for valid messages of every type, with every field."""

from __future__ import annotations

import math
from typing import Any, get_args

from hypothesis import strategies as st
from msgspec.structs import replace

from parallax_cluster.wire.further import EndNode, OpenLease, StartNode
from parallax_cluster.wire.profile import (
    MOST_BYTES,
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
    TOKEN_BYTES,
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
from parallax_core.base.errors import LossCause
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts import stage
from parallax_core.contracts.capability import Capability
from parallax_core.contracts.engine import MAX_ANSWERS, EngineStats, HealthState, PoolUse, Reason
from parallax_core.contracts.engine_spec import RequestField, SeedSupport
from parallax_core.contracts.grammar import Grammar, GrammarKind
from parallax_core.contracts.progress import Unit
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.tensor import ITEM_BYTES, Tensor, TensorSpec
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.contracts.value import LARGEST
from parallax_core.wire.api_data import ApiData
from parallax_core.wire.membership import Assign, HandOver, Hop, Join, Leave, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import (
    DropReason,
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
    MOST_LOGPROBS,
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

counts = st.integers(0, LARGEST)
counters = st.integers(-1, LARGEST)
words = st.text(max_size=20)
shown = words.filter(str.isprintable)
"""Printable text."""
causes = st.sampled_from(get_args(LossCause))
seqs, epochs = counts.map(SeqId), counts.map(Epoch)
finite = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0, 1)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
scores = st.floats(allow_nan=False)
pairs = st.lists(st.tuples(counts, scores), max_size=3).map(tuple)
biases = st.lists(st.tuples(counts, scores.filter(lambda bias: bias < math.inf)), max_size=3).map(tuple)


def tuples(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=most).map(tuple)


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Tensor:
    """Build a tensor with any of the allowed types of data."""
    dtype = dtype or draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple)) if shape is None else shape
    size = ITEM_BYTES[dtype] * math.prod(shape)
    data = draw(st.binary(min_size=size, max_size=size))
    return Tensor(dtype, shape, draw(st.sampled_from((bytes, bytearray, memoryview)))(data))


memories = st.integers(0, MOST_BYTES // 2)
speeds = st.floats(1e6, 1e15)
reports = st.builds(
    NodeReport,
    backend=shown,
    device=st.builds(
        DeviceReport,
        memory=memories,
        flops=speeds,
        bandwidth=speeds,
        flops_efficiency=st.floats(0.01, 1),
        bandwidth_efficiency=st.floats(0.01, 1),
        step_s=st.floats(0, 60),
        layer_s=st.floats(0, 10),
        name=shown,
        total_memory=memories.map(lambda size: size + MOST_BYTES // 2),
        is_measured=st.booleans(),
        expert_layer_s=st.floats(0, 10),
        forms=tuples(st.tuples(st.floats(0.01, 16), speeds, speeds)),
    ),
    dtype=st.sampled_from(("auto", "float32", "float16", "bfloat16")),
    disk_bandwidth=speeds,
    disk_free=memories,
    stored=tuples(st.builds(StoredLayers, shown, st.integers(0, 9), st.integers(10, 20))),
    links=tuples(st.builds(LinkReport, shown, st.floats(0, 60), speeds, shown)),
    unreached=tuples(shown),
    leases=st.booleans(),
)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, allow_infinity=False),
    top_k=counts,
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=shares,
    seed=st.integers(0, 2**64 - 1),
    presence_penalty=finite,
    frequency_penalty=finite,
    repetition_penalty=positive,
    logit_bias=biases,
    min_tokens=counts,
    stop_ids=tuples(counts),
)
specs = st.builds(
    stage.SequenceSpec,
    prompt_length=counts,
    sampling=samplings,
    adapter=words,
    priority=st.integers(-LARGEST, LARGEST),
    salt=words,
)
edits = st.one_of(
    st.builds(stage.Open, seqs, specs),
    st.builds(stage.Fork, seqs, seqs, counts, counts, st.none() | specs),
    st.builds(stage.Truncate, seqs, counts),
    st.builds(stage.Drop, seqs),
)


@st.composite
def rows(draw: st.DrawFn, lengths: list[int]) -> stage.Row:
    """Build a row whose spans lie in embeddings of the given ``lengths``."""
    tokens = draw(st.lists(counts, min_size=1, max_size=6).map(tuple))
    offsets = sorted(draw(st.lists(st.integers(0, len(tokens) - 1), max_size=3)))
    outputs = tuple(draw(outputs_at(offset)) for offset in offsets)
    positions = draw(st.just([]) | st.lists(counts, min_size=len(tokens), max_size=len(tokens), unique=True))
    spans = draw(tuples(spans_in(len(tokens), lengths), 2)) if lengths else ()
    return stage.Row(draw(seqs), draw(counts), tokens, outputs, tuple(sorted(positions)), spans)


def outputs_at(offset: int) -> st.SearchStrategy[stage.Draw | stage.Score | stage.Hidden]:
    at = st.just(offset)
    return st.one_of(
        st.builds(stage.Draw, at, st.integers(1, LARGEST), counters, st.booleans()),
        st.builds(stage.Score, at, counts, counts),
        st.builds(stage.Hidden, at, st.integers(0, offset + 1)),
    )


@st.composite
def spans_in(draw: st.DrawFn, tokens: int, lengths: list[int]) -> stage.Span:
    tensor = draw(st.integers(0, len(lengths) - 1))
    length = draw(st.integers(0, min(tokens, lengths[tensor])))
    offset, start = draw(st.integers(0, tokens - length)), draw(st.integers(0, lengths[tensor] - length))
    return stage.Span(offset, length, tensor, start)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    lengths = draw(st.lists(st.integers(0, 4), max_size=2))
    batch = draw(tuples(rows(lengths)))
    total = sum(len(row.tokens) for row in batch)
    hidden = draw(tuples(st.integers(0, 3).flatmap(lambda width: tensors((total, width))), 2))
    embeddings = tuple(draw(tensors((length, 2))) for length in lengths)
    return Step(draw(epochs), draw(counts), draw(tuples(edits)), batch, hidden, embeddings)


@st.composite
def drawns(draw: st.DrawFn) -> stage.Drawn:
    tokens = draw(tuples(counts))
    logprobs = draw(st.just(()) | st.tuples(*[scores for _ in tokens]))
    return stage.Drawn(tokens, logprobs, draw(pairs))


@st.composite
def results(draw: st.DrawFn) -> Result:
    given = draw(tuples(tensors()))
    states = st.builds(stage.State, st.integers(0, len(given) - 1)) if given else st.nothing()
    answers = draw(tuples(st.one_of(drawns(), st.builds(stage.Scored, scores, pairs), states)))
    made = Result(draw(epochs), draw(counts), draw(counts), answers, tensors=given)
    seconds, sampling_s = draw(st.floats(0, LARGEST)), draw(st.floats(0, LARGEST))
    return replace(made, free=draw(tuples(counts)), seconds=seconds, sampling_s=sampling_s)


sizes = st.integers(1, LARGEST)
pools = st.builds(
    stage.PoolInfo,
    kind=st.sampled_from(("full", "window", "latent", "state")),
    page_size=sizes,
    num_pages=st.integers(1, stage.MOST_PAGES),
    window=counts,
    rewind=counts,
    shares=st.booleans(),
    checkpoint_every=counts,
)
tensor_specs = st.builds(TensorSpec, sizes, st.sampled_from(sorted(ITEM_BYTES)))


@st.composite
def infos(draw: st.DrawFn) -> stage.StageInfo:
    start, stop, num_layers = sorted(draw(st.lists(st.integers(0, 100), min_size=3, max_size=3, unique=True)))
    return stage.StageInfo(
        layers=stage.LayerRange(start, stop),
        num_layers=num_layers,
        vocab_size=draw(sizes),
        context_length=draw(sizes),
        max_batch_tokens=draw(sizes),
        pools=draw(st.lists(pools, min_size=1, max_size=3).map(tuple)),
        device=draw(shown),
        dtype=draw(shown),
        weight_bytes=draw(counts),
        weights_version=draw(shown),
        capabilities=draw(st.frozensets(st.sampled_from(get_args(Capability)), max_size=1)),
        takes=draw(tuples(tensor_specs, 2)),
        gives=draw(tuples(tensor_specs, 2)),
        saturation_rows=draw(counts),
        weights_parts=draw(st.dictionaries(shown, shown, max_size=3)),
        steps_ahead=draw(st.integers(0, 16)),
    )


relay_tokens = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)
membership: st.SearchStrategy[Message] = st.one_of(
    reports,
    st.builds(Peers, tuples(st.builds(Peer, shown, shown, st.binary(max_size=9), st.booleans()))),
    st.builds(TryLink, st.builds(Peer, shown, shown, st.binary(max_size=9), st.booleans())),
    st.builds(LinkTried, shown, st.booleans(), words),
    st.builds(Probe, st.binary(max_size=9)),
    st.builds(ProbeAnswer),
    st.builds(Succession, st.binary(max_size=9), tuples(st.builds(Peer, shown, shown, st.binary(max_size=9)))),
    st.builds(ClusterState, st.binary(max_size=9)),
    st.builds(ApiData, st.binary(min_size=1, max_size=9)),
    st.builds(Join, shown, tuples(shown), shown, counts, shown, counts, counts, counts, st.booleans()),
    st.builds(Follow, tuples(st.binary(min_size=16, max_size=16))),
    st.builds(Announced, st.binary(min_size=1, max_size=9)),
    st.builds(
        Assign,
        epochs,
        stage=counts,
        backend=words,
        model=words,
        start=counts,
        stop=counts,
        dtype=st.sampled_from(("auto", "float32", "float16", "bfloat16")),
        device=words,
        memory_fraction=st.floats(0, 1, exclude_min=True),
        heartbeat_s=st.floats(0, 3600, exclude_min=True),
        max_batch_tokens=counts,
        max_running=counts,
        holds_start=counts,
        holds_stop=counts,
        memory_share=st.floats(0, 1),
    ),
    st.builds(Loading, epochs, counts, words, counts, counters, st.sampled_from(("bytes", "items"))),
    st.builds(Ready, epochs, counts, infos()),
    st.builds(Refusal, epochs, counts, words, words, st.booleans(), shown),
    st.builds(Hop, epochs, counts, words, words, words),
    st.builds(Linked, epochs, counts, shown),
    st.builds(Relays, tuples(st.builds(RelayPlace, shown, shown, st.binary(max_size=9)))),
    st.builds(RelayUsers, tuples(st.builds(RelayUser, shown, st.binary(max_size=9)))),
    st.builds(Reach, shown),
    st.builds(Ring, shown, relay_tokens),
    st.builds(PickUp, relay_tokens),
    st.builds(Reached),
    st.builds(NotReached, shown),
    st.builds(OfferRelay, shown),
    st.builds(HandOver),
    st.builds(Relinked, shown),
    st.builds(Release, epochs, st.booleans()),
    st.builds(Leave, epochs),
    st.builds(StartNode, st.integers(1, LARGEST)),
    st.builds(EndNode, st.integers(1, LARGEST)),
    st.builds(OpenLease, st.integers(1, LARGEST)),
)
answer_counts = st.integers(1, MAX_ANSWERS)
engine_infos = st.builds(
    EngineInfo,
    num_layers=sizes,
    vocab_size=sizes,
    context_length=sizes,
    max_running=sizes,
    max_batch_tokens=sizes,
    seed=st.sampled_from(get_args(SeedSupport)),
    honours=st.frozensets(st.sampled_from(get_args(RequestField)), max_size=1),
    max_answers=answer_counts,
    max_logprobs=st.integers(0, MOST_LOGPROBS),
    device=shown,
    dtype=shown,
    weight_bytes=counts,
)
reasons = st.sampled_from(get_args(Reason))
score_entries = st.tuples(counts, scores, pairs)


@st.composite
def token_deltas(draw: st.DrawFn) -> TokenDelta:
    tokens = draw(tuples(counts))
    logprobs = draw(st.just(()) | st.tuples(*[score_entries for _ in tokens]))
    finishes = st.none() | st.builds(TokenFinish, reasons, shown, counts)
    index, ended, finish = draw(st.integers(0, MAX_ANSWERS - 1)), draw(st.none() | reasons), draw(finishes)
    return TokenDelta(draw(counts), tokens, index, ended, finish, draw(counts), logprobs, draw(tuples(score_entries)))


pool_uses = st.builds(PoolUse, stage=counts, kind=shown, used=counts, total=counts)
engine_messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        AssignEngine,
        backend=words,
        model=words,
        dtype=st.sampled_from(("auto", "float32", "float16", "bfloat16")),
        device=words,
        memory_fraction=st.floats(0, 1, exclude_min=True),
        status_s=st.floats(0, 3600, exclude_min=True),
        max_batch_tokens=counts,
        max_running=counts,
    ),
    st.builds(EngineLoading, shown, counts, counters, st.sampled_from(get_args(Unit))),
    st.builds(EngineRefused, shown, shown),
    st.builds(StopEngine),
    st.builds(EngineOpened, engine_infos, st.dictionaries(shown, shown, max_size=3)),
    st.builds(
        Submit,
        counts,
        st.lists(counts, min_size=1, max_size=6).map(tuple),
        sizes,
        samplings,
        tuples(counts),
        st.integers(-LARGEST, LARGEST),
        answer_counts,
        counters,
        counters,
        words,
        words,
        st.none()
        | st.builds(
            Grammar,
            kind=st.sampled_from(get_args(GrammarKind)),
            source=words,
            after=tuples(words),
            whitespace=st.none() | words,
        ),
    ),
    st.builds(Abort, tuples(counts)),
    st.builds(Deltas, tuples(token_deltas())),
    st.builds(
        EngineStatus,
        st.sampled_from(get_args(HealthState)),
        shown,
        st.builds(
            EngineStats,
            running=counts,
            waiting=counts,
            steps=counts,
            prompt_tokens=counts,
            cached_tokens=counts,
            output_tokens=counts,
            preemptions=counts,
            requests_replayed=counts,
            requests_lost=counts,
            pools=tuples(pool_uses),
        ),
    ),
)
messages: st.SearchStrategy[Message] = st.one_of(
    engine_messages,
    steps(),
    results(),
    st.builds(Failure, epochs, counts, counts, words, st.booleans(), tuples(counts), st.booleans(), causes, words),
    st.builds(
        Mask,
        epochs,
        counts,
        counts,
        st.integers(0, 5).flatmap(lambda size: tensors((size,), dtype="uint8")),
        counts,
    ),
    st.builds(Heartbeat, epochs, counters, *[counts] * 6, st.floats(0, LARGEST)),
    st.builds(Hello, counts, shown, shown, counts, shown),
    st.builds(UnsupportedMessage, counts, st.sampled_from(get_args(DropReason))),
    st.builds(Welcome, counts, shown, shown, counts),
    membership,
)
