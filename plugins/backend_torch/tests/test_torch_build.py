"""How the kernels are compiled: for the machine the compiler is for, and loudly when that fails."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.support.hatch import load_build


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the build hook, in an environment that says nothing of compilers."""
    for name in ("CXX", "PARALLAX_BUILD_KERNELS", "_PYTHON_HOST_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    return load_build()


def make_cross_compiler(folder: Path) -> Path:
    """Make what says that it compiles for ARM."""
    compiler = folder / "aarch64-linux-gnu-c++"
    compiler.write_text("#!/bin/sh\n[ $1 = -dumpmachine ] && echo aarch64-linux-gnu\n")
    compiler.chmod(0o755)
    return compiler


def test_kernels_that_do_not_compile_are_an_error(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "c++ -include no-such-header.h")
    with pytest.raises(RuntimeError, match=r"PARALLAX_BUILD_KERNELS=off(.|\n)*no-such-header"):
        build.compile_library(tmp_path / "native.so")
    assert not list(tmp_path.iterdir())


def test_kernels_without_a_compiler_are_left_out_and_that_is_said(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not build.compile_library(tmp_path / "native.so")
    assert "there is no C++ compiler; torch will compute, more slowly" in capsys.readouterr().err


def test_kernels_that_are_required_need_a_compiler(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARALLAX_BUILD_KERNELS", "require")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"there is no C\+\+ compiler; install one"):
        build.compile_library(tmp_path / "native.so")


def test_compiler_that_is_named_must_be_there(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(RuntimeError, match="no-such-compiler, which does not exist"):
        build.find_compiler()


def test_kernels_that_are_not_wanted_are_not_tried(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARALLAX_BUILD_KERNELS", "off")
    assert not build.compile_library(tmp_path / "native.so")
    assert "PARALLAX_BUILD_KERNELS is off" in capsys.readouterr().err


def test_build_mode_that_is_none_is_refused(build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARALLAX_BUILD_KERNELS", "maybe")
    with pytest.raises(RuntimeError, match="'maybe', and can be auto, require or off"):
        build.compile_library(tmp_path / "native.so")


def test_instructions_are_those_of_the_machine_compiled_for(build: ModuleType, tmp_path: Path) -> None:
    machine = build.find_machine([str(make_cross_compiler(tmp_path))])
    assert machine == "aarch64"
    flags = [flag for _, flags in build.list_units(machine) for flag in flags]
    assert {"-DPLX_ISA=plain", "-DPLX_ISA=neon", "-march=armv8.2-a+dotprod+i8mm+bf16"} <= set(flags)
    assert not any("avx" in flag for flag in flags)
    others = [flag for _, flags in build.list_units("x86_64") for flag in flags]
    assert any("avx" in flag for flag in others)
    assert not any("neon" in flag.lower() or "armv8" in flag for flag in others)


def test_wheel_for_another_machine_has_to_say_so(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-x86_64")
    assert build.find_platform("x86_64").endswith("x86_64")
    with pytest.raises(RuntimeError, match=r"code for aarch64, .*_PYTHON_HOST_PLATFORM=linux-aarch64"):
        build.find_platform("aarch64")
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    assert build.find_platform("aarch64").endswith("aarch64")
