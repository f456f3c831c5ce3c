"""``parallax chat`` against small servers that misbehave; the real server is asked in tests/e2e."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from parallax_chat.answer import AnswerPiece
from parallax_chat.complete import continue_text
from parallax_chat.conversation import Conversation
from parallax_core.api import ParallaxError
from tests.support.peer import Peer


def test_answer_that_breaks_off_is_no_answer(peer: Peer) -> None:
    peer.body = b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
    talk = Conversation(peer.client, "m", {})
    pieces = talk.ask("hello")
    assert next(pieces) == AnswerPiece("half")
    with pytest.raises(ParallaxError, match="ended the connection"):
        next(pieces)
    assert talk.turns == []


def test_conversation_remembers_finished_turns_and_clears_all_but_instructions(peer: Peer) -> None:
    peer.body = b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n'
    talk = Conversation(peer.client, "m", {})
    talk.begin("be brief")
    assert list(talk.ask("really?")) == [AnswerPiece("yes")]
    assert [turn["role"] for turn in talk.turns] == ["system", "user", "assistant"]
    talk.clear()
    assert talk.turns == [{"role": "system", "content": "be brief"}]


def test_reasoning_is_told_apart_and_not_kept(peer: Peer) -> None:
    peer.body = (
        b'data: {"choices": [{"delta": {"role": "assistant", "reasoning": "hm"}}]}\n\n'
        b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n'
    )
    talk = Conversation(peer.client, "m", {})
    assert list(talk.ask("really?")) == [AnswerPiece("hm", is_reasoning=True), AnswerPiece("yes")]
    assert talk.turns[-1] == {"role": "assistant", "content": "yes"}


def test_continuation_is_printed_as_it_is(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.models = b'{"data": [{"id": "m"}]}'
    peer.body = b'data: {"choices": [{"text": " upon"}]}\n\ndata: {"choices": [{"text": " a\\n"}]}\n\ndata: [DONE]\n\n'
    continue_text(peer.client, "Once", {"stop": ["."]})
    assert capsys.readouterr().out == " upon a\n"
    assert json.loads(peer.asked) == {"model": "m", "prompt": "Once", "max_tokens": 128, "stop": ["."], "stream": True}


TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from parallax_core.cli import main
sys.argv = ["parallax", "chat", "--url", sys.argv[1]]
main()
"""
"""Has its standard input be the terminal that signals come from."""


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, url: str) -> None:
        self._keeper, terminal = pty.openpty()
        command = [sys.executable, "-c", TERMINAL, url]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        )
        os.close(terminal)
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._keeper, keys.encode())

    def until(self, text: str) -> None:
        """Wait until ``text`` is shown, and forget what was shown up to there."""
        while text not in self._shown:
            self._shown += os.read(self._keeper, 4096).decode()
        self._shown = self._shown.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keeper)


@pytest.mark.timeout(60)
def test_command_that_is_none_is_not_sent_to_the_model(peer: Peer) -> None:
    peer.body = b'{"data": [{"id": "m"}]}'
    peer.stream = b'data: {"choices": [{"delta": {"content": "once upon"}}]}\n\ndata: [DONE]\n\n'
    terminal = Terminal(peer.url)
    try:
        terminal.until("> ")
        terminal.type("/helf\n")
        terminal.until("there is no command /helf: Ctrl-C stops an answer, Ctrl-D ends the chat")
        terminal.until("> ")
        terminal.type("/etc/passwd\n")
        terminal.until("once upon")
    finally:
        terminal.close()


@pytest.mark.timeout(60)
def test_terminal_shows_reasoning_dimmed_and_takes_several_lines(peer: Peer) -> None:
    peer.body = b'data: {"choices": [{"delta": {"reasoning": "hm"}}]}\n\n'
    peer.body += b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n'
    peer.models = b'{"data": [{"id": "m"}]}'
    terminal = Terminal(peer.url)
    try:
        terminal.until("> ")
        terminal.type('"""one\n')
        terminal.until("... ")
        terminal.type('two"""\n')
        terminal.until("\x1b[2mhm\x1b[0m\r\n\r\nyes")
        terminal.until("> ")
        assert json.loads(peer.asked)["messages"] == [{"role": "user", "content": "one\ntwo"}]
        terminal.type("/quit\n")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()


@pytest.mark.timeout(60)
def test_command_typed_during_an_answer_outlives_the_interrupt_that_stops_it(peer: Peer) -> None:
    peer.body = b'{"data": [{"id": "m"}]}'
    peer.stream = b'data: {"choices": [{"delta": {"content": "once upon"}}]}\n\n'
    terminal = Terminal(peer.url)
    try:
        terminal.until("> ")
        terminal.type("tell me\n")
        terminal.until("once upon")
        terminal.type("/clear\n")
        terminal.until("/clear")
        terminal.type("\x03")
        terminal.until("...stopped")
        terminal.until("> /clear")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()
