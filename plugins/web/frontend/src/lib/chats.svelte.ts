// The conversations of this browser, and the answers that are being generated for them.

import { ask, resume, stop, type Question } from "./answers";
import { findLeaf, makeTitle, readBranch } from "./branches";
import { newId } from "./ids";
import {
  deleteConversation,
  exportAll,
  importAll,
  listHeadings,
  readConversation,
  writeConversation,
  writeHeading,
  type Conversation,
  type Exported,
  type Heading,
  type Message,
  type Sampling,
} from "./storage";

const SAVE_S = 1;
const STORED = "parallax.chat";

/** What a new conversation begins with: as the last one was set. */
interface Defaults {
  system: string;
  sampling: Sampling;
}

function readDefaults(): Defaults {
  const none: Defaults = { system: "", sampling: {} };
  try {
    return { ...none, ...(JSON.parse(localStorage.getItem(STORED) ?? "{}") as Partial<Defaults>) };
  } catch {
    return none;
  }
}

class Chats {
  headings = $state.raw<Heading[]>([]);
  /** The open conversation. */
  current = $state<Conversation>();
  #opening = "";
  /** Conversations whose answers are being generated, also those that are not open. */
  #running = new Map<string, Conversation>();

  async load(): Promise<void> {
    this.headings = await listHeadings();
  }

  get heading(): Heading | undefined {
    return this.headings.find((each) => each.id === this.current?.id);
  }

  /** Open a conversation, or a new one for an empty or unknown id, and go on with answers that it waits for. */
  async open(id: string): Promise<void> {
    this.#opening = id;
    const found = this.#running.get(id) ?? (id ? await readConversation(id) : undefined);
    if (this.#opening !== id) return; // another was opened meanwhile
    if (id && id === this.current?.id) return;
    this.current = found ?? { id: newId(), messages: [], leaf: null, ...readDefaults() };
    const opened = this.current;
    for (const message of opened.messages)
      if (message.state === "running" && !this.#running.has(opened.id))
        void this.#generate(opened, message, (changed) => resume(message, changed));
  }

  /** Add a message of the user after another (null: at the beginning), and ask for the answer. */
  async say(text: string, parent: string | null, model: string): Promise<void> {
    const conversation = this.current!;
    if (!this.heading) await this.#addHeading(conversation, text);
    const message: Message = { id: newId(), parent, role: "user", text, created: Date.now() };
    conversation.messages.push(message);
    conversation.leaf = message.id;
    await this.answer(message.id, model);
  }

  /** Ask for a further answer to a message of the user. */
  async answer(to: string, model: string): Promise<void> {
    const conversation = this.current!;
    conversation.leaf = to;
    const messages = readBranch(conversation);
    const answer: Message = {
      id: newId(),
      parent: to,
      role: "assistant",
      text: "",
      model,
      state: "running",
      created: Date.now(),
    };
    conversation.messages.push(answer);
    conversation.leaf = answer.id;
    await this.#ask(conversation, conversation.messages.at(-1)!, messages); // as the state has it
  }

  /** Ask for the rest of an answer that was stopped or cut. */
  async goOn(answer: Message, model: string): Promise<void> {
    const conversation = this.current!;
    conversation.leaf = answer.id;
    const messages = readBranch(conversation);
    for (const each of ["response", "read", "error", "firstS", "restS", "tokens"] as const) delete answer[each];
    Object.assign(answer, { model, state: "running" });
    await this.#ask(conversation, answer, messages);
  }

  async #ask(conversation: Conversation, answer: Message, messages: Message[]): Promise<void> {
    const { system, sampling } = $state.snapshot(conversation);
    const question: Question = { model: answer.model!, system, sampling, messages: $state.snapshot(messages) };
    await this.#generate(conversation, answer, (changed) => ask(question, answer, changed));
  }

  async stop(message: Message): Promise<void> {
    await stop(message);
  }

  /** Show the branch of a message. */
  async show(message: Message): Promise<void> {
    const conversation = this.current!;
    conversation.leaf = findLeaf(conversation, message.id);
    await writeConversation($state.snapshot(conversation));
  }

  /** Keep the system prompt and the sampling of the open conversation, also for new ones. */
  async saveSettings(): Promise<void> {
    const { system, sampling } = $state.snapshot(this.current!);
    localStorage.setItem(STORED, JSON.stringify({ system, sampling }));
    if (this.heading) await writeConversation($state.snapshot(this.current!));
  }

  async rename(title: string, folder: string): Promise<void> {
    if (this.heading) await this.#write({ ...this.heading, title, folder });
  }

  async remove(id: string): Promise<void> {
    await deleteConversation(id);
    this.headings = this.headings.filter((each) => each.id !== id);
  }

  export(): Promise<Exported> {
    return exportAll();
  }

  async import(text: string): Promise<number> {
    const number = await importAll(text);
    await this.load();
    return number;
  }

  async #generate(conversation: Conversation, answer: Message, run: (changed: () => void) => Promise<void>): Promise<void> {
    const { id } = conversation;
    this.#running.set(id, conversation);
    let saved = 0;
    const save = () => writeConversation($state.snapshot(conversation));
    await save();
    await run(() => {
      const now = performance.now();
      if (now - saved < SAVE_S * 1000 && answer.read !== 0) return;
      saved = now;
      void save();
    });
    if (!conversation.messages.some((each) => each.state === "running")) this.#running.delete(id);
    await save();
    const heading = this.headings.find((each) => each.id === id);
    if (heading) await this.#write({ ...heading, updated: Date.now() });
  }

  async #addHeading(conversation: Conversation, text: string): Promise<void> {
    await this.#write({ id: conversation.id, title: makeTitle(text), folder: "", updated: Date.now() });
  }

  async #write(heading: Heading): Promise<void> {
    await writeHeading(heading);
    this.headings = [heading, ...this.headings.filter((each) => each.id !== heading.id)];
  }
}

export const chats = new Chats();
