"""Whether this machine can run the backend, found out without importing NumPy."""

from importlib.util import find_spec

from parallax_core.api import Availability


def find_numpy() -> Availability:
    """Look for NumPy; any CPU will do."""
    ok = find_spec("numpy") is not None
    return Availability(ok=ok, device="cpu", reason="" if ok else "NumPy is not installed: pip install numpy")
