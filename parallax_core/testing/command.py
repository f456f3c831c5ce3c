"""The kit for commands of plugins: their line of help, their options, and their settings.

Subclass it in a test module under a name that begins with ``Test``, and give the place of the application as the entry
point has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperGroup
from typer.exceptions import TyperException

from parallax_core.cli.lazy import load_app
from parallax_core.cli.module_summary import read_summary
from parallax_core.config.schema import list_keys
from parallax_core.testing.promise import broken

MOST_LINE = 80
"""The most characters of the line that lists a command."""
NOTHING = "--an-option-that-nothing-has"
LINE = "The first line of the docstring of its module lists it, and is read without importing it"
DOES = "Each of its commands says what it does"
HELPED = "every option that is shown says what it is for"
PLAIN = "with plain help: rich help and completion of its own would slow every start down"
LIGHT = "Its import brings no framework: what computes is imported when it runs"
REFUSES = "An option that it does not have is a wrong usage, with exit code 2"
KEYS = "every key of the section is an option, and says what it means"

IMPORTS = """
import sys
from parallax_core.cli.lazy import load_app
load_app(sys.argv[1])
print(*sorted({each.partition(".")[0] for each in sys.modules}))
"""
USAGE = 2
HEAVY = {"fastapi", "mlx", "torch", "transformers", "vllm", "sglang"}


class CommandConformance:
    """Tests for an application that a distribution offers in ``parallax.commands``."""

    place: str
    """Where it is, as ``package.module:app``."""
    sections: Sequence[type[Any]] = ()
    """The settings sections of which its options are made, each as its dataclass."""

    def list_commands(self) -> Iterator[tuple[str, Any]]:
        """Yield the command and its sub-commands, each with its name."""
        yield from walk(load_app(self.place), "command")

    def test_list_of_commands_has_a_line_for_it(self) -> None:
        """A sentence that fits beside the name."""
        line = read_summary(self.place.partition(":")[0])
        assert line, broken(f"the module of {self.place} has no docstring to list the command by", LINE)
        assert len(line) <= MOST_LINE, broken(f"the line has {len(line)} characters, of {MOST_LINE} at most", LINE)

    def test_help_of_each_command_says_what_it_does(self) -> None:
        """A description of each command, and of each option that is shown."""
        for name, command in self.list_commands():
            assert command.help, broken(f"{name} has no help", DOES)
            for each in command.params:
                is_hidden = getattr(each, "hidden", False)
                fault = f"{each.name} of {name} has no help"
                assert is_hidden or getattr(each, "help", None), broken(fault, HELPED)

    def test_help_is_plain(self) -> None:
        """No rich help, no completion of its own."""
        for name, command in self.list_commands():
            assert command.rich_markup_mode is None, broken(f"the help of {name} is rich", PLAIN)
            own = [each for each in command.params if each.name in {"install_completion", "show_completion"}]
            assert not own, broken(f"{name} has options for completion of its own", PLAIN)

    def test_help_needs_no_framework(self) -> None:
        """The application is imported for its help: what computes is imported when it runs."""
        command = [sys.executable, "-c", IMPORTS, self.place]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert done.returncode == 0, broken(f"it cannot be imported alone: {done.stderr[-300:]}", LIGHT)
        heavy = sorted(HEAVY & set(done.stdout.split()))
        assert not heavy, broken(f"its import brings {', '.join(heavy)}", LIGHT)

    def test_option_that_it_does_not_have_is_a_wrong_usage(self) -> None:
        """Exit code 2, also of sub-commands."""
        for name, command in self.list_commands():
            assert find_exit_code(command, [NOTHING]) == USAGE, broken(f"{name} takes {NOTHING}", REFUSES)

    def test_keys_of_its_sections_are_options_with_meanings(self) -> None:
        """Each key says what it means, and is an option, listed or not."""
        options = {each.name for _, command in self.list_commands() for each in command.params}
        for section in self.sections:
            for name, key in list_keys(section).items():
                assert key.description, broken(f"the key {name} of {section.__name__} does not say what it means", KEYS)
                assert name in options, broken(f"the key {name} of {section.__name__} is no option", KEYS)


def find_exit_code(command: Any, arguments: list[str]) -> int:  # noqa: ANN401 -- the type is private to typer
    """Return the exit code of a command that is given these arguments; 0 if they are understood."""
    try:
        command.make_context("command", arguments)
    except TyperException as error:
        return error.exit_code
    return 0


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 -- the type is private to typer
    """Yield a command and those below it, each with its name."""
    yield name, command
    if isinstance(command, TyperGroup):
        context: Any = None
        for each in command.list_commands(context):
            yield from walk(command.get_command(context, each), f"{name} {each}")
