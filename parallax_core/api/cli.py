"""Tools for commands: options from settings, tables, progress and running servers."""

from parallax_core.base.errors import UsageError
from parallax_core.base.processes import end_with_parent
from parallax_core.cli import main as run_program
from parallax_core.cli.command import new_app
from parallax_core.cli.contacts import Contacts, tell_contacts
from parallax_core.cli.lazy import lazy_app
from parallax_core.cli.next_command import DEFAULT_URL
from parallax_core.cli.option import ConfigFile, from_section
from parallax_core.cli.progress import Display, make_display
from parallax_core.cli.progress import describe as describe_progress
from parallax_core.cli.screen import Look, open_display, watching
from parallax_core.cli.table import align, print_table
from parallax_core.cli.tell import tell
from parallax_core.config.config import Config
from parallax_core.config.marks import ADVANCED
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.remedy import normalize

__all__ = [
    "ADVANCED",
    "DEFAULT_URL",
    "Config",
    "ConfigFile",
    "Contacts",
    "Display",
    "Look",
    "PluginHost",
    "UsageError",
    "align",
    "describe_progress",
    "end_with_parent",
    "from_section",
    "lazy_app",
    "make_display",
    "new_app",
    "normalize",
    "open_display",
    "print_table",
    "run_program",
    "tell",
    "tell_contacts",
    "watching",
]
