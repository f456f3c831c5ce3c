"""What a command that makes the environments of engines uses."""

from parallax_core.config.home import engines_folder
from parallax_core.deploy.engine_environment import (
    NOTE,
    EngineEnvironment,
    EngineNote,
    find_distribution,
    find_environment,
    find_python,
    is_supported,
)
from parallax_core.models.backends import probe
from parallax_core.plugins.registry import Offer

__all__ = [
    "NOTE",
    "EngineEnvironment",
    "EngineNote",
    "Offer",
    "engines_folder",
    "find_distribution",
    "find_environment",
    "find_python",
    "is_supported",
    "probe",
]
