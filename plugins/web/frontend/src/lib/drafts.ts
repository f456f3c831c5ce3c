// What was written and not sent yet. It is kept in this browser, so that no reload wipes it.

const PREFIX = "parallax.draft.";

export const readDraft = (name: string): string => localStorage.getItem(PREFIX + name) ?? "";

/** Keep a text; an empty one is forgotten. */
export function keepDraft(name: string, text: string): void {
  if (text) localStorage.setItem(PREFIX + name, text);
  else localStorage.removeItem(PREFIX + name);
}
