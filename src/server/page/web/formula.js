// Formulas as MathML. KaTeX is loaded when the first formula appears.
import {element} from "/ui/dom.js";

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(element("script", {src: "/ui/katex.js", onload: () => resolve(globalThis.katex),
      onerror: () => reject(new Error("KaTeX cannot be loaded"))}));
  });
  return library;
}

// Shows the source until the formula is ready, and for good if it is malformed.
export function formula(source, display) {
  const node = element(display ? "div" : "span", {class: display ? "formula display" : "formula", text: source});
  load().then((katex) => {
    const made = document.createElement("span");
    katex.render(source, made, {output: "mathml", displayMode: display, trust: false, maxExpand: 200, maxSize: 20});
    node.replaceChildren(...made.childNodes);
  }).catch(() => node.classList.add("malformed"));
  return node;
}
