"""What a reader types who follows a page from its top, in each terminal of each machine, and what has to appear.

The machines of a walk are homes and folders on this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.shell import CTRL_C

GOES_ON = r'(?s)\."\s.{600}'
"""More of an answer to a question than there was when a machine went."""
READY = "ready http://127.0.0.1:8000/v1 model=smollm2-135m"


@dataclass(frozen=True, slots=True)
class Step:
    """A command, typed in a terminal of a machine, such as ``studio`` or ``studio/2``."""

    terminal: str
    command: str
    """How it begins on the page; empty: nothing is typed. PID is that of the node in the machine's first terminal, and
    HINTED the command that a hint has named."""
    until: str = ""
    """A pattern of what it shows, and goes on after that; empty: it has to end."""
    shows: str = ""
    """What it has shown by then."""
    asks: str = ""
    """A pattern of what it asks for, which a terminal has shown."""
    is_prose: bool = False
    """Whether it is in no block of the page: it is in its text, or what the page takes for granted."""

    @property
    def machine(self) -> str:
        """The machine of the terminal."""
        return self.terminal.partition("/")[0]


def _install(machine: str) -> Iterator[Step]:
    yield Step(machine, "python3 -m venv --upgrade-deps parallax-env")
    yield Step(machine, ". parallax-env/bin/activate")
    yield Step(machine, "pip install dist/parallax_{core,", shows="Successfully installed")


def _open(terminal: str) -> Step:
    return Step(terminal, ". parallax-env/bin/activate")


def typed(terminal: str, command: str, until: str = "", shows: str = "") -> Step:
    """Return a step that is in no block of the page."""
    return Step(terminal, command, until, shows, is_prose=True)


def end(terminal: str) -> Step:
    """Return the end of what runs in a terminal."""
    return typed(terminal, CTRL_C)


README = (
    Step("clone", "make serve", until=READY, shows=": loading smollm2-135m with mlx on "),
    Step("clone/2", ".venv/bin/parallax chat", shows="Paris"),
    Step("clone/2", ".venv/bin/pip install openai", is_prose=True),
    Step("clone/2", "import openai", shows="Paris"),
    end("clone"),
    typed("clone", ".venv/bin/pip install torch==2.13.0", shows="Successfully installed"),
    Step("clone", "make serve BACKEND=torch", until=READY, shows=": loading smollm2-135m with torch on "),
    Step("clone/2", ".venv/bin/parallax chat", shows="Paris"),
    end("clone"),
    Step("clone", "make wheels", shows="parallax_backend_mlx-"),
    *_install("desk"),
    Step("desk", "parallax serve", until=READY),
    _open("desk/2"),
    Step("desk/2", "parallax models list", shows="smollm2-135m", is_prose=True),
    Step("desk/2", "parallax doctor", shows="ok", is_prose=True),
    end("desk"),
)
THREE_MACHINES = (
    *(step for machine in ("studio", "mini", "laptop") for step in _install(machine)),
    Step("studio", "parallax run smollm2-135m --memory 0.4", until="it waits: the model needs"),
    Step("mini", "parallax join --memory 0.4 plx1", until="of smollm2-135m: 0 requests"),
    Step("studio", "", until=READY),
    Step("laptop", "parallax join --memory 0.4 plx1", until="joined the server at"),
    _open("mini/2"),
    Step("mini/2", 'parallax chat "Why is the sky blue?"', shows="sky"),
    Step("mini/2", "parallax nodes", shows="predicted: "),
    _open("studio/2"),
    Step("studio/2", "parallax nodes --show-code", shows="to join: parallax join plx1", is_prose=True),
    Step("studio/2", 'parallax chat "Write a long story about a lighthouse."', until=r'\."\s+\w', is_prose=True),
    end("laptop"),
    Step("studio/2", "", until=GOES_ON),
    end("studio/2"),
    Step("laptop", "parallax join", until="joined the server at"),
    end("laptop"),
    Step("laptop", "parallax join tcp://10.0.0.5:9000", until="joined the server at", is_prose=True),
    *(end(machine) for machine in ("laptop", "mini", "studio")),
)
TWO_MACHINES = (
    *(step for machine in ("studio", "mini") for step in _install(machine)),
    Step("studio", "parallax keys new"),
    Step("studio", "parallax keys token", shows="parallax-join-"),
    Step("mini", "parallax keys join -", asks=r"parallax-join-\w+"),
    Step("studio", "parallax serve smollm2-135m --stages 2 --listen", until="run: parallax worker --connect tcp://"),
    _open("studio/2"),
    Step("studio/2", "parallax worker --connect", until="joined head=head"),
    Step("mini", "parallax worker --connect", until="joined head=head"),
    Step("studio", "", until=READY),
    _open("studio/3"),
    Step("studio/3", 'parallax chat --temperature 0 "What is', shows="The capital of France is Paris."),
    Step("studio/3", "parallax status", shows="replica 0: ready"),
    _open("mini/2"),
    Step("mini/2", "parallax worker --connect", until="joined head=head"),
    Step("studio/3", 'parallax chat --temperature 0 "Write a long', until="The lighthouse was"),
    Step("mini/3", "kill -9 PID", is_prose=True),
    Step("studio/3", "", until=GOES_ON),
    end("studio/3"),
    *(end(terminal) for terminal in ("studio", "studio/2", "mini/2")),
)
WALKS = {
    "README.md": README,
    "docs/tutorials/three-machines.md": THREE_MACHINES,
    "docs/tutorials/two-machines.md": TWO_MACHINES,
}
"""The steps of each page that begins with nothing installed."""
