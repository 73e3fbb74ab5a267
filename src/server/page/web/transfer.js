// Conversations as a JSON file. What is read is checked, as the file may come from anywhere.
import {element} from "/ui/dom.js";
import {newId} from "/ui/conversation.js";

const FORMAT = "sluice-conversations";

export function download(conversations) {
  const data = {format: FORMAT, version: 1,
    conversations: conversations.map((conversation) => ({...conversation, nodes: [...conversation.nodes.values()]}))};
  const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], {type: "application/json"}));
  element("a", {href: url, download: `${FORMAT}.json`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function expect(condition, what) {
  if (!condition) throw new Error(`The file cannot be imported: ${what}.`);
}

function readCall(call) {
  for (const name of ["id", "name", "arguments"]) {
    expect(typeof call?.[name] === "string", `a tool call has no ${name}`);
  }
  return {id: call.id, name: call.name, arguments: call.arguments};
}

function readNode(node, known) {
  expect(typeof node?.id === "string" && !known.has(node.id), "the ids of messages must be texts that differ");
  expect(node.parent === null || known.has(node.parent), "a message comes before the one that it answers");
  expect(["user", "assistant", "tool"].includes(node.role), "a role is not user, assistant or tool");
  expect(typeof node.content === "string", "a message has no content");
  const out = {id: node.id, parent: node.parent, role: node.role, content: node.content};
  for (const name of ["reasoning", "error", "model", "callId", "stats"]) {
    if (node[name] === undefined || node[name] === null) continue;
    expect(typeof node[name] === "string", `${name} must be a text`);
    out[name] = node[name];
  }
  if (node.calls !== undefined) {
    expect(Array.isArray(node.calls), "calls must be an array");
    out.calls = node.calls.map(readCall);
  }
  return out;
}

// Returns new conversations. Throws Error that says what is wrong with the file.
export function readConversations(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file cannot be imported: it is not JSON.");
  }
  expect(data?.format === FORMAT && data.version === 1 && Array.isArray(data.conversations),
    `it is not an export (format ${FORMAT}, version 1)`);
  return data.conversations.map((conversation) => {
    expect(typeof conversation?.title === "string" && Array.isArray(conversation.nodes),
      "a title or messages are missing");
    const nodes = new Map();
    for (const node of conversation.nodes) nodes.set(node?.id, readNode(node, nodes));
    expect(conversation.leaf === null || nodes.has(conversation.leaf), "the leaf is not one of the messages");
    return {id: newId(), title: conversation.title.slice(0, 200), updated: Number(conversation.updated) || Date.now(),
      system: typeof conversation.system === "string" ? conversation.system : "", leaf: conversation.leaf, nodes};
  });
}
