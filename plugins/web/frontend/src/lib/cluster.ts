// What `GET /v1/cluster`, its events, and `GET /v1/cluster/models` answer, as far as the page shows it.

export type Health = "starting" | "ready" | "draining" | "failed";

export interface Pool {
  kind: string;
  used: number;
  total: number;
}

export interface Stage {
  stage: number;
  node: string;
  host: string | null;
  backend: string | null;
  layers: number[] | null;
  device: string | null;
  dtype: string | null;
  weight_bytes: number;
  pools: Pool[];
  relay: string | null;
  step_seconds: { mean: number; median: number } | null;
}

export interface Replica {
  model: string;
  rank: number;
  status: Health;
  reason: string;
  drained: boolean;
  running: number;
  waiting: number;
  pending_tokens: number;
  losses: number;
  hop_seconds: number | null;
  stages: Stage[];
}

export interface Link {
  peer: string;
  round_trip_seconds: number;
  bandwidth: number;
  relay: string | null;
}

export interface Node {
  node: string;
  host: string;
  spare: { stage: number } | null;
  profile: { device: string; memory: number; total_memory: number | null; links: Link[] } | null;
  unreached: string[];
  state: "serving" | "loading" | "idle";
  model: string | null;
  replica: number | null;
  layers: number[] | null;
  idle_reason: string | null;
  slowdown: number | null;
  expected_versions: Record<string, string>;
  drained: boolean;
}

export interface Prediction {
  tokens_per_second: number;
  first_token_seconds: number;
  token_seconds: number;
}

export interface Plan {
  replicas: {
    rank: number;
    predicted: Prediction;
    limit: string;
    limit_at: string | null;
    measured_token_seconds: number | null;
  }[];
  predicted: Prediction | null;
  waits_for: string | null;
  join_command: string | null;
  move: { reason: string; bytes: number; seconds: number } | null;
}

/** What `GET /v1/cluster/what-if` answers. */
export interface WhatIf {
  devices: string[];
  predicted: Prediction | null;
  what_if: { change: string; predicted: Prediction | null; waits_for: string | null } | null;
}

export interface KnownModel {
  id: string;
  state: string;
  error: string | null;
}

export interface Cluster {
  model: string;
  models: KnownModel[];
  status: Health;
  reason: string;
  replicas: Replica[];
  nodes: Node[];
  plan: Plan | null;
}

export interface NodeProgress {
  node: string;
  layers: number[];
  task: string | null;
  done: number;
  total: number | null;
  unit: string;
}

export interface ModelChange {
  id: string;
  action: string;
  model: string;
  state: string;
  error: string | null;
  seconds: number;
}

export interface KnownModels {
  data: (KnownModel & { names: string[]; requests: number; nodes: NodeProgress[] })[];
  change: ModelChange | null;
  earlier: ModelChange[];
}

/** Return a cluster after an event of `GET /v1/cluster/events`. */
export function apply(cluster: Cluster, name: string, data: unknown): Cluster {
  switch (name) {
    case "node_joined":
    case "node_changed": {
      const node = data as Node;
      const place = cluster.nodes.findIndex((each) => each.node === node.node);
      return { ...cluster, nodes: place < 0 ? [...cluster.nodes, node] : cluster.nodes.with(place, node) };
    }
    case "node_left": {
      const left = (data as Node).node;
      return { ...cluster, nodes: cluster.nodes.filter((each) => each.node !== left) };
    }
    case "plan":
      return { ...cluster, plan: data as Plan };
    case "status": {
      const status = data as { status: Health; reason: string };
      return { ...cluster, status: status.status, reason: status.reason };
    }
    case "models":
      return { ...cluster, models: (data as { models: KnownModel[] }).models };
    default:
      return cluster;
  }
}

/** Return the stage of a replica whose steps take longest; undefined: no two were measured. */
export function findSlowest(replica: Replica): Stage | undefined {
  const measured = replica.stages.filter((stage) => stage.step_seconds);
  if (measured.length < 2) return undefined;
  return measured.reduce((a, b) => (b.step_seconds!.median > a.step_seconds!.median ? b : a));
}

/** A hop between two stages that follow each other. */
export interface Hop {
  from: string;
  to: string;
  link: Link;
}

/** Return the hop of a replica that takes longest; undefined: it has none, or none was measured. */
export function findSlowestHop(cluster: Cluster, replica: Replica): Hop | undefined {
  let slowest: Hop | undefined;
  for (const [place, { node: from }] of replica.stages.entries()) {
    const to = replica.stages[place + 1]?.node;
    const link = to ? findLink(cluster, from, to) : undefined;
    if (to && link && link.round_trip_seconds > (slowest?.link.round_trip_seconds ?? 0)) slowest = { from, to, link };
  }
  return slowest;
}

/** Return the bytes of memory for weights that a cluster has, what it has loaded already counted as free. */
export function findRoom(cluster: Cluster | undefined, freeHere: number | null): number | undefined {
  const told = cluster?.nodes.filter((each) => each.profile && !each.drained) ?? [];
  if (told.length) return told.reduce((sum, each) => sum + each.profile!.memory, 0);
  const loaded = cluster?.replicas.flatMap((each) => each.stages).reduce((sum, each) => sum + each.weight_bytes, 0) ?? 0;
  return freeHere === null ? undefined : freeHere + loaded;
}

/** Return the link from a node to another, as either of them has measured it. */
export function findLink(cluster: Cluster, from: string, to: string): Link | undefined {
  const links = (name: string, peer: string) =>
    cluster.nodes.find((node) => node.node === name)?.profile?.links.find((link) => link.peer === peer);
  return links(from, to) ?? links(to, from);
}
