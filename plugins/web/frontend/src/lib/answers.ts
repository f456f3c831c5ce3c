// Asks for answers that belong to the server: they go on when the page is closed, and are read from where it stopped.

import { ApiError, call, follow } from "./api";
import type { Message, Sampling } from "./storage";

/** What a model is asked. */
export interface Question {
  model: string;
  system: string;
  sampling: Sampling;
  /** The conversation so far. */
  messages: Message[];
}

interface Usage {
  input_tokens: number;
  output_tokens: number;
}

interface ResponseEvent {
  type: string;
  sequence_number: number;
  delta?: string;
  item?: { type: string; name?: string; arguments?: string };
  response?: {
    id: string;
    status: string;
    error?: { message: string } | null;
    usage?: Usage | null;
  };
}

const ENDS: Record<string, Message["state"]> = {
  completed: "done",
  incomplete: "cut",
  failed: "failed",
  cancelled: "stopped",
};
/** Seconds between two tries to reach the server again. */
const RETRY_S = [0.2, 0.5, 1, 2, 5];

/** Milliseconds between two times that an answer is drawn, whatever the number of its tokens. */
const DRAW_MS = 80;

const wait = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Ask the question, and write the answer into `message` as it comes. `changed` is called after each change. */
export async function ask(question: Question, message: Message, changed: () => void): Promise<void> {
  const began = performance.now();
  const body = {
    model: question.model,
    // A message of the assistant that comes last goes on where it ended.
    input: question.messages.map(({ role, text }, place) => ({
      role,
      content: text,
      ...(role === "assistant" && place === question.messages.length - 1 ? { status: "incomplete" } : {}),
    })),
    stream: true,
    background: true,
    store: true,
    ...(question.system ? { instructions: question.system } : {}),
    ...question.sampling,
  };
  try {
    await read(follow("v1/responses", { body }), message, changed, began);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 0 || !message.response) return fail(message, error, changed);
  }
  if (message.state === "running") await resume(message, changed);
}

/** Read the rest of an answer that was begun before, until it has ended. */
export async function resume(message: Message, changed: () => void): Promise<void> {
  if (!message.response) return fail(message, new Error("the page was closed before the server had begun"), changed);
  for (let tries = 0; message.state === "running"; tries += 1) {
    const before = message.read;
    try {
      const after = before === undefined ? "" : `&starting_after=${before}`;
      await read(follow(`v1/responses/${message.response}?stream=true${after}`), message, changed);
    } catch (error) {
      if (!(error instanceof ApiError) || !mayPass(error)) return fail(message, error, changed);
    }
    if (message.read !== before) tries = 0;
    if (message.state === "running") await wait(RETRY_S[Math.min(tries, RETRY_S.length - 1)]!);
  }
}

/** Whether a further try may succeed: the server is away or busy, or its sessions have ended and one signs in again. */
const mayPass = ({ status }: ApiError) => status === 0 || status === 401 || status === 429 || status >= 500;

/** End an answer; what it has stays. */
export async function stop(message: Message): Promise<void> {
  if (message.response) await call(`v1/responses/${message.response}/cancel`, { method: "POST" });
}

async function read(
  events: AsyncIterable<{ data: string }>,
  message: Message,
  changed: () => void,
  began?: number,
): Promise<void> {
  let first: number | undefined;
  let held: ResponseEvent[] = [];
  let timer: ReturnType<typeof setTimeout> | undefined;

  /** Write what is held into the message, which draws it. */
  function give(): void {
    clearTimeout(timer);
    timer = undefined;
    if (!held.length) return;
    for (const event of held) take(message, event);
    held = [];
    if (began !== undefined && first !== undefined) {
      message.firstS ??= (first - began) / 1000;
      message.restS = (latest - first) / 1000;
    }
    changed();
  }

  let latest = 0;
  try {
    for await (const { data } of events) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data) as ResponseEvent;
      if (message.read !== undefined && event.sequence_number <= message.read) continue;
      held.push(event);
      if (event.delta === undefined) give();
      else {
        latest = performance.now();
        if (first !== undefined) timer ??= setTimeout(give, DRAW_MS);
        else {
          first = latest;
          give(); // the first token at once
        }
      }
    }
  } finally {
    give();
  }
}

function take(message: Message, event: ResponseEvent): void {
  message.read = event.sequence_number;
  if (event.response) message.response = event.response.id;
  switch (event.type) {
    case "response.output_text.delta":
      message.text += event.delta ?? "";
      message.tokens = (message.tokens ?? 0) + 1;
      break;
    case "response.reasoning_text.delta":
    case "response.reasoning_summary_text.delta":
      message.reasoning = (message.reasoning ?? "") + (event.delta ?? "");
      message.tokens = (message.tokens ?? 0) + 1;
      break;
    case "response.output_item.done":
      if (event.item?.type === "function_call")
        (message.calls ??= []).push({ name: event.item.name ?? "", arguments: event.item.arguments ?? "" });
      break;
  }
  const state = ENDS[event.response?.status ?? ""];
  if (!state) return;
  message.state = state;
  if (event.response?.error) message.error = event.response.error.message;
  const usage = event.response?.usage;
  if (usage) [message.promptTokens, message.tokens] = [usage.input_tokens, usage.output_tokens];
}

function fail(message: Message, error: unknown, changed: () => void): void {
  message.state = "failed";
  message.error = error instanceof ApiError && error.hint ? `${error.message}: ${error.hint}` : String((error as Error).message);
  changed();
}
