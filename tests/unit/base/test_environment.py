from __future__ import annotations

import pytest

from parallax_core.base.environment import bare_environment, engine_environment, worker_environment

NEEDED = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONUTF8", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
SECRET = (
    *("PARALLAX_API_KEY", "PARALLAX_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SESSION_TOKEN", "GITHUB_TOKEN"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "http_proxy", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "WORD"),
)


@pytest.mark.parametrize("name", NEEDED)
def test_what_programs_need_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert bare_environment()[name] == "x"


@pytest.mark.parametrize("name", SECRET)
def test_nothing_else_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in bare_environment()


OF_ENGINES = (
    *(
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "NCCL_SOCKET_IFNAME",
        "ROCR_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
    ),
    *(
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "VLLM_LOGGING_LEVEL",
        "XDG_CACHE_HOME",
    ),
    *(
        "XDG_CACHE_HOME",
        "https_proxy",
        "HTTP_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "TOKENIZERS_PARALLELISM",
        "PARALLAX_OFFLINE",
    ),
)
KEYS = (
    *("PARALLAX_API_KEY", "PARALLAX_JOIN__SERVER", "PARALLAX_SERVE__API_KEY_FILE", "VLLM_API_KEY", "SGLANG_API_KEY"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "PIP_INDEX_URL"),
    *("PARALLAX_WORD", "XDG_PASSWORD", "hf_secret", "DATABASE_URL"),
)


@pytest.mark.parametrize("name", [*NEEDED, *OF_ENGINES])
def test_engine_has_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert engine_environment()[name] == "x"


@pytest.mark.parametrize("name", KEYS)
def test_engine_has_no_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in engine_environment()


@pytest.mark.parametrize("name", [*NEEDED, *OF_ENGINES, "HF_TOKEN", "PARALLAX_MLX__KERNEL", "MY_OWN"])
def test_worker_has_what_fetching_and_computing_need(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert worker_environment()[name] == "x"


SERVERS = ("PARALLAX_API_KEY", "PARALLAX_JOIN__SERVER", "PARALLAX_RUN__STANDBY_OF", "PARALLAX_X_TOKEN")


@pytest.mark.parametrize("name", SERVERS)
def test_worker_has_nothing_that_lets_it_use_or_join_a_server(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in worker_environment()
