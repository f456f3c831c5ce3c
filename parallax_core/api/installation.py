"""What commands that show, check and manage an installation use."""

from parallax_core.base.errors import PluginConflict
from parallax_core.cli import COMMANDS, HIDDEN
from parallax_core.cli.old_commands import run_moved
from parallax_core.cli.pip_hint import localize_here
from parallax_core.cli.plugin_commands import choose_point, examine_command, extend, find_commands
from parallax_core.config.config import Setting
from parallax_core.models.generation_config import RequestDefaults
from parallax_core.models.stage_tensors import describe_layers, format_layers
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.output import divert_output

__all__ = [
    "COMMANDS",
    "HIDDEN",
    "ModelTokenizer",
    "PluginConflict",
    "PluginRecord",
    "RequestDefaults",
    "Setting",
    "choose_point",
    "describe_layers",
    "divert_output",
    "examine_command",
    "extend",
    "find_commands",
    "format_layers",
    "localize_here",
    "run_moved",
]
