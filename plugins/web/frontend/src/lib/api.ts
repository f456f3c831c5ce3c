// Calls the HTTP API of the server that has sent this page. It has no route of its own.

import { readEvents, type ServerEvent } from "./sse";

/** The address of the server: the page is one segment below it, behind any prefix of a proxy. */
export const server = new URL("../", document.baseURI);

/** An error that the server has answered, or `status` 0 if it did not answer. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint = "",
  ) {
    super(message);
  }
}

interface Options {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  body?: unknown;
  signal?: AbortSignal;
  /** An API key, in place of the session of this browser. */
  key?: string;
}

/** Send a request, and return the response if its status is that of a success. */
export async function send(path: string, { method, body, signal, key }: Options = {}): Promise<Response> {
  const headers = new Headers();
  const init: RequestInit = { method: method ?? (body === undefined ? "GET" : "POST"), signal, headers };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    headers.set("Content-Type", "application/json");
  }
  if (key !== undefined) headers.set("Authorization", `Bearer ${key}`);
  let response: Response;
  try {
    response = await fetch(new URL(path, server), init);
  } catch (error) {
    if (isLeft(signal)) throw error;
    throw new ApiError(0, "the server does not answer");
  }
  if (!response.ok) throw await readError(response);
  return response;
}

/** Send a request, and return the JSON of the answer. */
export async function call<T>(path: string, options?: Options): Promise<T> {
  const response = await send(path, options);
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

/** Send a request, and yield the server-sent events of the answer. */
export async function* follow(path: string, options?: Options): AsyncGenerator<ServerEvent> {
  const response = await send(path, options);
  try {
    yield* readEvents(response.body!);
  } catch (error) {
    if (isLeft(options?.signal)) throw error;
    throw new ApiError(0, "the connection has broken");
  }
}

/** Whether a request was given up because nobody wants its answer any more, and not since it took too long. */
const isLeft = (signal?: AbortSignal) => signal?.aborted && (signal.reason as Error | undefined)?.name !== "TimeoutError";

async function readError(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as { error: { message: string; hint?: string } };
    return new ApiError(response.status, String(error.message), error.hint);
  } catch {
    return new ApiError(response.status, `the server has answered with the status ${response.status}`);
  }
}

/** Return what to tell of a failure of `call`. */
export function explain(failure: unknown): string {
  const { message, hint } = failure as ApiError;
  return hint ? `${message}: ${hint}` : message;
}
