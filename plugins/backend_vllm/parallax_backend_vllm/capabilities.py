"""Fields honoured by vLLM's engines and stages; imports no vLLM, so that docs can be made from it."""

from __future__ import annotations

from parallax_core.api import Capability, RequestField, SeedSupport

HONOURS: frozenset[RequestField] = frozenset(
    {
        "logprobs",
        "prompt_logprobs",
        "priority",
        "adapter",
        "salt",
        "top_k",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "min_tokens",
    }
)
"""The fields of a request; ``adapter`` only if adapters are configured."""
SEED: SeedSupport = "engine"
"""vLLM draws with a generator of its own for each request."""
MAX_ANSWERS = 128
"""The most answers to a request; each is a request of its own in vLLM."""
MAX_LOGPROBS = 20
"""The most best tokens at a position, which is also vLLM's default."""
STAGE_CAPABILITIES: frozenset[Capability] = frozenset({"logprobs", "hidden", "hidden_sums", "masks"})
"""The capabilities of a stage: its logits are drawn from by parallax-sampling-torch."""
