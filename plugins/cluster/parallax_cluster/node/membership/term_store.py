"""Keeps which cluster a coordinator of this machine has, and its term, in a file."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from parallax_cluster.membership.standby_state import StandbyState, read_state, write_state
from parallax_cluster.membership.succession import FIRST_TERM
from parallax_cluster.membership.term_proof import read_proof
from parallax_core.api import ParallaxError
from parallax_core.api.node import replace_file

logger = logging.getLogger(__name__)

CLUSTER_BYTES = 16
"""The bytes of the number that names a cluster."""


class TermStore:
    """The file in which a machine keeps the state of its coordinator."""

    def __init__(self, path: Path) -> None:
        """Keep it in ``path``."""
        self._path = path

    def find(self) -> StandbyState | None:
        """Return the state of the coordinator of this machine; None: there was none.

        Raises:
            ParallaxError: if the file cannot be read.
        """
        try:
            state = read_state(self._path.read_bytes())
            for proof in filter(None, (state.proof, state.newer)):
                read_proof(proof)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ParallaxError(
                f"the state of the coordinator in {self._path} cannot be read: {error}",
                "without that file, a new cluster begins: its machines need new join codes",
            ) from error
        return state

    def begin(self, model: str) -> StandbyState:
        """Return the state of the coordinator of this machine, which is new if there was none."""
        found = self.find()
        if found is None:
            found = StandbyState(cluster=secrets.token_bytes(CLUSTER_BYTES), term=FIRST_TERM, model=model)
            try:
                self.keep(found)
            except ParallaxError as error:  # it serves all the same
                logger.warning("%s; after a restart of the server its machines need new join codes", error.message)
        return found

    def keep(self, state: StandbyState) -> None:
        """Keep a state.

        Raises:
            ParallaxError: if it cannot be written.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, write_state(state))
        except OSError as error:
            raise ParallaxError(f"the state of the coordinator cannot be kept: {error}", "is the disk full?") from error
