"""Runs a range of a model's layers with SGLang's ``ModelRunner``, by private parts of SGLang.

SGLang's scheduler and its prefix cache are not used: each row of a step is an extension of a request that ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from parallax_backend_sglang.compat import Interface, find
from parallax_backend_sglang.compat_runtime import RUNNER, WHOLE, StageRank, make_runner
from parallax_core.api import Unsupported
from parallax_sampling_torch.outputs import Picks
from parallax_sampling_torch.stage_weights import StageWeights

BATCH = "sglang.srt.model_executor.forward_batch_info"
LOGITS = "sglang.srt.layers.logits_processor"
STAGE: Interface = {
    RUNNER: ("alloc_memory_pool", "init_attention_backends", "init_cuda_graphs", "forward"),
    f"{RUNNER}.forward": ("pp_proxy_tensors",),
    f"{BATCH}:ForwardBatch": (
        *("forward_mode", "batch_size", "input_ids", "req_pool_indices", "seq_lens", "seq_lens_cpu", "seq_lens_sum"),
        *("out_cache_loc", "positions", "extend_num_tokens", "extend_seq_lens", "extend_prefix_lens"),
        *("extend_start_loc", "extend_prefix_lens_cpu", "extend_seq_lens_cpu", "capture_hidden_mode", "spec_algorithm"),
    ),
    f"{BATCH}:ForwardMode": ("EXTEND", "DECODE"),
    f"{BATCH}:CaptureHiddenMode": ("NULL",),
    f"{BATCH}:PPProxyTensors": ("tensors",),
    f"{LOGITS}:LogitsProcessor._get_logits": ("hidden_states", "lm_head", "logits_metadata"),
    f"{LOGITS}:LogitsMetadata": ("forward_mode",),
    f"{LOGITS}:LogitsProcessorOutput": ("next_token_logits",),
    "sglang.srt.speculative.spec_info:SpeculativeAlgorithm": ("NONE",),
}
"""What a stage uses to compute; see `compat.ENGINE`."""
POOLS = frozenset({"MHATokenToKVPool", "MLATokenToKVPool"})
"""The KV caches of SGLang whose slots have keys and values, or latents, in every layer."""
FOLDED = frozenset({"hidden_states", "residual"})
"""The tensors that a family may hand on between stages: their sum is the residual stream."""


@dataclass(frozen=True, slots=True)
class RowSlots:
    """The place of a row in the KV cache."""

    start: int
    """The length of its sequence before the step."""
    slots: torch.Tensor
    """The slots of all tokens of its sequence, those of the row included, int64."""

    @property
    def count(self) -> int:
        """The number of tokens of the row."""
        return len(self.slots) - self.start


@dataclass(frozen=True, slots=True)
class Found:
    """The results of SGLang's runner, for the tokens of the rows in order."""

    hidden: torch.Tensor
    """The residual stream after the layers, of shape [tokens, width]; after the last layer, that of the picked tokens
    after the final norm, or sums of them."""
    logits: torch.Tensor | None
    """After the last layer: the logits of the picked tokens, float32 of shape [picks, vocab size]."""


