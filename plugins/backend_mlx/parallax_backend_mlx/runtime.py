"""Imports MLX after the fast BLAS is loaded; no other module of this package imports MLX.

All other modules take MLX from here; a test reads their imports.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import Any

from parallax_backend_mlx.blas import activate
from parallax_backend_mlx.import_shim import skip_unused

BLAS = activate()

# MLX binds to its BLAS when it is imported, so the lines above must come first.
import mlx.core as mx  # noqa: E402
from mlx.nn.layers.activations import gelu_approx  # noqa: E402
from mlx.nn.layers.base import Module  # noqa: E402
from mlx.nn.layers.embedding import Embedding  # noqa: E402
from mlx.nn.layers.linear import Linear  # noqa: E402
from mlx.nn.layers.positional_encoding import RoPE  # noqa: E402
from mlx.nn.layers.quantized import QuantizedLinear  # noqa: E402
from mlx.utils import tree_flatten, tree_map, tree_unflatten  # noqa: E402


@contextlib.contextmanager
def _keep_limits() -> Iterator[None]:
    """Restore the limit on open files, which importing mlx_lm lowers for the whole process, including the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return
    # Only a privileged process may raise the hard limit again; others restore up to the lowered one.
    ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, ceiling), ceiling))


with _keep_limits(), skip_unused():
    from mlx_lm.models.activations import swiglu as plain_swiglu
    from mlx_lm.models.base import scaled_dot_product_attention as plain_attention
    from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache
    from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear
    from mlx_lm.utils import (
        MODEL_ARCHITECTURE_REMAPPING,
        MODEL_REMAPPING,
        dequantize_model,
        load_model,
    )


def flatten_tree(tree: object) -> list[tuple[str, Any]]:
    """Return the leaves of nested lists, tuples and dictionaries, each with its path."""
    return list(tree_flatten(tree))  # type: ignore[arg-type]  # it returns a list unless asked for a dictionary


__all__ = [
    "BLAS",
    "MODEL_ARCHITECTURE_REMAPPING",
    "MODEL_REMAPPING",
    "ArraysCache",
    "CacheList",
    "Embedding",
    "KVCache",
    "Linear",
    "Llama3RoPE",
    "Module",
    "QuantizedLinear",
    "QuantizedSwitchLinear",
    "RoPE",
    "RotatingKVCache",
    "SwitchGLU",
    "SwitchLinear",
    "YarnRoPE",
    "dequantize_model",
    "flatten_tree",
    "gelu_approx",
    "load_model",
    "make_prompt_cache",
    "mx",
    "plain_attention",
    "plain_swiglu",
    "tree_map",
    "tree_unflatten",
]
