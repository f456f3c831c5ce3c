"""Describes an architecture of GGUF files, and its tensors under the names of transformers.

Source of the names in GGUF files: ``gguf.constants``; of their meaning, the graphs and conversions of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor of each layer."""

    target: str
    """Its name in transformers, without the layer and ``.weight``; ``{}`` stands for the number of an expert."""
    sizes: tuple[str, ...]
    """Its shape, by the names of `Sizes`; ``*`` is any."""
    treatment: str = ""
    """What is done to it: one of `treatments.TREATMENTS`; empty: nothing."""
    is_required: bool = True


Rows = dict[str, Row]


def parse_rows(text: str) -> Rows:
    """Parse lines of ``SOURCE TARGET SIZE,SIZE TREATMENT``; a source that ends with ``?`` is not in every layer."""
    rows = {}
    for line in filter(str.strip, text.splitlines()):
        source, target, sizes, *treatment = line.split()
        name = source.removesuffix("?")
        rows[name] = Row(target, tuple(sizes.split(",")), treatment[0] if treatment else "", name == source)
    return rows


ENDS = parse_rows("""
token_embd    model.embed_tokens    vocab,hidden
output_norm   model.norm            hidden
output?       lm_head               vocab,hidden
""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A family of models as GGUF files have it."""

    model_class: str
    """The class of transformers."""
    model_type: str
    layer: Rows
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the file, without the architecture, and their names in config.json."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """The same, of settings that a file may lack."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings of config.json that every model of the architecture has."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Settings of config.json that are true if the first layer with a tensor has it."""
    biases: tuple[str, ...] = ()
    """Tensors that may have a bias."""
    spare: tuple[str, ...] = ()
    """Settings of the file that need no translation."""
    ends: Rows = field(default_factory=lambda: ENDS)
    """The tensors outside the layers, with their whole names in transformers."""
    period: int = 0
    """Every how many layers one has full attention, where windows are used; 0: no layer or every layer has one."""


ENDS_LESS_1 = ENDS | parse_rows("output_norm model.norm hidden less1")
MLP = """
ffn_gate  mlp.gate_proj  inner,hidden
ffn_up    mlp.up_proj    inner,hidden
ffn_down  mlp.down_proj  hidden,inner
"""
HEADS = """
attn_q       self_attn.q_proj  queries,hidden
attn_k       self_attn.k_proj  keys,hidden
attn_v       self_attn.v_proj  keys,hidden
attn_output  self_attn.o_proj  hidden,queries
"""
TURNED = parse_rows("""
attn_q  self_attn.q_proj  queries,hidden  turn
attn_k  self_attn.k_proj  keys,hidden     turn
""")
HEAD_NORMS = parse_rows("""
attn_q_norm  self_attn.q_norm  head
attn_k_norm  self_attn.k_norm  head
""")
NORMS = """
attn_norm  input_layernorm           hidden
ffn_norm   post_attention_layernorm  hidden
"""
DENSE = parse_rows(NORMS + HEADS + MLP)
NORMS_AFTER = parse_rows("""
post_attention_norm  post_attention_layernorm    hidden
post_ffw_norm        post_feedforward_layernorm  hidden
""")
AFTER = NORMS_AFTER | parse_rows(HEADS + MLP)
GEMMA = parse_rows("""
attn_norm            input_layernorm             hidden  less1
post_attention_norm  post_attention_layernorm    hidden  less1
ffn_norm             pre_feedforward_layernorm   hidden  less1
post_ffw_norm        post_feedforward_layernorm  hidden  less1
""") | parse_rows(HEADS + MLP)
GEMMA_HEAD_NORMS = parse_rows("""
attn_q_norm  self_attn.q_norm  head  less1
attn_k_norm  self_attn.k_norm  head  less1
""")
EXPERTS = """
ffn_gate_inp?   mlp.gate                  experts,hidden
ffn_gate_exps?  mlp.experts.{}.gate_proj  experts,expert,hidden  split
ffn_up_exps?    mlp.experts.{}.up_proj    experts,expert,hidden  split
ffn_down_exps?  mlp.experts.{}.down_proj  experts,hidden,expert  split
"""
ROUTED = parse_rows(NORMS + HEADS + EXPERTS)
SHARED = """
ffn_gate_shexp?  mlp.shared_experts.gate_proj  *,hidden
ffn_up_shexp?    mlp.shared_experts.up_proj    *,hidden
ffn_down_shexp?  mlp.shared_experts.down_proj  hidden,*
"""
SOME_MLP = """
ffn_gate?  mlp.gate_proj  inner,hidden
ffn_up?    mlp.up_proj    inner,hidden
ffn_down?  mlp.down_proj  hidden,inner
"""
QKV = ("attn_q", "attn_k", "attn_v")
LINEAR = (*QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NUM_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
EXPERT_SIZE = {"expert_feed_forward_length": "moe_intermediate_size"}
