"""What the plugin of clusters offers: deployments, routes, policies, services and settings."""

from __future__ import annotations

from parallax_core.api import DeploymentSpec, DialectSpec, NodeServiceSpec, PolicySpec, Ref, SettingsSpec

CLUSTER = "parallax_cluster.placement"
"""The package of the placement policies, which use its cost model; a `Ref` imports it only when one is asked for."""

DEPLOYMENTS = (
    DeploymentSpec(
        name="joined",
        summary="stages that the user chose, on machines that join by codes; layers move by measured speed",
        plan=Ref("parallax_cluster.deploy.code_admission:plan"),
        selects=Ref("parallax_cluster.deploy.code_admission:selects"),
    ),
    DeploymentSpec(
        name="found",
        summary="layers that nodes announce, as with --find and --announce",
        plan=Ref("parallax_cluster.deploy.found:plan"),
        work=Ref("parallax_cluster.deploy.announced:work"),
    ),
    DeploymentSpec(
        name="planned",
        summary="layers that a planner gives to the machines that join, as `parallax run` does",
        plan=Ref("parallax_cluster.deploy.cluster:plan"),
    ),
)

DIALECTS = (
    DialectSpec(
        name="cluster",
        summary="the state of a cluster, and what its operator does",
        open=Ref("parallax_cluster.server.routes:open_dialect"),
    ),
)

POLICIES = (
    PolicySpec(
        name="search",
        kind="placement",
        summary="the placement with the best predicted speed, found by local search",
        factory=Ref(f"{CLUSTER}.policy:SearchPlacement"),
    ),
    PolicySpec(
        name="greedy",
        kind="placement",
        summary="pipelines of the largest nodes first, layers by FLOPs; to compare with",
        factory=Ref(f"{CLUSTER}.baselines:GreedyPlacement"),
    ),
    PolicySpec(
        name="water-filling",
        kind="placement",
        summary="the most pipelines of the fewest stages, layers by FLOPs; to compare with",
        factory=Ref(f"{CLUSTER}.baselines:WaterFillingPlacement"),
    ),
)

SETTINGS = (
    SettingsSpec(
        name="run",
        summary="the options of parallax run",
        schema=Ref("parallax_cluster.config.run:RunSettings"),
    ),
    SettingsSpec(
        name="join",
        summary="the options of parallax join",
        schema=Ref("parallax_cluster.config.join:JoinSettings"),
    ),
    SettingsSpec(
        name="relay",
        summary="the options of parallax cluster relay",
        schema=Ref("parallax_cluster.config.relay:RelayCommandSettings"),
    ),
    SettingsSpec(
        name="rendezvous",
        summary="the options of parallax cluster rendezvous",
        schema=Ref("parallax_cluster.config.rendezvous:RendezvousSettings"),
    ),
)

SERVICES = "parallax_cluster.deploy.cluster_services"


def _serve(name: str, summary: str, node: str = "", head: str = "") -> NodeServiceSpec:
    return NodeServiceSpec(
        name=name,
        summary=summary,
        messages=Ref(f"{SERVICES}:{name.upper()}"),
        node=Ref(f"{SERVICES}:{node}") if node else None,
        head=Ref(f"{SERVICES}:{head}") if head else None,
    )


NODE_SERVICES = (
    _serve(
        "relay", "links over a third node, between two that do not reach each other", "make_relay", "make_directory"
    ),
    _serve("forwarding", "connections of clients of machines that have joined, to the API", "", "make_forwarded"),
    _serve("profile", "what nodes report of their devices and links", "make_profile", "make_reports"),
    _serve("further", "further nodes on a machine, for several models", "make_further"),
    _serve("leases", "nodes that are in several pipelines", "make_leases", "make_lease_opener"),
    _serve("succession", "which coordinator counts, and its standbys", "make_terms"),
    _serve("record", "what `parallax cluster leave` and clients of this machine find a worker by", "make_record"),
    _serve("rendezvous", "announcements of layers, where nodes and heads find each other"),
)
