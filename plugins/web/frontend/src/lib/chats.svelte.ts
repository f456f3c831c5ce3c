// The conversations of this browser, and the answers that are being generated for them.

import { ask, resume, stop, type Question } from "./answers";
import { explain } from "./api";
import { findLeaf, makeTitle, readBranch } from "./branches";
import { newId } from "./ids";
import { forget, forgetAll, isOffered, isWanted, keep, listKept, merge, readKept, setWanted } from "./keeper";
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
  /** Whether the server keeps conversations for this client, and whether this browser wants that. */
  isKeepOffered = $state(false);
  isKept = $state(false);
  /** Why the server did not keep what was last given to it. */
  keepError = $state("");
  #opening = "";
  #loaded: Promise<void> | undefined;
  /** What is given to the server, one after the other. */
  #keeping: Promise<void> = Promise.resolve();
  /** Conversations whose answers are being generated, also those that are not open. */
  #running = new Map<string, Conversation>();

  load(): Promise<void> {
    return (this.#loaded = this.#load());
  }

  async #load(): Promise<void> {
    this.headings = await listHeadings();
    this.isKeepOffered = await isOffered();
    this.isKept = this.isKeepOffered && isWanted();
    if (this.isKept) await this.#tryToKeep(() => this.#readHeadings());
  }

  /** Have the server keep all conversations of this browser from now on, or forget those that it has. */
  async setKept(wanted: boolean): Promise<void> {
    await this.#tryToKeep(async () => {
      if (!wanted) await forgetAll();
      setWanted(wanted);
      this.isKept = wanted;
      if (wanted) await this.#readHeadings();
    });
    if (this.keepError) return;
    for (const heading of this.headings) {
      if (!wanted) await writeHeading({ ...heading, base: undefined });
      else if (heading.base === undefined) {
        const found = await readConversation(heading.id);
        if (found) this.#give(found);
      }
    }
    if (!wanted) this.headings = this.headings.map((each) => ({ ...each, base: undefined }));
    await this.#keeping;
  }

  /** Add what other browsers of this client have kept. What they have deleted stays here. */
  async #readHeadings(): Promise<void> {
    const all = new Map(this.headings.map((each) => [each.id, each]));
    for (const { id, title, folder, updated } of await listKept()) {
      const own = all.get(id);
      if (own && own.base !== undefined && own.base >= updated) continue;
      const heading = { ...own, id, title, folder, updated: Math.max(updated, own?.updated ?? 0) };
      await writeHeading(heading);
      all.set(id, heading);
    }
    this.headings = [...all.values()].sort((a, b) => b.updated - a.updated);
  }

  get heading(): Heading | undefined {
    return this.headings.find((each) => each.id === this.current?.id);
  }

  /** Open a conversation, or a new one for an empty or unknown id, and go on with answers that it waits for. */
  async open(id: string): Promise<void> {
    this.#opening = id;
    await this.#loaded;
    const found = this.#running.get(id) ?? (id ? await this.#read(id) : undefined);
    if (this.#opening !== id) return; // another was opened meanwhile
    if (id && id === this.current?.id) return;
    this.current = found ?? { id: newId(), messages: [], leaf: null, ...readDefaults() };
    const opened = this.current;
    for (const message of opened.messages)
      if (message.state === "running" && !this.#running.has(opened.id))
        void this.#generate(opened, message, (changed) => resume(message, changed));
  }

  /** Return a conversation, with what other browsers have added to it if the server keeps it. */
  async #read(id: string): Promise<Conversation | undefined> {
    let found = await readConversation(id);
    const heading = this.headings.find((each) => each.id === id);
    if (!this.isKept || !heading) return found;
    await this.#tryToKeep(async () => {
      const kept = await readKept(id);
      if (!kept || kept.updated === heading.base) return;
      found = found ? merge(found, kept.content) : kept.content;
      await writeConversation(found);
      await this.#write({ ...heading, base: kept.updated }, true);
    });
    return found;
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
    await this.#save(conversation);
  }

  /** Keep the system prompt and the sampling of the open conversation, also for new ones. */
  async saveSettings(): Promise<void> {
    const { system, sampling } = $state.snapshot(this.current!);
    localStorage.setItem(STORED, JSON.stringify({ system, sampling }));
    if (this.heading) await this.#save(this.current!);
  }

  async rename(title: string, folder: string): Promise<void> {
    if (!this.heading) return;
    await this.#write({ ...this.heading, title, folder });
    this.#give(this.current!);
  }

  async remove(id: string): Promise<void> {
    if (this.isKept) await this.#tryToKeep(() => forget(id));
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
    let isGiven = false;
    const save = () => writeConversation($state.snapshot(conversation));
    await save();
    await run(() => {
      const now = performance.now();
      if (now - saved < SAVE_S * 1000 && answer.read !== 0) return;
      saved = now;
      void save();
      if (!isGiven && answer.response) this.#give(conversation); // so that another browser can read the rest
      isGiven ||= answer.response !== undefined;
    });
    if (!conversation.messages.some((each) => each.state === "running")) this.#running.delete(id);
    await save();
    const heading = this.headings.find((each) => each.id === id);
    if (heading) await this.#write({ ...heading, updated: Date.now() });
    this.#give(conversation);
  }

  async #save(conversation: Conversation): Promise<void> {
    await writeConversation($state.snapshot(conversation));
    this.#give(conversation);
  }

  /** Give the present state of a conversation to the server, if it is to keep it. */
  #give(conversation: Conversation): void {
    if (!this.isKept) return;
    const given = $state.snapshot(conversation);
    this.#keeping = this.#keeping.then(() =>
      this.#tryToKeep(async () => {
        const heading = this.headings.find((each) => each.id === given.id);
        if (!heading) return; // it was deleted meanwhile
        const { conversation: both, base } = await keep(given, heading);
        await this.#write({ ...heading, base }, true);
        if (both !== given && !this.#running.has(given.id)) await writeConversation(both);
      }),
    );
  }

  async #tryToKeep(work: () => Promise<void>): Promise<void> {
    try {
      await work();
      this.keepError = "";
    } catch (failure) {
      this.keepError = explain(failure);
    }
  }

  async #addHeading(conversation: Conversation, text: string): Promise<void> {
    await this.#write({ id: conversation.id, title: makeTitle(text), folder: "", updated: Date.now() });
  }

  /** Write a heading, which comes first in the list, or stays in its place. */
  async #write(heading: Heading, isInPlace = false): Promise<void> {
    await writeHeading($state.snapshot(heading));
    const others = this.headings.filter((each) => each.id !== heading.id);
    this.headings = isInPlace
      ? this.headings.map((each) => (each.id === heading.id ? heading : each))
      : [heading, ...others];
  }
}

export const chats = new Chats();
