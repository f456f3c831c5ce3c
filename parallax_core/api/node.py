"""What services of nodes use: links to other nodes, messages of core, tasks and processes."""

from parallax_core.base.disk import FaultLog
from parallax_core.base.environment import worker_environment
from parallax_core.base.errors import SHUTTING_DOWN, EngineFailed
from parallax_core.base.faults import describe_error
from parallax_core.base.files import replace_file
from parallax_core.base.ids import Epoch
from parallax_core.base.log import configure as configure_log
from parallax_core.base.processes import end_with_parent
from parallax_core.base.taskgroup import FailFastGroup, run_in_turns, wait_for_ever
from parallax_core.base.tasks import WatchedWork
from parallax_core.node.backoff import Backoff
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.handshake import greet, open_channel, welcome
from parallax_core.node.paths import RETRY_S, Path, Paths
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.tunnel import Tunnel, end_stream
from parallax_core.node.versions import check_machine, write_own_versions
from parallax_core.node.worker.stop import run_until_signal
from parallax_core.plugins.output import claim_output, divert_output
from parallax_core.server.bind import bind_socket, explain_bind_error
from parallax_core.server.error_body import write_unavailable
from parallax_core.wire.api_data import MOST_API_DATA, ApiData
from parallax_core.wire.messages import Failure, Message, Purpose, Result, Step

__all__ = [
    "MOST_API_DATA",
    "RETRY_S",
    "SHUTTING_DOWN",
    "STRANGERS",
    "ApiData",
    "Backoff",
    "Channel",
    "EngineFailed",
    "Epoch",
    "FailFastGroup",
    "Failure",
    "FaultLog",
    "Message",
    "Path",
    "Paths",
    "Purpose",
    "Result",
    "Step",
    "TrustedPeers",
    "Tunnel",
    "WatchedWork",
    "bind_socket",
    "check_machine",
    "claim_output",
    "configure_log",
    "describe_error",
    "divert_output",
    "end_stream",
    "end_with_parent",
    "explain_bind_error",
    "greet",
    "open_channel",
    "replace_file",
    "run_in_turns",
    "run_until_signal",
    "wait_for_ever",
    "welcome",
    "worker_environment",
    "write_own_versions",
    "write_unavailable",
]
