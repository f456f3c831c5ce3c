// What `GET /v1/catalog` and the routes below it answer.

export interface StoredModel {
  name: string;
  size_bytes: number;
  total_bytes: number | null;
}

export interface Catalog {
  memory_free: number | null;
  disk_free: number | null;
  searched: string[];
  aliases: Record<string, string>;
  data: StoredModel[];
}

export interface FoundModel {
  name: string;
  downloads: number;
  parameters: number | null;
  is_gated: boolean;
  is_known: boolean | null;
}

export interface Format {
  name: string;
  size_bytes: number;
}

export interface Download {
  model: string;
  state: "running" | "done" | "failed" | "stopped";
  task: string | null;
  done: number;
  total: number | null;
  unit: string;
  error: string | null;
}

/** The share of the memory beyond its weights that a model needs, at least: KV cache and activations. */
const BESIDE = 0.1;

/** Return whether weights of a size fit into so many bytes of memory; undefined: that is not known. */
export function judge(size: number, room: number | undefined): "fits" | "tight" | "large" | undefined {
  if (room === undefined || !room) return undefined;
  if (size > room) return "large";
  return size * (1 + BESIDE) > room ? "tight" : "fits";
}

/** Return the name by which clients call a model that a catalog lists: hub ids go without their source. */
export const shorten = (name: string): string => name.replace(/^hf:/, "");
