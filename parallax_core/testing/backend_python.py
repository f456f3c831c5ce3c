"""The kit for plugins that find the Python of a backend.

Subclass it in a test module under a name that begins with ``Test``, and give the hook, and a backend that has an
environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.base.refs import Ref
from parallax_core.contracts.backend import BackendPython, BackendSpec
from parallax_core.deploy.interpreter import check_python
from parallax_core.testing.promise import broken

STRANGER = BackendSpec(name="stranger", summary="s", probe=Ref[Any]("no:probe"), factory=Ref[Any]("no:factory"))
"""A backend without an environment."""
NONE = "or None if you have no environment for the backend"
NAMED = "The Python, also if it cannot be used, with the reason"
PATH = "Its absolute path"
FAULT = "Why it cannot run them, in a sentence; empty: nothing is known against it"
REMEDY = "How to correct that, such as a command; empty without a fault"


class BackendPythonConformance:
    """Tests for an implementation of `parallax_find_python`."""

    def find(self, backend: BackendSpec) -> BackendPython | None:
        """Call the hook."""
        raise NotImplementedError

    def make_environment(self, folder: Path) -> BackendSpec:
        """Make an environment that runs this Parallax, have the hook find it, and return its backend."""
        raise NotImplementedError

    def spoil_environment(self, folder: Path) -> None:
        """Make the environment unfit for its backend, such as by a release of an engine that it does not support."""
        raise NotImplementedError

    def test_backend_of_others_is_left_to_them(self, tmp_path: Path) -> None:
        """None for a backend that it knows nothing of, though it has an environment for another."""
        self.make_environment(tmp_path)
        found = self.find(STRANGER)
        assert found is None, broken(f"it named {found!r} for a backend that it does not know", NONE)

    def test_python_of_its_backend_runs_this_parallax(self, tmp_path: Path) -> None:
        """An absolute path, to a Python that core's own check accepts."""
        found = self.find(self.make_environment(tmp_path))
        assert isinstance(found, BackendPython), broken(f"it answered {found!r}", NAMED)
        assert Path(found.path).is_absolute(), broken(f"it named {found.path!r}", PATH)
        said = found.fault or found.remedy
        assert not said, broken(f"it said of a Python that can be used: {said}", FAULT)
        try:
            check_python(found.path, "toy")
        except UsageError as error:
            raise AssertionError(broken(error.message, FAULT)) from error

    def test_python_that_cannot_be_used_is_named_with_the_reason_and_a_remedy(self, tmp_path: Path) -> None:
        """A fault, and what to do about it."""
        backend = self.make_environment(tmp_path)
        self.spoil_environment(tmp_path)
        found = self.find(backend)
        assert isinstance(found, BackendPython), broken(f"it answered {found!r}", NAMED)
        assert found.fault, broken("it did not say what is wrong with an environment that cannot be used", FAULT)
        assert found.remedy, broken(f"it named no remedy for: {found.fault}", REMEDY)
