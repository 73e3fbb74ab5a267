// Calls of the API with the key of this session, and its event streams.
import {$, element} from "/ui/dom.js";

const KEY = "sluice.key";
let asking = null;

export class ApiProblem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const forgetKey = () => sessionStorage.removeItem(KEY);

function keyDialog() {
  const dialog = element("dialog", {class: "small", id: "key", "aria-labelledby": "key-title"},
    element("form", {method: "dialog", id: "key-form"},
      element("h2", {id: "key-title", text: "API key"}),
      element("p", {id: "key-text"}),
      element("label", {class: "block", for: "key-input", text: "Key"}),
      element("input", {type: "password", id: "key-input", autocomplete: "off", spellcheck: "false", required: true}),
      element("div", {class: "buttons"},
        element("button", {type: "submit", class: "primary", id: "key-save", text: "Continue"}))));
  document.body.append(dialog);
  return dialog;
}

// Asks once for all requests that wait for the key.
function askForKey(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = $("key") ?? keyDialog();
    $("key-text").textContent = refused ? "The server refused this key. Enter another one."
      : "This server asks for an API key. It stays in this tab until you close it.";
    $("key-input").value = "";
    dialog.addEventListener("close", () => {
      const key = $("key-input").value.trim();
      $("key-input").value = "";
      if (key !== "") sessionStorage.setItem(KEY, key);
      asking = null;
      resolve(key !== "");
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

async function problemOf(response) {
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* not the API's own error */ }
  return new ApiProblem(response.status, message || `The server answered with status ${response.status}.`);
}

// Like fetch, with the key. Throws ApiProblem when the answer is an error.
export async function call(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = {...options.headers};
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    if (options.body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {...options, headers, cache: "no-store"});
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiProblem(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await problemOf(response);
    if (key === sessionStorage.getItem(KEY) && !await askForKey(key !== null)) {
      throw new ApiProblem(401, "The server asks for an API key.");
    }
  }
}

// The data of each event of a stream, parsed.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const data = line.startsWith("data:") ? line.slice(5).trim() : "";
        if (data === "[DONE]") return;
        if (data !== "") yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
