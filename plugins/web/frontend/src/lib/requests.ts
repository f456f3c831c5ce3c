// What `GET /v1/requests` answers, and the rows of a request's waterfall.

import type { Cluster } from "./cluster";

export interface Part {
  name: string;
  start_seconds: number;
  seconds: number;
  is_sum: boolean;
}

export interface ServedRequest {
  id: string;
  model: string;
  state: "running" | "ended";
  began: number;
  seconds: number;
  prompt_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  phase: "queue" | "prefill" | "decode" | null;
  /** Of the prompt, while it runs. */
  computed_tokens: number;
  first_token_seconds: number | null;
  reason: string | null;
  message: string | null;
  parts: Part[];
}

export interface Row extends Part {
  /** The node of a stage, or to which a hop leads, where that is certain. */
  node: string;
  isSlowest: boolean;
}

/** Return the rows of a request: its phases, then hops and stages in the order in which steps pass them. */
export function listRows(request: ServedRequest, cluster: Cluster | undefined): Row[] {
  const replicas = cluster?.replicas.filter((each) => each.model === request.model) ?? [];
  const nodes = replicas.length === 1 ? replicas[0]!.stages.map((each) => each.node) : [];
  const sums = request.parts.filter((each) => each.is_sum && /^(stage|hop) /.test(each.name));
  const most = Math.max(...sums.map((each) => each.seconds));
  const row = (part: Part): Row => ({
    ...part,
    node: nodes[Number(part.name.split(" ")[1] ?? -1)] ?? "",
    isSlowest: sums.length > 2 && sums.includes(part) && part.seconds === most,
  });
  const place = ({ name }: Part) => Number(name.split(" ")[1]) * 2 + (name.startsWith("stage") ? 1 : 0);
  const phases = request.parts.filter((each) => !each.is_sum);
  const rest = request.parts.filter((each) => each.is_sum && !sums.includes(each));
  return [...phases, ...sums.sort((a, b) => place(a) - place(b)), ...rest].map(row);
}

/** Return the seconds of a request that no part has, without its wait: for its turn, and between steps. */
export function findOther(request: ServedRequest): number {
  let known = 0;
  for (const { name, seconds } of request.parts) {
    if (name === "prefill" || name === "decode") known += seconds;
    else if (name !== "queue" && name !== "sampling") known -= seconds;
  }
  return Math.max(0, known);
}

/** Return a list after an event of `GET /v1/requests/events`: first running requests, the latest of each first. */
export function merge(list: ServedRequest[], changed: ServedRequest[], most: number): ServedRequest[] {
  const all = new Map([...list, ...changed].map((each) => [each.id, each]));
  const rank = (each: ServedRequest) => (each.state === "running" ? 0 : 1);
  return [...all.values()].sort((a, b) => rank(a) - rank(b) || b.began - a.began).slice(0, most);
}
