// The language of the page.

import { en } from "../languages/en";
import type { Word } from "../languages/en";
import { zh } from "../languages/zh";

export type { Word };

export const LANGUAGES = { en: { name: "English", words: en }, zh: { name: "中文", words: zh } } as const;
export type Language = keyof typeof LANGUAGES;

const STORED = "parallax.language";

function findFirst(): Language {
  const wanted = [localStorage.getItem(STORED) ?? "", ...navigator.languages].map((each) => each.split("-")[0]!);
  return (wanted.find((each) => each in LANGUAGES) as Language | undefined) ?? "en";
}

let current = $state<Language>(findFirst());

export const language = {
  get current() {
    return current;
  },
  set(next: Language) {
    current = next;
    localStorage.setItem(STORED, next);
  },
};

/** Return the words for a key in the language of the page, with values in place of `{name}`. */
export function t(key: Word, values: Record<string, string | number> = {}): string {
  return LANGUAGES[current].words[key].replace(/\{(\w+)\}/g, (all, name: string) => String(values[name] ?? all));
}
