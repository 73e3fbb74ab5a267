// Messages as DOM nodes. `actions` holds what their buttons do.
import {$, button, element, textNodes} from "/ui/dom.js";
import {codeBlock, renderMarkdown} from "/ui/markdown.js";
import {path, siblings} from "/ui/conversation.js";

const NAMES = {user: "You", assistant: "Answer", tool: "Tool result"};

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function branchButtons(conversation, node, actions) {
  const all = siblings(conversation, node);
  if (all.length < 2) return null;
  const at = all.indexOf(node);
  const step = (by, text, name) => button(text, () => actions.choose(all[at + by]),
    {class: "quiet tiny", "aria-label": name, disabled: all[at + by] === undefined});
  return element("span", {class: "branches", role: "group", "aria-label": "Branches"},
    step(-1, "‹", "Previous branch"), element("span", {text: `${at + 1} / ${all.length}`}),
    step(1, "›", "Next branch"));
}

// Boxes for the results of the tools that the answer calls.
function resultForm(node, actions) {
  const boxes = node.calls.map((call, index) => element("textarea", {rows: 2, class: "code",
    "aria-label": `Result of ${call.name}, call ${index + 1}`, placeholder: `Result of ${call.name}`}));
  return element("form", {class: "results", onsubmit: (event) => {
    event.preventDefault();
    actions.sendResults(node, boxes.map((box) => box.value));
  }}, ...boxes, element("button", {type: "submit", class: "primary", text: "Send results"}));
}

function editor(node, actions) {
  const box = element("textarea", {rows: 4, dir: "auto", "aria-label": "Edit the message"});
  box.value = node.content;
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") actions.cancelEdit();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      actions.finishEdit(node, box.value);
    }
  });
  return element("div", {class: "editor"}, box, element("div", {class: "buttons"},
    button("Cancel", () => actions.cancelEdit()),
    button("Send", () => actions.finishEdit(node, box.value), {class: "primary"})));
}

// One message. update() shows what has been added to the node since.
export function messageView(conversation, node, actions, {last, editing}) {
  const text = element("div", {class: "text"});
  const reasoningText = element("div", {class: "reasoning-text"});
  const summary = element("summary", {text: "Reasoning"});
  const reasoning = element("details", {class: "reasoning", hidden: true}, summary, reasoningText);
  const calls = element("div", {class: "calls"});
  const error = element("p", {class: "failure", role: "alert", hidden: true});
  const stats = element("span", {class: "stats"});
  const foot = element("div", {class: "foot"});
  const item = element("li", {class: `message ${node.role}`, "data-id": node.id},
    element("h2", {class: "hidden", text: NAMES[node.role]}));
  const copy = button("Copy", () => actions.copy(node), {class: "quiet tiny"});

  if (editing) {
    item.append(editor(node, actions));
    return {item, update: () => {}};
  }
  item.append(reasoning, text, calls, error, foot);

  function update(running = false) {
    item.setAttribute("aria-busy", String(running));
    item.classList.toggle("running", running);
    reasoning.hidden = !node.reasoning;
    if (node.reasoning) renderMarkdown(reasoningText, node.reasoning);
    summary.textContent = running && !node.content ? "Reasoning…" : "Reasoning";
    if (node.role === "assistant") renderMarkdown(text, node.content);
    else text.replaceChildren(element("p", {class: "plain", dir: "auto"}, ...textNodes(node.content)));
    calls.replaceChildren(...(node.calls ?? []).map((call) => element("div", {class: "call"},
      element("p", {class: "call-name"}, "Calls ", element("code", {}, ...textNodes(call.name))),
      codeBlock(pretty(call.arguments), "json"))));
    if (!running && last && node.calls?.length) calls.append(resultForm(node, actions));
    error.hidden = !node.error;
    error.replaceChildren(...textNodes(node.error ?? ""));
    stats.textContent = node.stats ?? "";
    foot.hidden = running && !node.stats;
    if (running) return foot.replaceChildren(stats);
    const own = node.role === "user" ? button("Edit", () => actions.edit(node), {class: "quiet tiny"})
      : node.role === "assistant" ? button("Regenerate", () => actions.regenerate(node), {class: "quiet tiny"}) : null;
    foot.replaceChildren(...[branchButtons(conversation, node, actions), copy, own, stats].filter(Boolean));
  }
  update();
  return {item, update};
}

// Shows the branch and returns the views by message id.
export function showMessages(conversation, actions, editing) {
  const nodes = path(conversation);
  const views = new Map(nodes.map((node, index) => [node.id, messageView(conversation, node, actions,
    {last: index === nodes.length - 1, editing: editing === node.id})]));
  $("messages").replaceChildren(...[...views.values()].map((view) => view.item));
  $("empty").hidden = nodes.length > 0;
  $("title").replaceChildren(...textNodes(conversation.title));
  return views;
}
