"""Write a model in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parallax_core.api import UsageError, format_bytes
from parallax_core.api.cli import make_display, new_app
from parallax_quantize.forms import BITS, GGUF, GGUF_FORMS, GGUF_READERS, GROUPS, LAYOUTS, READERS

app = new_app()


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(help="A folder, a hub id such as org/name, or an alias.")],
    to: Annotated[
        str, typer.Option(help=f"What it becomes: {', '.join(BITS)}, {', '.join(GGUF_FORMS)}.", metavar="FORM")
    ],
    layout: Annotated[
        str, typer.Option("--for", help="The layout: mlx, or compressed-tensors for vLLM.", metavar="LAYOUT")
    ] = LAYOUTS[0],
    group: Annotated[int, typer.Option(help="Inputs that share a scale: 32, 64 or 128.", metavar="N")] = GROUPS[0],
    calibrate: Annotated[
        Path | None,
        typer.Option(help="A text like those that the model will read; int4 loses less with it.", metavar="FILE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The new folder or file; by default NAME-FORM in this folder.", metavar="PATH")
    ] = None,
) -> None:
    """Write a model in fewer bits.

    The layout mlx is read by mlx-lm, and compressed-tensors is that of vLLM and SGLang; Parallax reads both. The
    matrices of layers get the form; embedding and head get 8 bits in mlx, and stay as they are in compressed-tensors.
    In mlx, int4 is a mix: v_proj and down_proj get 6 bits, about as in Q4_K_M; int4_plain has 4 bits in all layers.
    With --calibrate, the text runs through the layers one by one, and GPTQ rounds each matrix by what it is given;
    without, HQQ chooses the grids of 4 bits. A form such as gguf:Q4_K_M is a GGUF file with the tokenizer in it, for
    llama.cpp, whose types it has; --for, --group and --calibrate do not concern it. Nothing is left if it ends early.
    """
    if to in GGUF_FORMS:
        if (layout, group, calibrate) != (LAYOUTS[0], GROUPS[0], None):
            raise UsageError("--for, --group and --calibrate do not concern GGUF files", "leave them out")
        from parallax_quantize.run import write_gguf  # it brings torch

        with make_display() as display:
            file = write_gguf(model, to.removeprefix(GGUF), out, display)
        print(f"{file}: {format_bytes(file.stat().st_size)}, read by {GGUF_READERS}")
        return
    found = next((each for each in LAYOUTS if each == layout), None)
    if found is None or group not in GROUPS or to not in BITS:
        known = (
            f"--to {', '.join((*BITS, *GGUF_FORMS))}; --for {', '.join(LAYOUTS)}; --group {', '.join(map(str, GROUPS))}"
        )
        raise UsageError(f"--to {to} --for {layout} --group {group} is not known", f"choose of {known}")
    from parallax_quantize.run import quantize_model  # it brings torch

    with make_display() as display:
        folder = quantize_model(model, (to, found, group), calibrate, out, display)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(f"{folder}: {format_bytes(size)}, read by {READERS[found]}")
