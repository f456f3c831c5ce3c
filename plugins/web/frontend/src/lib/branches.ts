// The messages of a conversation are a tree: a message that is edited, or generated again, begins another branch.

import type { Conversation, Message } from "./storage";

/** Return the messages from the first one to the end of the shown branch. */
export function readBranch(conversation: Conversation): Message[] {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const found: Message[] = [];
  for (let id = conversation.leaf; id !== null; ) {
    const message = byId.get(id);
    if (!message || found.includes(message)) break; // an export may say anything
    found.push(message);
    id = message.parent;
  }
  return found.reverse();
}

/** Return the messages that come after the same one, this one among them, the oldest first. */
export function listSiblings(conversation: Conversation, message: Message): Message[] {
  return conversation.messages.filter((each) => each.parent === message.parent && each.role === message.role);
}

/** Return the end of the branch that goes on after a message, along the latest messages. */
export function findLeaf(conversation: Conversation, id: string): string {
  for (let next: Message | undefined; ; id = next.id) {
    next = conversation.messages.findLast((each) => each.parent === id);
    if (!next) return id;
  }
}

/** Return a title for a conversation: the beginning of its first message. */
export function makeTitle(text: string): string {
  const line = text.trim().split("\n", 1)[0]!.trim();
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}
