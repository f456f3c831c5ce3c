"""What of the documentation nothing types, and why."""

from __future__ import annotations

ENGINE = "installs gigabytes; the tests of engines (`make engines`) install and serve by the same commands"
ROOT = "changes the system as root"
UNITS = f"{ROOT}; tests/unit/cli/test_units.py checks the units"
HUB = "needs a model hub"
UNTYPED: dict[str, dict[str, str]] = {
    "README.md": {".venv/bin/pip install torch==": "needs PyTorch's own index; typed without it"},
    "CONTRIBUTING.md": {
        "make serve": "the README's first command, which is typed there",
        "make test": "is what runs the tests",
    },
    "docs/index.md": {
        "parallax run org/model": HUB,
        "parallax join CODE": "follows it on another machine; typed in docs/tutorials/three-machines.md",
    },
    "docs/explanation/design.md": {"class ": "shows an interface"},
    "docs/how-to/adapters.md": {
        "parallax serve": "needs adapters of the reader's; tests/e2e/test_adapters.py does all of this",
    },
    "docs/how-to/anthropic.md": {"export ANTHROPIC_MODEL=": "sets variables of another program"},
    "docs/how-to/check-a-model.md": {"parallax models check zai-org/": HUB},
    "docs/how-to/deploy.md": {
        "sudo ": UNITS,
        "parallax() {": f"{ROOT}: it is for the user of the units",
        "parallax join CODE": "follows a unit of another machine; typed in docs/tutorials/three-machines.md",
        "parallax cluster relay CODE": "follows a unit of another machine; typed in docs/how-to/machines-at-home.md",
        "parallax worker --connect": "needs the addresses of two machines; typed in docs/tutorials/two-machines.md",
        "make wheels": "typed in the README",
        "docker ": f"{ROOT}; tests/e2e/test_container.py does what the Dockerfile says",
    },
    "docs/how-to/engines.md": {
        "pip install dist/": ENGINE,
        "parallax engines install": ENGINE,
        "parallax serve": ENGINE,
    },
    "docs/how-to/formats.md": {
        "parallax models quantize": "needs a model of the reader's; plugins/quantize/tests does all of this",
        "parallax models show": "needs a model of the reader's; docs/how-to/check-a-model.md shows another",
        "parallax cluster plan": "needs a model and machines of the reader's",
    },
    "docs/how-to/models.md": {
        "parallax serve Qwen/": HUB,
        "parallax run ollama:": "needs a model of Ollama; the tests of the source read some",
        "parallax models suggest --": "needs a file of the reader's; the tests of the command read some",
    },
    "docs/how-to/ollama.md": {"client = ": "needs the address and the key of a server of the reader's"},
    "docs/how-to/serve-with-sglang.md": {
        "pip install dist/": ENGINE,
        "parallax engines install": ENGINE,
        "parallax serve": ENGINE,
    },
    "docs/how-to/operate.md": {
        "parallax join CODE --label": "needs further machines; the tests of the cluster give labels",
        "parallax run": "needs machines with labels; the tests of the cluster plan with them",
        "parallax nodes drain": "needs a further machine; tests/e2e/test_operate.py",
        "parallax nodes remove": "needs a further machine; tests/e2e/test_operate.py",
    },
    "docs/how-to/pipelines-without-a-coordinator.md": {
        "parallax cluster relay CODE_OF_A_SERVER": "needs a further server; tests/e2e/test_find.py",
    },
    "docs/how-to/standby.md": {
        "sudo ": UNITS,
    },
    "docs/how-to/variants.md": {"parallax run": "needs two machines; tests/e2e/test_variants.py"},
    "docs/how-to/write-a-command.md": {'"""Show the steps': "shows an interface"},
    "docs/how-to/write-a-model-adapter.md": {"ModelSpec(": "shows an interface"},
    "plugins/backend_vllm/README.md": {
        "pip install dist/": ENGINE,
        "parallax engines install": ENGINE,
        "parallax serve": ENGINE,
    },
    "plugins/engines/README.md": {"parallax engines install": ENGINE},
    "plugins/quantize/README.md": {
        "pip install dist/parallax_quantize": "tests/e2e/test_wheels.py installs all wheels",
        "parallax models quantize Qwen/": HUB,
    },
    "plugins/simulate/README.md": {"parallax simulate": HUB},
    "plugins/source_hub/README.md": {"parallax models pull org/name": HUB},
    "plugins/transport_zmq/README.md": {"parallax keys allow": "needs a key of another machine"},
}
"""By page: how commands begin that no test and no walk types, and the reason."""
