// Keeps conversations in this browser: their texts apart from what the list shows, so that ten thousand open at once.

import { openDB, type DBSchema, type IDBPDatabase } from "idb";

import { newId } from "./ids";

export interface Sampling {
  temperature?: number;
  top_p?: number;
  max_output_tokens?: number;
}

export interface Message {
  id: string;
  /** The message before; null: none. Several with the same one are branches. */
  parent: string | null;
  role: "user" | "assistant";
  text: string;
  created: number;
  reasoning?: string;
  calls?: { name: string; arguments: string }[];
  model?: string;
  /** The id of the answer on the server, which keeps it when the page is closed. */
  response?: string;
  /** The number of the last event that was read. */
  read?: number;
  state?: "running" | "done" | "stopped" | "cut" | "failed";
  error?: string;
  /** Seconds to the first token, seconds after it, and counts of tokens. */
  firstS?: number;
  restS?: number;
  tokens?: number;
  promptTokens?: number;
}

export interface Conversation {
  id: string;
  system: string;
  sampling: Sampling;
  messages: Message[];
  /** The message at which the shown branch ends; null: there is none yet. */
  leaf: string | null;
}

/** What the list of conversations shows. */
export interface Heading {
  id: string;
  title: string;
  folder: string;
  updated: number;
  /** The version on the server that this browser has last read or written there. */
  base?: number;
}

interface Schema extends DBSchema {
  headings: { key: string; value: Heading };
  conversations: { key: string; value: Conversation };
}

let opened: Promise<IDBPDatabase<Schema>> | undefined;

function open(): Promise<IDBPDatabase<Schema>> {
  opened ??= openDB<Schema>("parallax", 1, {
    upgrade(db) {
      db.createObjectStore("headings", { keyPath: "id" });
      db.createObjectStore("conversations", { keyPath: "id" });
    },
  });
  return opened;
}

/** Return the headings of all conversations, the latest first. */
export async function listHeadings(): Promise<Heading[]> {
  const found = await (await open()).getAll("headings");
  return found.sort((a, b) => b.updated - a.updated);
}

export async function readConversation(id: string): Promise<Conversation | undefined> {
  return (await open()).get("conversations", id);
}

export async function writeConversation(conversation: Conversation): Promise<void> {
  await (await open()).put("conversations", conversation);
}

export async function writeHeading(heading: Heading): Promise<void> {
  await (await open()).put("headings", heading);
}

export async function deleteConversation(id: string): Promise<void> {
  const both = (await open()).transaction(["headings", "conversations"], "readwrite");
  await Promise.all([both.objectStore("headings").delete(id), both.objectStore("conversations").delete(id), both.done]);
}

/** Return the ids of conversations in which somebody has written a text, until `signal` says that nobody waits for it. */
export async function findTexts(text: string, signal: AbortSignal): Promise<Set<string>> {
  const wanted = text.toLowerCase();
  const found = new Set<string>();
  let cursor = await (await open()).transaction("conversations").store.openCursor();
  for (; cursor && !signal.aborted; cursor = await cursor.continue()) {
    const { id, messages } = cursor.value;
    if (messages.some((each) => each.text.toLowerCase().includes(wanted))) found.add(id);
  }
  return found;
}

/** What an export has: all conversations of this browser. */
export interface Exported {
  format: "parallax-conversations-1";
  conversations: (Conversation & { heading: Heading })[];
}

export async function exportAll(): Promise<Exported> {
  const db = await open();
  const [headings, conversations] = [await db.getAll("headings"), await db.getAll("conversations")];
  const texts = new Map(conversations.map((each) => [each.id, each]));
  return {
    format: "parallax-conversations-1",
    conversations: headings.flatMap((heading) => {
      const text = texts.get(heading.id);
      return text ? [{ ...text, heading }] : [];
    }),
  };
}

/** Add the conversations of an export, beside those that there are. Returns their number. */
export async function importAll(text: string): Promise<number> {
  const found = JSON.parse(text) as Partial<Exported>;
  if (found.format !== "parallax-conversations-1" || !Array.isArray(found.conversations))
    throw new Error("this file is no export of conversations");
  for (const { heading, ...conversation } of found.conversations) {
    if (typeof heading?.title !== "string" || !Array.isArray(conversation.messages))
      throw new Error("this file is no export of conversations");
    const id = newId();
    await writeConversation({ ...conversation, id });
    await writeHeading({ ...heading, id, base: undefined });
  }
  return found.conversations.length;
}
