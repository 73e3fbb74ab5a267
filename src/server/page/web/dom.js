// Builds DOM nodes. Nothing here or elsewhere turns a string into HTML.

// Controls that embed or override the direction of text. They could make one text look like another.
const CONTROLS = /([\u202a-\u202e\u2066-\u2069])/;

export const $ = (id) => document.getElementById(id);

// element("a", {class: "x", onclick: f, text: "..."}, child, ...)
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const button = (text, onclick, properties = {}) =>
  element("button", {type: "button", class: "quiet", ...properties, onclick, text});

// Browsers offer the clipboard's own interface only over TLS and on the same machine.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const box = element("textarea", {class: "hidden", "aria-hidden": "true"});
  box.value = text;
  const before = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
  before?.focus();
}

// Text from elsewhere as nodes. Controls of the text direction become visible.
export function textNodes(text) {
  return String(text).split(CONTROLS).filter((part) => part !== "").map((part) =>
    CONTROLS.test(part) ? element("span", {class: "control", title: "control of the text direction",
      text: `U+${part.codePointAt(0).toString(16).toUpperCase()}`})
      : document.createTextNode(part));
}
