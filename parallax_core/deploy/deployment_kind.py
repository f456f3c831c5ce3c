"""Calls the functions of a kind of deployment; see `DeploymentSpec`.

What a server is planned with is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from parallax_core.base.errors import BrokenPlugin, ParallaxError
from parallax_core.base.refs import Ref
from parallax_core.contracts.deployment import DeploymentSpec
from parallax_core.plugins.registry import Offer
from parallax_core.plugins.remedy import describe_error

FIXED, FOUND = "fixed", "found"
"""The kind of stages that the user chose, which is core's, and the one that ``--find`` and ``--announce`` are for."""

R = TypeVar("R")
A = TypeVar("A")


def call(offer: Offer[DeploymentSpec], ref: Ref[Callable[[A], R]], argument: A) -> R:
    """Call a function of a kind of deployment.

    Raises:
        BrokenPlugin: if it cannot be imported, or raises anything but a ParallaxError.
        ParallaxError: whatever it raises.
    """
    function = offer.load(ref)
    try:
        return function(argument)
    except ParallaxError:
        raise
    except Exception as error:
        message = f"the deployment {offer.spec.name!r} of {offer.plugin.origin} failed: {describe_error(error)}"
        raise BrokenPlugin(message, "report it to its authors") from error
