"""``python -m parallax_core.cli``: the command line of the interpreter that is asked."""

from parallax_core.cli import main

main()