class PickedLogits(torch.nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Computes logits of chosen tokens, in place of SGLang's processor, which computes those of each row's last one."""

    def __init__(self, processor: Any) -> None:  # noqa: ANN401 -- SGLang is not typed here
        super().__init__()
        self.processor = processor
        self.picks = Picks(None)
        self.states: torch.Tensor | None = None
        """The hidden states of these tokens after the final norm, or sums of them."""

    def forward(self, input_ids: Any, hidden: torch.Tensor, lm_head: Any, batch: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401, ARG002
        """Return SGLang's output with the logits of the picked tokens."""
        taken = self.picks.take(hidden)
        metadata = find(f"{LOGITS}:LogitsMetadata")(forward_mode=find(f"{BATCH}:ForwardMode").DECODE)
        logits = self.processor._get_logits(taken, lm_head, metadata)  # noqa: SLF001
        self.states = self.picks.add_up(taken, hidden)
        return find(f"{LOGITS}:LogitsProcessorOutput")(next_token_logits=logits)


class LayerRunner:
    """Layers of a model and their KV cache, whose slots are numbered from 1."""

    def __init__(self, arguments: Mapping[str, Any], rank: StageRank, weights: StageWeights) -> None:
        """Load the layers and make the KV cache; see `make_runner`.

        Raises:
            Unsupported: if SGLang cannot split the family, or its layers keep anything but one KV cache.
            ParallaxError: if files are damaged or incomplete.
        """
        self._runner = runner = make_runner(arguments, rank, weights)
        runner.alloc_memory_pool()
        if (kind := type(runner.token_to_kv_pool).__name__) not in POOLS:
            message = f"{type(runner.model).__name__} keeps a {kind}, which a stage on SGLang does not support"
            raise Unsupported(message, WHOLE)
        runner.init_attention_backends()
        runner.init_cuda_graphs()
        self._layers = range(rank.layers.start, rank.layers.stop)
        self._logits = PickedLogits(runner.model.logits_processor) if rank.is_last else None
        if self._logits is not None:
            runner.model.logits_processor = self._logits

    @property
    def device(self) -> torch.device:
        """The device of the layers."""
        return torch.device(self._runner.device)

    @property
    def num_slots(self) -> int:
        """The number of slots of the KV cache."""
        return int(self._runner.token_to_kv_pool.size)

    @property
    def most_rows(self) -> int:
        """The most rows of one call of `run`."""
        return len(self._runner.req_to_token_pool.req_to_token)

    @property
    def weight_bytes(self) -> int:
        """The number of bytes of the weights."""
        return sum(each.numel() * each.element_size() for each in self._runner.model.parameters())

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy the keys and values of the slots ``src`` to the slots ``dst``, both int64, in all layers."""
        for buffer in self._list_buffers():
            buffer[dst] = buffer[src]

    def clear(self, slots: torch.Tensor) -> None:
        """Set the keys and values of ``slots``, int64, to zero in all layers."""
        for buffer in self._list_buffers():
            buffer[slots] = 0

    def run(self, tokens: torch.Tensor, rows: Sequence[RowSlots], hidden: torch.Tensor | None, picks: Picks) -> Found:
        """Run rows through the layers, and write their keys and values.

        Args:
            tokens: the tokens of all rows, int64.
            rows: the places of the rows, at most `most_rows`.
            hidden: the residual stream before the layers, of shape [tokens, width]; None before layer 0.
            picks: the tokens whose logits are wanted.
        """
        batch = self._make_batch(tokens, rows)
        before = None
        if hidden is not None:
            tensors = {"hidden_states": hidden, "residual": torch.zeros_like(hidden)}
            before = find(f"{BATCH}:PPProxyTensors")(tensors)
        if self._logits is not None:
            self._logits.picks = picks
        with torch.inference_mode():
            found = self._runner.forward(batch, pp_proxy_tensors=before).logits_output
            if self._logits is not None:
                assert self._logits.states is not None, "the logits were computed"
                return Found(self._logits.states, found.next_token_logits.float())
            return Found(_fold(found.tensors), None)

    def _list_buffers(self) -> Iterable[torch.Tensor]:
        """Yield the keys and the values of each layer, of shape [slots, ...]."""
        pool = self._runner.token_to_kv_pool
        for layer in self._layers:
            yield pool.get_key_buffer(layer)
            yield pool.get_value_buffer(layer)

    def _make_batch(self, tokens: torch.Tensor, rows: Sequence[RowSlots]) -> Any:  # noqa: ANN401 -- see above
        table, device = self._runner.req_to_token_pool.req_to_token, self.device
        starts, counts = [row.start for row in rows], [row.count for row in rows]
        lengths = [len(row.slots) for row in rows]
        mode = "DECODE" if counts == [1] * len(rows) else "EXTEND"
        for index, row in enumerate(rows):
            table[index, : len(row.slots)] = row.slots.to(table.dtype)
        ends = torch.tensor(counts).cumsum(0).tolist()
        batch = find(f"{BATCH}:ForwardBatch")(
            forward_mode=find(f"{BATCH}:ForwardMode.{mode}"),
            batch_size=len(rows),
            input_ids=tokens.to(device),
            req_pool_indices=torch.arange(len(rows), device=device),
            seq_lens=torch.tensor(lengths, device=device),
            seq_lens_cpu=torch.tensor(lengths),
            seq_lens_sum=sum(lengths),
            out_cache_loc=torch.cat([row.slots[row.start :] for row in rows]).to(device),
            positions=torch.cat([torch.arange(row.start, len(row.slots)) for row in rows]).to(device),
            extend_num_tokens=len(tokens),
            extend_seq_lens=torch.tensor(counts, dtype=torch.int32, device=device),
            extend_prefix_lens=torch.tensor(starts, dtype=torch.int32, device=device),
            extend_start_loc=torch.tensor([0, *ends[:-1]], dtype=torch.int32, device=device),
            extend_prefix_lens_cpu=starts,
            extend_seq_lens_cpu=counts,
            capture_hidden_mode=find(f"{BATCH}:CaptureHiddenMode").NULL,
            spec_algorithm=find("sglang.srt.speculative.spec_info:SpeculativeAlgorithm").NONE,
        )
        if (translator := getattr(self._runner, "kv_index_translator", None)) is not None:  # not in 0.5.18
            translator.own_plan(batch).bind(batch, translator, cols=None)
        return batch


def _fold(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the residual stream in the tensors that a family hands on.

    Raises:
        Unsupported: if it hands on others.
    """
    if strange := set(tensors) - FOLDED:
        raise Unsupported(f"its stages exchange {', '.join(sorted(strange))}", WHOLE)
    hidden, residual = tensors["hidden_states"], tensors.get("residual")
    return hidden if residual is None else hidden + residual
