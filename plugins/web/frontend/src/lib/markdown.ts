// Turns what a model has written into safe HTML. Nothing of it is ever run: it is sanitised, block by block.

import DOMPurify from "dompurify";
import { Marked, type TokenizerAndRendererExtension } from "marked";

const escape = (text: string) => text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

/** TeX between dollars, or after backslashes; it is set in `decorate`. */
function makeMath(name: string, level: "block" | "inline", start: RegExp, rule: RegExp): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (source) => source.match(start)?.index,
    tokenizer(source) {
      const match = rule.exec(source);
      return match ? { type: name, raw: match[0], text: (match[1] ?? match[2])!.trim() } : undefined;
    },
    renderer: (token) => {
      const text = escape(String(token.text));
      return level === "block" ? `<p class="math" data-display>${text}</p>` : `<span class="math">${text}</span>`;
    },
  };
}

const marked = new Marked({
  gfm: true,
  extensions: [
    makeMath("mathBlock", "block", /\$\$|\\\[/, /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])\s*(?:\n|$)/),
    makeMath("mathInline", "inline", /\$|\\\(/, /^(?:\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)|\\\(([\s\S]+?)\\\))/),
  ],
  renderer: {
    html: ({ text }) => escape(text), // tags are shown as they were written
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`, // nothing is fetched
    code: ({ text, lang }) => `<pre><code data-lang="${escape(lang?.split(/\s/)[0] ?? "")}">${escape(text)}\n</code></pre>`,
  },
});

const ALLOWED = {
  ALLOWED_TAGS: (
    "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre s span strong sub sup table tbody td th thead tr ul"
  ).split(" "),
  ALLOWED_ATTR: ["align", "class", "data-display", "data-lang", "href", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "data-display", "data-lang", "start"],
  ALLOW_DATA_ATTR: false,
};

/** Return the blocks of a text as HTML. Blocks that were seen before are taken from `seen`, which has those of one text. */
export function render(text: string, seen: Map<string, string>): string[] {
  const blocks: string[] = [];
  for (const token of marked.lexer(text)) {
    if (token.type === "space" || token.type === "def") continue;
    let html = seen.get(token.raw);
    if (html === undefined) {
      html = String(DOMPurify.sanitize(String(marked.parser([token])), ALLOWED));
      if (seen.size > 2000) seen.clear();
      seen.set(token.raw, html);
    }
    blocks.push(html);
  }
  return blocks;
}

/** Colour the code and set the formulas of an element, by libraries that are loaded when they are needed. */
export async function decorate(element: HTMLElement): Promise<void> {
  const codes = element.querySelectorAll<HTMLElement>("pre > code:not([data-done])");
  const formulas = element.querySelectorAll<HTMLElement>(".math:not([data-done])");
  if (codes.length) {
    const { highlight } = await import("./highlight");
    for (const code of codes) highlight(code);
  }
  if (formulas.length) {
    const { typeset } = await import("./math");
    for (const formula of formulas) typeset(formula);
  }
}
