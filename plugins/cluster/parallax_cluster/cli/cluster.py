"""Form a cluster of machines, and see to it."""

from __future__ import annotations

from parallax_core.api.cli import lazy_app

HERE = "parallax_cluster.cli"

app = lazy_app(
    "Form a cluster of machines, and see to it.",
    {
        "run": ("Serve a model over all machines that join.", f"{HERE}.run:app"),
        "join": ("Run stages of a model for a server that gave you a join code.", f"{HERE}.join:app"),
        "nodes": ("Show the nodes of a running server and their work.", f"{HERE}.nodes:app"),
        "codes": ("Create and revoke join codes for machines that join a server.", f"{HERE}.codes:app"),
        "events": ("Show what has happened to the cluster of a running server.", f"{HERE}.events:app"),
        "leave": ("Stop workers of this machine without losing answers.", f"{HERE}.leave:app"),
        "promote": ("Let the standby on this machine replace its server.", f"{HERE}.promote:app"),
        "backup": ("Copy the state of the server of this machine into a file.", f"{HERE}.backup:app"),
        "restore": ("Put the state in a backup in the place of that of this machine.", f"{HERE}.backup:restore_app"),
        "relay": ("Forward between machines of a server that cannot reach each other.", f"{HERE}.relay:app"),
        "rendezvous": (
            "Run a rendezvous where nodes with fixed layers and servers find each other.",
            f"{HERE}.rendezvous:app",
        ),
        "plan": ("Plan the layers of each node and predict the speed.", f"{HERE}.plan:app"),
        "profile": ("Measure this machine for a plan.", f"{HERE}.profile:app"),
    },
)
