"""MLX calls the BLAS we gave it, and only that one; and whatever goes wrong, it runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import parallax_backend_mlx
from parallax_backend_mlx.openblas import find_file, prepare_library
from parallax_core.api import Machine, Unsupported

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="machines with Metal have a BLAS of their own")

CHOOSE = """
from parallax_backend_mlx.settings import PROCESS
PROCESS.blas = {blas!r}
"""
OPEN = """
from pathlib import Path
from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.symbol_owner import find_library, find_owner
from parallax_core.api import StagePlan
stage = MlxBackend().open_stage(StagePlan(model=Path({folder!r})))
mlx = find_library("libmlx.so")
print(stage.info.device, find_owner(mlx, "cblas_sgemm").name, find_owner(mlx, "sgesdd_").name, sep="|")
"""


def open_apart(folder: Path, home: Path, blas: str, first: str = "") -> tuple[list[str], str]:
    """Open a stage in a process of its own; return its device, the owners of two functions, and what it logged."""
    environment = os.environ | {"PARALLAX_HOME": str(home)}
    command = [sys.executable, "-c", CHOOSE.format(blas=blas) + first + OPEN.format(folder=str(folder))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip().split("|"), done.stderr


def test_mlx_calls_our_copy_of_openblas_and_keeps_its_lapack(llama: Path, tmp_path: Path) -> None:
    (device, product, lapack), _ = open_apart(llama, tmp_path, "auto")
    assert device.startswith("cpu (OpenBLAS ")
    assert product.startswith("openblas-")
    assert (tmp_path / "cache" / "blas" / product).exists()
    assert lapack.startswith("liblapack")


def test_mlx_calls_its_own_blas_when_ours_is_off(llama: Path, tmp_path: Path) -> None:
    (device, product, _), logged = open_apart(llama, tmp_path, "off")
    assert device == "cpu (bundled BLAS)"
    assert product.startswith("libblas")
    assert "BLAS" not in logged
    assert not (tmp_path / "cache" / "blas").exists()


def test_blas_may_be_named(llama: Path, tmp_path: Path) -> None:
    library = prepare_library(make_private(tmp_path / "mine"))
    (device, product, _), _ = open_apart(llama, tmp_path, str(library))
    assert device.startswith("cpu (OpenBLAS ")
    assert product == library.name


@pytest.mark.parametrize("name", ["nosuch.so", "libscipy_openblas.so"])
def test_unusable_blas_is_a_warning_and_mlx_runs(llama: Path, tmp_path: Path, name: str) -> None:
    """The second library is there, and exports no plain names."""
    library = find_file("scipy-openblas32", name) if name.startswith("lib") else tmp_path / name
    (device, product, _), logged = open_apart(llama, tmp_path, str(library))
    assert device == "cpu (bundled BLAS)"
    assert product.startswith("libblas")
    assert "fast BLAS not loaded" in logged


def test_blas_after_mlx_is_said_to_be_too_late(llama: Path, tmp_path: Path) -> None:
    (device, _, _), logged = open_apart(llama, tmp_path, "auto", first="import mlx.core")
    assert device == "cpu (bundled BLAS)"
    assert "imported before" in logged


def make_private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def test_copy_is_made_once_and_only_ours_to_touch(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "blas")
    library = prepare_library(folder)
    assert library.stat().st_mode & 0o777 == 0o600
    made = library.stat().st_mtime_ns
    assert prepare_library(folder) == library
    assert library.stat().st_mtime_ns == made
    assert list(folder.iterdir()) == [library]


def test_damaged_copy_is_made_again(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "blas")
    library = prepare_library(folder)
    content = library.read_bytes()
    library.write_bytes(content[:-1] + b"!")
    assert prepare_library(folder).read_bytes() == content


def test_copy_others_could_have_written_is_made_again(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "blas")
    library = prepare_library(folder)
    library.chmod(0o666)
    assert prepare_library(folder).stat().st_mode & 0o022 == 0
    target = library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(target)
    assert not prepare_library(folder).is_symlink()


def test_folder_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "blas")
    folder.chmod(0o777)
    with pytest.raises(Unsupported, match="other users can write"):
        prepare_library(folder)


def list_imports(source: Path) -> set[str]:
    """Return the top-level names of what a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_one_module_alone_imports_mlx() -> None:
    folder = Path(str(parallax_backend_mlx.__file__)).parent
    importers = {path.name for path in folder.glob("*.py") if list_imports(path) & {"mlx", "mlx_lm"}}
    assert importers == {"runtime.py"}


THREADS = """
import ctypes
from parallax_backend_mlx.blas import activate
print(ctypes.CDLL(str(activate().path)).scipy_openblas_get_num_threads())
"""


@pytest.mark.parametrize("wanted", ["1", "2", None])
def test_openblas_leaves_a_core_unless_told_otherwise(wanted: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    if wanted:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", wanted)
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == (min(int(wanted), cores) if wanted else max(1, min(cores, Machine().count_cores()) - 1))
