// Sets formulas as MathML. Loaded when an answer has one.

import DOMPurify from "dompurify";
import temml from "temml";

/** Replace the TeX of an element by MathML; what is no TeX stays as it is. */
export function typeset(formula: HTMLElement): void {
  formula.dataset.done = "";
  const display = "display" in formula.dataset;
  try {
    const html = temml.renderToString(formula.textContent ?? "", { displayMode: display, trust: false, throwOnError: true });
    const plain = html.replace(/ style="[^"]*"/g, ""); // which the Content-Security-Policy would refuse, and report
    formula.innerHTML = DOMPurify.sanitize(plain, { USE_PROFILES: { mathMl: true }, FORBID_ATTR: ["style"] });
  } catch {
    formula.classList.add("plain");
  }
}
