// Colours code. Loaded when an answer has some.

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = { bash, c, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml };
const LONGEST = 50_000;

for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

/** Colour an element by the language that its `data-lang` names. */
export function highlight(code: HTMLElement): void {
  code.dataset.done = "";
  const text = code.textContent ?? "";
  const language = code.dataset.lang ?? "";
  if (text.length <= LONGEST && hljs.getLanguage(language)) code.innerHTML = hljs.highlight(text, { language }).value;
}
