// Keeps conversations on the server, too, for those who want it: `/v1/chats`, where each key finds its own.

import { ApiError, call } from "./api";
import type { Conversation, Heading, Message } from "./storage";

const STORED = "parallax.keep";
const MOST_S = 10;

interface Kept extends Heading {
  content: Conversation;
}

/** Return whether the server keeps conversations for this client. */
export async function isOffered(): Promise<boolean> {
  try {
    await listKept();
    return true;
  } catch {
    return false;
  }
}

export const isWanted = (): boolean => localStorage.getItem(STORED) === "server";

export function setWanted(wanted: boolean): void {
  if (wanted) localStorage.setItem(STORED, "server");
  else localStorage.removeItem(STORED);
}

export async function listKept(): Promise<Heading[]> {
  return (await call<{ data: Heading[] }>("v1/chats", { signal: AbortSignal.timeout(MOST_S * 1000) })).data;
}

/** Return a conversation that the server keeps; undefined: it has none of this id. */
export async function readKept(id: string): Promise<Kept | undefined> {
  try {
    return await call<Kept>(`v1/chats/${id}`, { signal: AbortSignal.timeout(MOST_S * 1000) });
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

/** A conversation as the server keeps it, and when that version was written. */
interface Version {
  conversation: Conversation;
  base: number;
}

/** Keep a conversation. If another browser has changed it meanwhile, what both have is kept, and returned. */
export async function keep(conversation: Conversation, heading: Heading): Promise<Version> {
  const { id } = conversation;
  try {
    return { conversation, base: await write(conversation, heading, heading.base ?? null) };
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 409) throw error;
    const kept = await readKept(id);
    if (!kept || kept.updated === heading.base) throw error; // there is no room
    const both = merge(conversation, kept.content);
    return { conversation: both, base: await write(both, heading, kept.updated) };
  }
}

export async function forget(id: string): Promise<void> {
  try {
    await call(`v1/chats/${id}`, { method: "DELETE" });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
  }
}

export async function forgetAll(): Promise<void> {
  await call("v1/chats", { method: "DELETE" });
}

/** Write a version that comes from the one of `base`; null: from none. Returns when it was written. */
async function write(content: Conversation, { title, folder }: Heading, base: number | null): Promise<number> {
  const updated = Date.now();
  await call(`v1/chats/${content.id}`, { method: "PUT", body: { title, folder, updated, base, content } });
  return updated;
}

/** Return a conversation with the messages that either version has, and of each what has come further. */
export function merge(here: Conversation, there: Conversation): Conversation {
  const further = (a: Message, b: Message) => ((b.read ?? b.text.length) > (a.read ?? a.text.length) ? b : a);
  const all = new Map(there.messages.map((each) => [each.id, each]));
  for (const each of here.messages) all.set(each.id, all.has(each.id) ? further(each, all.get(each.id)!) : each);
  const messages = [...all.values()].sort((a, b) => a.created - b.created);
  return { ...here, messages, leaf: here.leaf ?? there.leaf };
}
