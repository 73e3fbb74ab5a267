// A conversation as a tree of messages. A leaf names the branch that is shown.

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export function newConversation() {
  return {id: newId(), title: "New conversation", updated: Date.now(), system: "", leaf: null, nodes: new Map()};
}

export function addNode(conversation, parent, node) {
  const added = {id: newId(), parent, content: "", ...node};
  conversation.nodes.set(added.id, added);
  conversation.leaf = added.id;
  conversation.updated = Date.now();
  if (conversation.title === "New conversation" && node.role === "user") {
    conversation.title = node.content.trim().split("\n")[0].slice(0, 80) || conversation.title;
  }
  return added;
}

// The messages from the first one to the leaf.
export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let node = conversation.nodes.get(leaf); node; node = conversation.nodes.get(node.parent)) found.unshift(node);
  return found;
}

export function siblings(conversation, node) {
  return [...conversation.nodes.values()].filter((other) => other.parent === node.parent);
}

// Shows the branch of this message, down to its newest leaf.
export function choose(conversation, node) {
  const nodes = [...conversation.nodes.values()];
  let leaf = node;
  for (let child = node; child; child = nodes.findLast((other) => other.parent === leaf.id)) leaf = child;
  conversation.leaf = leaf.id;
}

// Messages as the API takes them. Answers that failed before their first token are left out.
export function requestMessages(conversation, leaf) {
  const messages = conversation.system.trim() ? [{role: "system", content: conversation.system}] : [];
  for (const node of path(conversation, leaf)) {
    if (node.role === "user") messages.push({role: "user", content: node.content});
    if (node.role === "tool") messages.push({role: "tool", tool_call_id: node.callId, content: node.content});
    if (node.role !== "assistant" || (!node.content && !node.calls?.length)) continue;
    const message = {role: "assistant", content: node.content};
    if (node.calls?.length) {
      message.tool_calls = node.calls.map((call) =>
        ({id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
    }
    messages.push(message);
  }
  return messages;
}
