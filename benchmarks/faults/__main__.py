"""Runs scenarios of faults: what may happen to servers, workers, machines and networks, while clients read answers.

    python -m benchmarks.faults kills --out benchmarks/results/stage-kills.json
    python -m benchmarks.faults lan --only tiny --minutes 5

Every request must end, with the right tokens unless the scenario says otherwise; no process, page or claim may be left.
Parts are written to the report as they end, and are not run again. The command ends with 1 if something was found that
must not be. What each scenario does is said where it is defined.
"""

from __future__ import annotations

import logging
import signal
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.faults.run import Run
from benchmarks.record import make_parser

SCENARIOS = {
    "kills": ("stages", "the worker of any stage is killed or stopped"),
    "sabotage": ("stages", "a stage fails in every way in which a stage can fail"),
    "soak": ("stages", "a worker is killed every 15 seconds, for 20 minutes at full load"),
    "detection": ("stages", "how soon a lost stage is noticed, and whether a slow one is taken for lost"),
    "engine": ("engines", "the process of an engine that schedules itself is killed"),
    "real-engine": ("engines", "processes of vLLM or SGLang are killed (--backend, --python, --option)"),
    "rolling": ("servers", "every worker is restarted, one after the other"),
    "switch": ("servers", "a server switches between two models while clients ask for both"),
    "nodes": ("nodes", "toy nodes join, leave, die, stall and become slow at random"),
    "lan": ("lan", "machines in network namespaces are killed, stopped, cut off and slowed (root)"),
    "edge": ("edge", "clients are slow, gone, broken, or too numerous"),
    "cancels": ("edge", "requests are cancelled at random moments, 10,000 times"),
    "strangers": ("strangers", "those who have no key reach the port of a server"),
    "links": ("links", "hundreds of nodes join a coordinator, report, leave and die"),
}
"""The module of each scenario, which has a function of its name, and what happens in it."""


def main() -> None:
    """Run the scenarios that the command line names."""
    titles = "\n".join(f"  {name:<12} {title}" for name, (_, title) in SCENARIOS.items())
    parser = make_parser(f"{__doc__}\n{titles}", takes_model=True)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--only", nargs="+", default=[], help="only parts whose names contain one of these")
    parser.add_argument("--times", type=int, help="how often something happens")
    parser.add_argument("--minutes", type=float, help="how long something lasts")
    parser.add_argument("--kinds", nargs="+", default=[], help="faults of these kinds only")
    parser.add_argument("--every", type=float, default=15.0, metavar="S", help="seconds from one fault to the next")
    parser.add_argument("--backend", default="", help="the backend of a real engine")
    parser.add_argument("--python", action="append", default=[], help="as for `parallax serve`")
    parser.add_argument("--option", action="append", default=[], help="an option of the backend")
    parser.add_argument("--logs", type=Path, help="a folder for the logs of machines")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes and namespaces go, too
    run = Run(options.scenario, options)
    module = import_module(f"benchmarks.faults.{SCENARIOS[options.scenario][0]}")
    getattr(module, options.scenario.replace("-", "_"))(run)
    for line in run.failed:
        print(f"fault: {line}", file=sys.stderr)
    sys.exit(bool(run.failed))


if __name__ == "__main__":
    main()
