"""Which backend is chosen, and what a probe that misbehaves costs."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from parallax_core.api import Availability, BackendSpec, ModelSpec, Ref, hookimpl
from parallax_core.base.errors import ParallaxError, PluginConflict
from parallax_core.models.backends import choose_backend, find_backends, probe
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

END = threading.Event()


def fit() -> Availability:
    print("noise")
    return Availability(ok=True, device="d")


def unfit() -> Availability:
    return Availability(ok=False, reason="no such device")


def hang() -> Availability:
    END.wait(60)
    return fit()


def explode() -> Availability:
    raise OSError("boom")


def leave() -> Availability:
    raise SystemExit(1)


def lie() -> object:
    return True


def make_host(probes: Mapping[str, str], **hooks: Callable[..., Any]) -> PluginHost:
    """Return a host of one plugin that offers backends, ranked in reverse order."""
    return PluginHost([make_plugin("p", probes, **hooks)])


def make_plugin(
    plugin: str, probes: Mapping[str, str], **hooks: Callable[..., Any]
) -> tuple[PluginRecord, types.SimpleNamespace]:
    specs = [
        BackendSpec(name=name, summary="s", probe=Ref(f"{__name__}:{each}"), factory=Ref("no:thing"), rank=-rank)
        for rank, (name, each) in enumerate(probes.items())
    ]
    made = {"parallax_register_backends": hookimpl(lambda: specs)}
    made |= {f"parallax_{hook}": hookimpl(function) for hook, function in hooks.items()}
    record = PluginRecord(name=plugin, distribution=plugin, version="1", module=plugin, state="loaded")
    return record, types.SimpleNamespace(**made)


def names(host: PluginHost, name: str | None = None) -> list[str]:
    return [offer.spec.name for offer in find_backends(host, name)]


def test_backends_that_can_run_come_best_rank_first() -> None:
    host = make_host({"one": "unfit", "two": "fit", "three": "explode", "four": "fit"})
    assert names(host) == ["two", "four"]
    assert names(host, "four") == ["four"]
    with pytest.raises(ParallaxError, match="backend 'one' cannot run here: no such device"):
        names(host, "one")
    with pytest.raises(ParallaxError, match="no installed backend can run"):
        names(make_host({"one": "unfit"}))


def test_conflict_costs_nothing_but_the_name() -> None:
    host = PluginHost(
        [make_plugin("p", {"best": "fit", "twin": "fit"}), make_plugin("q", {"none": "unfit", "twin": "fit"})]
    )
    assert names(host) == ["best"]
    with pytest.raises(PluginConflict, match="backend 'twin' is offered by both p 1 and q 1"):
        names(host, "twin")


def test_conflict_about_the_best_is_an_error_if_it_can_run() -> None:
    rest = make_plugin("r", {"none": "unfit", "last": "fit"})
    host = PluginHost([make_plugin("p", {"twin": "fit"}), make_plugin("q", {"twin": "fit"}), rest])
    with pytest.raises(PluginConflict, match="backend 'twin' is offered by both p 1 and q 1"):
        names(host)
    assert names(host, "last") == ["last"]
    ill = PluginHost([make_plugin("p", {"twin": "unfit"}), make_plugin("q", {"twin": "unfit"}), rest])
    assert names(ill) == ["last"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("explode", "the probe of p 1 failed: OSError: boom"),
        ("leave", "the probe of p 1 failed: it tried to end the process: SystemExit(1)"),
        ("lie", "the probe of p 1 failed: TypeError: its probe returned True"),
        ("missing", "'x' of p 1 cannot be loaded: AttributeError"),
    ],
)
def test_probe_that_fails_is_a_no_with_the_reason(how: str, reason: str) -> None:
    found = probe(make_host({"x": how}).backends().get("x"))
    assert not found.ok
    assert found.reason.startswith(reason)


def test_probe_that_hangs_is_a_no_in_time() -> None:
    began = time.monotonic()
    found = probe(make_host({"x": "hang"}).backends().get("x"), limit_s=0.2)
    assert time.monotonic() - began < 5
    assert found.reason == "the probe of p 1 did not end within 0.2 s"
    END.set()


def test_probe_prints_nothing_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(make_host({"x": "fit"}).backends().get("x")).ok
    out, err = capsys.readouterr()
    assert out == ""
    assert "noise\n" in err  # and maybe that of a probe that hung before


def test_plugin_chooses_among_what_can_run_before_ranks_do() -> None:
    def choose(model_config: Mapping[str, Any], available: Sequence[str]) -> str | None:
        return model_config.get("wants") if "three" not in available else "never"

    host = make_host({"one": "fit", "two": "fit", "three": "unfit"}, select_backend=choose)
    offers = find_backends(host, None)
    assert choose_backend(host, offers, {"wants": "two"}).spec.name == "two"
    assert choose_backend(host, offers, {}).spec.name == "one"
    assert choose_backend(host, offers, {"wants": "three"}).spec.name == "one"


def test_plugin_that_chooses_knows_for_which_backends_the_adapter_has_blocks() -> None:
    seen: list[Sequence[str]] = []
    blocks: dict[str, Ref[Any]] = {"two": Ref("no.such:thing"), "absent": Ref("no.such:thing")}
    spec = ModelSpec(name="m", summary="s", architectures=("Tiny",), adapter=Ref("no.such:thing"), blocks=blocks)

    def choose(with_blocks: Sequence[str]) -> None:
        seen.append(with_blocks)

    host = make_host({"one": "fit", "two": "fit"}, register_models=lambda: [spec], select_backend=choose)
    for config in ({"architectures": ["Tiny"]}, {"architectures": ["Stranger"]}):
        assert choose_backend(host, find_backends(host, None), config).spec.name == "one"
    assert seen == [("two",), ()]
