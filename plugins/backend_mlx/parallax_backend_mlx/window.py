"""Limits the context of models whose sliding window mlx-lm ignores.

Some model files of mlx-lm ignore the sliding window of config.json and attend to all tokens. Up to the length of the
window that is the same, so the context ends there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from parallax_core.api import Unsupported

SLIDING = "sliding_attention"

logger = logging.getLogger(__name__)

LONG_ROPE = ("longrope", "su")
"""The names of LongRoPE, that of the first Phi-3 last."""


def limit_context(config: Mapping[str, Any], slides: Sequence[bool], length: int) -> int:
    """Return the longest context, of at most ``length`` tokens, that mlx-lm computes correctly.

    Args:
        config: config.json, or its text part.
        slides: for each layer, whether mlx-lm gave it a cache with a sliding window.
        length: the context length of the model.

    Raises:
        Unsupported: if other layers have sliding windows in mlx-lm than in config.json.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    trained = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if rope.get("rope_type", rope.get("type")) in LONG_ROPE and isinstance(trained, int):
        length = min(length, trained)  # for longer sequences all factors change, of tokens before too
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    wanted = [kind == SLIDING for kind in kinds] if kinds else None
    if not isinstance(window, int) or config.get("use_sliding_window") is False or (wanted and not any(wanted)):
        return length
    if not any(slides):
        if window < length:
            logger.warning("context shortened to the sliding window, which mlx-lm ignores tokens=%d", window)
        return min(window, length)
    if wanted and len(wanted) == len(slides) and wanted != list(slides):
        message = f"layer_types of {config.get('model_type')} put sliding windows where mlx-lm does not"
        raise Unsupported(message, "try another backend")
    return length
