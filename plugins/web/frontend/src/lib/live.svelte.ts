// What the page knows of the server, kept up to date by one stream of events.

import { ApiError, call, follow } from "./api";
import { apply, type Cluster } from "./cluster";

/** Seconds between two looks at what events leave out: loads and times. */
const LOOK_S = 2;
const RETRY_S = 1.5;
/** The most seconds that the server may take to answer before it counts as gone. */
const MOST_S = 10;
/** Seconds between two tries by a client that may not see the cluster, or on a server that has none. */
const UNSHOWN_S = 10;

interface Session {
  role: "user" | "admin" | "metrics" | null;
  /** Whether pages may change nothing of the cluster: others reach the server without a key. */
  read_only?: boolean;
}

export interface ServedModel {
  id: string;
  max_model_len?: number;
  status?: string;
}

class Live {
  /** Undefined: not read yet, or not for this client. */
  cluster = $state.raw<Cluster>();
  models = $state.raw<ServedModel[]>([]);
  session = $state.raw<Session>({ role: null });
  isConnected = $state(true);
  /** Whether the server wants an API key, and this browser has no session. */
  isRefused = $state(false);
  version = $state("");
  /** Ends the stream of events, to begin another at once. */
  #again = new AbortController();

  /** Follow the server until the page is closed. */
  async run(): Promise<never> {
    void this.#look();
    window.addEventListener("online", () => this.#reconnect());
    for (let wait = RETRY_S; ; ) {
      this.#again = new AbortController();
      try {
        await this.refresh();
        for await (const { name, data } of follow("v1/cluster/events", { signal: this.#again.signal })) {
          this.isConnected = true;
          if (name === "cluster") this.cluster = JSON.parse(data) as Cluster;
          else if (this.cluster) this.cluster = apply(this.cluster, name, JSON.parse(data));
          if (name === "models" || name === "status") void this.#readModels().catch(() => {});
        }
        wait = RETRY_S;
      } catch (error) {
        this.#note(error);
        wait = this.isConnected ? UNSHOWN_S : RETRY_S;
      }
      if (!this.#again.signal.aborted) await new Promise((resolve) => setTimeout(resolve, wait * 1000));
    }
  }

  /** Read everything anew. */
  async refresh(): Promise<void> {
    this.session = await call<Session>("session", { signal: AbortSignal.timeout(MOST_S * 1000) });
    await this.#readModels();
    this.isConnected = true;
    this.isRefused = false;
    this.version = (await call<{ version: string }>("version")).version;
  }

  async #readModels(): Promise<void> {
    this.models = (await call<{ data: ServedModel[] }>("v1/models")).data;
  }

  async #look(): Promise<never> {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_S * 1000));
      if (document.hidden || !this.cluster || !this.isConnected) continue;
      try {
        this.cluster = await call<Cluster>("v1/cluster", { signal: AbortSignal.timeout(MOST_S * 1000) });
      } catch (error) {
        this.#note(error);
        if (!this.isConnected) this.#reconnect(); // the stream of events may be lost without an end
      }
    }
  }

  #reconnect(): void {
    this.#again.abort(new DOMException("the connection may be lost", "TimeoutError"));
  }

  #note(error: unknown): void {
    if (!(error instanceof ApiError)) throw error;
    this.isConnected = error.status !== 0 && error.status !== 502;
    this.isRefused = error.status === 401;
    if (this.isRefused) this.session = { role: null }; // its key was revoked, or it has expired
  }
}

export const live = new Live();
