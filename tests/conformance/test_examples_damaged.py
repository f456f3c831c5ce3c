"""A copy of an example is damaged in a word or two, and its own tests, which are the kit's, say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.example import EXAMPLES, copy_example, run_pytest


class Damage(NamedTuple):
    """What is written in place of what, and the test that finds it, with some of its words."""

    file: str
    old: str
    new: str
    test: str
    words: str


NAMES = (
    "backend_numpy",
    "deployment_command",
    "dialect_ask",
    "model_olmo2",
    "policy_cached",
    "policy_rush",
    "service_clock",
    "transport_tcp",
)
NUMPY, COMMAND, ASK, OLMO2, CACHED, RUSH, CLOCK, TCP = (f"parallax_{name}" for name in NAMES)

DAMAGES = {
    "nodes run on after their server": Damage(
        f"{COMMAND}/launch.py",
        "    with contextlib.suppress(ProcessLookupError):  # it has ended\n        process.terminate()\n    try:",
        "    return\n    try:",
        "test_launcher_starts_each_node_and_ends_it",
        "nodes run after their server",
    ),
    "a node fewer is started": Damage(
        f"{COMMAND}/launch.py",
        "range(nodes.num_nodes)]",
        "range(nodes.num_nodes - 1)]",
        "test_launcher_starts_each_node_and_ends_it",
        "3 nodes are wanted",
    ),
    "nodes have no address to join": Damage(
        f"{COMMAND}/launch.py",
        ", listen=listen)",
        ")",
        "test_launcher_has_a_server_that_listens",
        "a server that does not listen",
    ),
    "the time is told all the time": Damage(
        f"{CLOCK}/clock.py",
        "asyncio.sleep(self._every_s)",
        "asyncio.sleep(0)",
        "test_both_sides_keep_to_their_limits",
        "more than 1 of ClockReading per second",
    ),
    "the time goes on to a head that was left": Damage(
        f"{CLOCK}/clock.py",
        "            sending.cancel()\n            await asyncio.gather(sending, return_exceptions=True)",
        "            pass",
        "test_nothing_is_left_of_a_peer",
        "tasks run on for a peer that has left",
    ),
    "a reading is larger than it says": Damage(
        f"{CLOCK}/messages.py",
        "most_bytes: ClassVar[int] = 32",
        "most_bytes: ClassVar[int] = 8",
        "test_samples_arrive_as_they_were_sent",
        "at most 8 are allowed",
    ),
    "angles of a chunk begin at 0": Damage(
        f"{NUMPY}/llama.py",
        "places = np.arange(len(slots) - len(x), len(slots))",
        "places = np.arange(len(x))",
        "test_chunked_prefill_equals_at_once",
        "a prompt in chunks of 1 gives other tokens than at once",
    ),
    "tokens see those after them": Damage(
        f"{NUMPY}/llama.py",
        "np.tri(num, seen, seen - num) == 0",
        "np.tri(num, seen, seen) == 0",
        "test_logits_are_those_of_the_other_implementation",
        "the model is another one after 1 tokens",
    ),
    "a fork copies no slot": Damage(
        f"{NUMPY}/llama.py",
        "self._kv[:, :, dst : dst + num] = self._kv[:, :, src : src + num]",
        "del src, dst, num",
        "test_fork",
        "fork",
    ),
    "the last layer is left out": Damage(
        f"{NUMPY}/backend.py",
        "in range(layers.start, layers.stop)",
        "in range(layers.start, layers.stop - 1)",
        "test_stage_describes_itself",
        "KeyError",
    ),
    "any architecture will do": Damage(
        f"{NUMPY}/backend.py",
        'config.get("architectures") != ["LlamaForCausalLM"] or ',
        "",
        "test_architecture_nobody_knows_is_refused",
        "did not raise Unsupported",
    ),
    "a field that nothing reads is taken": Damage(
        f"{ASK}/bodies.py",
        "class Question(Strict):",
        "class Question(Strict, extra='ignore'):",
        "test_unknown_field_is_refused_by_name",
        "unknown field",
    ),
    "administrators alone may ask": Damage(
        f"{ASK}/routes.py",
        '    @needs_role("user")\n',
        "",
        "test_routes_state_their_roles",
        "no role",
    ),
    "nobody may ask": Damage(
        f"{ASK}/routes.py",
        'router.post("/v1/ask",',
        'router.post("/v1/asked",',
        "test_bodies_have_their_routes",
        "no route",
    ),
    "a norm is not counted": Damage(
        f"{OLMO2}/adapter.py",
        "norms = queries + keys + 2 * hidden",
        "norms = queries + keys + hidden",
        "test_layers_weigh_what_their_tensors_do",
        "parameters, not",
    ),
    "the head comes before the layers": Damage(
        f"{OLMO2}/adapter.py",
        'return "after"',
        'return "before"',
        "test_every_tensor_has_a_part",
        "no tensor belongs to the parts ['after']",
    ),
    "any setting will do": Damage(
        f"{OLMO2}/adapter.py",
        "if type(value) is not int or not 1 <= value <= 2**24:",
        "if value is None:",
        "test_setting_the_family_lacks_is_refused_by_name",
        "vocab_size",
    ),
    "the wait grows": Damage(
        f"{RUSH}/policy.py",
        "- queue.oldest_wait_s)",
        "+ queue.oldest_wait_s)",
        "test_waiting_longer_never_makes_the_wait_longer",
        "would wait",
    ),
    "prompts wait for cached ones without end": Damage(
        f"{CACHED}/policy.py",
        "return 0.0 if prompt.age_s >= self.patience_s else ",
        "return ",
        "test_no_prompt_starves",
        "starves prompts",
    ),
    "prompts that wait are named twice": Damage(
        f"{CACHED}/policy.py",
        "(*view.running, *view.waiting)",
        "(*view.running, *view.waiting, *view.waiting)",
        "test_shares_are_those_of_prompts_in_the_view",
        "twice or not in the view",
    ),
    "a cached prompt is computed again": Damage(
        f"{CACHED}/policy.py",
        "PromptShare(each.index, each.remaining)",
        "PromptShare(each.index, each.num_prompt)",
        "test_shares_are_those_of_prompts_in_the_view",
        "tokens to a prompt with",
    ),
    "the bound is not kept": Damage(
        f"{RUSH}/policy.py",
        "min(self.most_s, self.gap_s * queue.num_ready)",
        "self.gap_s * queue.num_ready",
        "test_step_begins_at_last",
        "holds back 7 requests for 0.07 s, and its bound is 0.05",
    ),
    "the wait is negative": Damage(
        f"{RUSH}/policy.py",
        "return max(0.0, ",
        "return min(9.0, ",
        "test_wait_is_a_number_of_seconds",
        "-",
    ),
    "room is given before a frame is taken": Damage(
        f"{TCP}/link.py",
        "        self._frames.append(frame)",
        "        self._frames.append(frame)\n        self._out.write(TAKEN)",
        "test_sender_waits_when_nothing_is_taken",
        "frames were sent to a receiver that takes none",
    ),
    "silence is not noticed": Damage(
        f"{TCP}/link.py",
        "while self._now() - self._seen < self._plan.timeout_s:",
        "while True:",
        "test_hung_peer_is_lost_in_time",
        "not noticed by receive",
    ),
    "anybody will do": Damage(
        f"{TCP}/transport.py",
        "if name != wanted:",
        "if not name:",
        "test_connecting_under_a_wrong_name_fails",
        "did not raise PeerLost",
    ),
    "what was sent is thrown away": Damage(
        f"{TCP}/link.py",
        "if not self._frames:",
        "if self._lost:",
        "test_frames_sent_before_close_are_received",
        "Frames that a peer sent before it closed its end are still received",
    ),
}


def wait_less(copy: Path) -> None:
    """Let the kits give up sooner on what will never come: all that they wait for comes at once or not at all."""
    for file, line, limit in (
        ("test_transport.py", "class TestTcp(ProcessTransportConformance):\n", "grace_s"),
        ("test_command.py", "class TestCommand(DeploymentConformance):\n", "patience_s"),
    ):
        tests = copy / "tests" / file
        if tests.exists():
            source = tests.read_text(encoding="utf-8")
            assert line in source
            tests.write_text(source.replace(line, f"{line}    {limit} = 4.0\n"), encoding="utf-8")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_kit_finds_what_was_damaged(damage: Damage, tmp_path: Path) -> None:
    [name] = (name for name, folder in EXAMPLES.items() if (folder / damage.file).exists())
    copy = copy_example(name, tmp_path)
    path = copy / damage.file
    source = path.read_text(encoding="utf-8")
    assert damage.old in source, "the example has changed, and this does no damage any more"
    path.write_text(source.replace(damage.old, damage.new), encoding="utf-8")
    wait_less(copy)
    ran = run_pytest(copy, "-x", "-k", damage.test)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert damage.words in ran.stdout


def test_every_example_is_damaged_in_three_ways_at_least() -> None:
    damaged = [damage.file.partition("/")[0] for damage in DAMAGES.values()]
    assert set(damaged) == {NUMPY, COMMAND, ASK, OLMO2, CACHED, RUSH, CLOCK, TCP}
    assert len(EXAMPLES) == len(set(damaged))
    assert min(map(damaged.count, damaged)) > 2
