// The settings panel. Its controls are made from the server's table of request parameters.
import {$, element} from "/ui/dom.js";

const KEY = "sluice.settings";
// The most used ones are always in sight, in this order.
const COMMON = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "enable_thinking"];
// The page sets these itself, or does not show what they ask for.
const OWN = new Set(["model", "messages", "stream", "stream_options", "tools", "functions", "response_format", "n",
  "max_completion_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "include_reasoning", "thinking",
  "add_generation_prompt", "add_special_tokens", "guided_regex", "guided_grammar", "grammar"]);
const SHOWN = new Set(["number", "integer", "boolean", "string", "string or strings"]);

let values = {};
let rows = [];

function save() {
  localStorage.setItem(KEY, JSON.stringify({values, schema: $("schema").value, tools: $("tools").value}));
}

const label = (name) => name.replaceAll("_", " ");

// What the row accepts beyond its type, as text for people.
function rangeText(row) {
  if (row.min === undefined || Math.abs(row.max) > 1e9) return "";
  return `${row.above_min ? "above " : ""}${row.min} to ${row.max}; `;
}

// Returns the value, undefined for an empty control, or throws Error.
function parse(row, text) {
  if (text.trim() === "") return undefined;
  if (row.type === "boolean") return text === "true";
  if (row.type === "string") return text;
  if (row.type === "string or strings") return text.split("\n").filter((line) => line !== "");
  const number = Number(text);
  if (!Number.isFinite(number)) throw new Error("Enter a number.");
  if (row.type === "integer" && !Number.isSafeInteger(number)) throw new Error("Enter a whole number.");
  const below = row.min !== undefined && (number < row.min || (row.above_min && number === row.min));
  if (below || number > row.max) throw new Error(`Enter a number from ${rangeText(row).replace("; ", "")}.`);
  return number;
}

function textOf(row) {
  const value = values[row.name];
  if (value === undefined) return "";
  return Array.isArray(value) ? value.join("\n") : String(value);
}

function controlOf(row, id) {
  const common = {id, "aria-describedby": `${id}-help`};
  if (row.type === "boolean") {
    return element("select", common, ...["", "true", "false"].map((value) =>
      element("option", {value, text: value || "default"})));
  }
  if (row.type === "string or strings") return element("textarea", {...common, rows: 2, placeholder: "one per line"});
  const numeric = row.type === "number" || row.type === "integer";
  return element("input", {...common, type: "text", inputmode: numeric ? "decimal" : undefined, autocomplete: "off",
    placeholder: row.default.replace(/^chat: ([^;]*).*/, "$1")});
}

function field(row) {
  const id = `set-${row.name}`;
  const control = controlOf(row, id);
  control.value = textOf(row);
  const problem = element("p", {class: "problem", role: "alert"});
  control.addEventListener("input", () => {
    try {
      values[row.name] = parse(row, control.value);
      problem.textContent = "";
    } catch (error) {
      delete values[row.name];
      problem.textContent = error.message;
    }
    control.setAttribute("aria-invalid", String(problem.textContent !== ""));
    save();
  });
  return element("div", {class: "setting"}, element("label", {for: id, text: label(row.name)}), control,
    element("p", {class: "help", id: `${id}-help`, text: `${rangeText(row)}${row.help}`}), problem);
}

function show() {
  const common = COMMON.map((name) => rows.find((row) => row.name === name)).filter(Boolean);
  const others = rows.filter((row) => !common.includes(row)).sort((a, b) => a.name.localeCompare(b.name));
  $("parameters").replaceChildren(element("div", {class: "grid"}, ...common.map(field)),
    element("details", {}, element("summary", {text: `More sampling settings (${others.length})`}),
      element("div", {class: "grid"}, ...others.map(field))));
}

function parseBox(id, check) {
  const text = $(id).value.trim();
  $(`${id}-problem`).textContent = "";
  if (text === "") return undefined;
  try {
    const value = JSON.parse(text);
    if (!check(value)) throw new Error(id === "tools" ? "Expected a JSON array." : "Expected a JSON object.");
    return value;
  } catch (error) {
    $(`${id}-problem`).textContent = error.message;
    throw new Error(`${id === "tools" ? "Tools" : "JSON schema"}: ${error.message}`);
  }
}

// The fields of a request. Throws Error when a box holds no valid JSON.
export function requestFields() {
  const fields = {};
  for (const row of rows) {
    if (values[row.name] !== undefined) fields[row.name] = values[row.name];
  }
  const schema = parseBox("schema", (value) => value !== null && typeof value === "object" && !Array.isArray(value));
  if (schema) fields.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
  const tools = parseBox("tools", Array.isArray);
  if (tools?.length) fields.tools = tools;
  return fields;
}

export async function setUpSettings() {
  try {
    const saved = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    values = saved.values ?? {};
    $("schema").value = saved.schema ?? "";
    $("tools").value = saved.tools ?? "";
  } catch {
    values = {};
  }
  for (const id of ["schema", "tools"]) {
    $(id).addEventListener("input", () => {
      save();
      try { requestFields(); } catch { /* shown below the box */ }
    });
  }
  $("reset").addEventListener("click", () => {
    values = {};
    $("schema").value = $("tools").value = "";
    save();
    show();
  });
  const response = await fetch("/ui/parameters.json");
  if (!response.ok) return;
  const table = (await response.json()).parameters;
  rows = table.filter((row) => SHOWN.has(row.type) && !OWN.has(row.name));
  show();
}
