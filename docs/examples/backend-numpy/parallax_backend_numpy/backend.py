"""The backend: what a plan asks for is checked, and its layers are loaded."""

from __future__ import annotations

import os

from parallax_backend_numpy.llama import Llama, read_array
from parallax_core import api

MEMORY, PAGE, MOST_SEQUENCES, MOST_TOKENS = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 16, 16, 512
"""Bytes of memory; token slots of a page; sequences of full length there is room for at most; tokens of a step."""


class NumpyBackend:
    """Opens stages of Llama models; see `parallax_core.api.Backend`."""

    def open_stage(self, plan: api.StagePlan) -> api.Stage:
        """Load the layers that are asked for, and no others; refuse a model that `Llama` would get wrong."""
        config = api.read_config(plan.model)
        is_plain = not (config.get("rope_scaling") or config.get("quantization_config"))
        if config.get("architectures") != ["LlamaForCausalLM"] or not is_plain:
            raise api.Unsupported(f"{plan.model} is no plain Llama", "choose another backend")
        layers, total = api.choose_layers(plan, config["num_hidden_layers"]), config["num_hidden_layers"]
        api.check_device(plan, ["float32"], ["cpu"])
        is_last, is_tied = layers.stop == total, config.get("tie_word_embeddings", False)

        def is_wanted(name: str) -> bool:
            if name.startswith("model.layers."):
                return int(name.split(".")[2]) in range(layers.start, layers.stop)
            return layers.start == 0 or (is_last and is_tied) if "embed_tokens" in name else is_last

        weights = {name: read_array(it) for name, it in api.read_tensors(plan.model, is_wanted, plan.progress)}
        fit = int(MEMORY * plan.memory_fraction / (len(layers) * PAGE * config["hidden_size"] * 8))
        pages = max(1, min(fit, MOST_SEQUENCES * config["max_position_embeddings"] // PAGE))
        hop = (api.TensorSpec(config["hidden_size"], "float32"),)
        identity = api.identify_weights(plan, layers, total)
        info = api.StageInfo(
            layers=layers,
            num_layers=total,
            vocab_size=config["vocab_size"],
            context_length=config["max_position_embeddings"],
            max_batch_tokens=MOST_TOKENS,
            pools=(api.PoolInfo(kind="full", page_size=PAGE, num_pages=pages),),
            device="cpu (NumPy)",
            dtype="float32",
            weight_bytes=sum(array.nbytes for array in weights.values()),
            weights_version=identity.version,
            weights_parts=identity.parts,
            capabilities=frozenset({"logprobs"}),
            takes=hop if layers.start else (),
            gives=() if is_last else hop,
        )
        return api.RowStage(info, Llama(config, weights, layers, pages * PAGE))
