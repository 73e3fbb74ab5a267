// The chat page: connects the conversation, its view, the settings and the API.
import {$, button, copyText, element} from "/ui/dom.js";
import {answer} from "/ui/answer.js";
import {call, forgetKey, hasKey} from "/ui/api.js";
import {addNode, choose, newConversation, requestMessages} from "/ui/conversation.js";
import {requestFields, setUpSettings} from "/ui/settings.js";
import {closeSidebar, setUpSidebar, setUpTheme, showConversations} from "/ui/sidebar.js";
import {allConversations, openStore, removeConversation, saveConversation} from "/ui/store.js";
import {download, readConversations} from "/ui/transfer.js";
import {showMessages} from "/ui/view.js";

const SUGGESTIONS = ["What is 17 + 25?", "Tell me a story about a clever mouse.", "List four countries in Asia."];
const PAINT_EVERY = 60;  // ms between two paints of a growing answer, or more if a paint takes long

let conversations = [];
let current = newConversation();
let views = new Map();
let editing = null;
let running = null;  // the AbortController of the answer in progress

function tell(message) {
  $("notice").textContent = message;
  $("notice").hidden = message === "";
}

const announce = (message) => { $("status").textContent = message; };

function showAll() {
  views = showMessages(current, actions, editing);
  showConversations(conversations, current, {open, remove});
  $("system").value = current.system;
  $("forget-key").hidden = !hasKey();
}

async function save(conversation) {
  if (!conversations.includes(conversation)) conversations.unshift(conversation);
  try {
    await saveConversation(conversation);
  } catch (error) {
    tell(`The browser cannot keep this conversation: ${error.message}`);
  }
}

function open(conversation) {
  running?.abort();
  current = conversation;
  editing = null;
  tell("");
  showAll();
  closeSidebar();
  scrollDown(true);
  $("input").focus();
}

async function remove(conversation) {
  if (!confirm(`Delete "${conversation.title}"?`)) return;
  conversations = conversations.filter((other) => other !== conversation);
  await removeConversation(conversation.id);
  if (conversation === current) open(newConversation());
  else showAll();
}

// Follows the answer unless the reader has scrolled up.
const atEnd = () => $("main").scrollHeight - $("main").scrollTop - $("main").clientHeight < 80;
function scrollDown(always) {
  if (always) $("main").scrollTop = $("main").scrollHeight;
}

// Paints at most once per interval, and not more often than painting allows.
function painter(view) {
  let timer = null, cost = 0;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      const follow = atEnd(), begin = performance.now();
      view()?.update(running !== null);
      cost = performance.now() - begin;
      scrollDown(follow);
    }, Math.max(PAINT_EVERY, 4 * cost));
  };
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
}

// Adds an answer below the message and streams it.
async function generate(parent) {
  let fields;
  try {
    fields = requestFields();
  } catch (error) {
    return tell(error.message);
  }
  tell("");
  running?.abort();
  const conversation = current, controller = new AbortController();
  const model = $("model").value;
  const messages = requestMessages(conversation, parent);
  const node = addNode(conversation, parent, {role: "assistant", model});
  setRunning(controller);
  editing = null;
  showAll();
  views.get(node.id).update(true);
  scrollDown(true);
  announce("Answering");
  const paint = painter(() => controller === running ? views.get(node.id) : null);
  await Promise.all([save(conversation),
    answer(node, {...fields, model: model || undefined, messages}, controller.signal, paint)]);
  if (controller === running) setRunning(null);
  await save(conversation);
  if (conversation !== current) return;
  const follow = atEnd();
  showAll();
  scrollDown(follow);
  announce(node.error ? `The answer failed: ${node.error}`
    : controller.signal.aborted ? "Stopped" : "The answer is complete");
}

function sendText(text, parent) {
  if (text.trim() === "") return;
  generate(addNode(current, parent, {role: "user", content: text}).id);
}

const actions = {
  choose(node) { choose(current, node); save(current); showAll(); },
  edit(node) {
    editing = node.id;
    showAll();
    $("messages").querySelector(".editor textarea").focus();
  },
  cancelEdit() { editing = null; showAll(); $("input").focus(); },
  finishEdit(node, text) { sendText(text, node.parent); },
  regenerate(node) { generate(node.parent); },
  sendResults(node, results) {
    let parent = node.id;
    node.calls.forEach((made, index) => {
      parent = addNode(current, parent, {role: "tool", callId: made.id, content: results[index]}).id;
    });
    generate(parent);
  },
  async copy(node) {
    await copyText(node.content);
    announce("Copied");
  },
};

function setUpComposer() {
  const input = $("input");
  const fit = () => {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight, 220)}px`;
  };
  const submit = () => {
    if (running || input.value.trim() === "") return;
    const text = input.value;
    input.value = "";
    fit();
    sendText(text, current.leaf);
  };
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("stop").addEventListener("click", () => { running?.abort(); input.focus(); });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
  });
  $("suggestions").replaceChildren(...SUGGESTIONS.map((text) =>
    button(text, () => sendText(text, current.leaf), {class: "quiet suggestion"})));
}

function setUpMenu() {
  $("new").addEventListener("click", () => open(newConversation()));
  $("open-settings").addEventListener("click", () => $("settings").showModal());
  $("settings").addEventListener("click", (event) => { if (event.target === $("settings")) $("settings").close(); });
  $("system").addEventListener("input", () => {
    current.system = $("system").value;
    if (current.nodes.size > 0) save(current);
  });
  $("export").addEventListener("click", () => download(conversations));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async (event) => {
    try {
      const read = readConversations(await event.target.files[0].text());
      for (const conversation of read) await save(conversation);
      if (read.length > 0) open(read[0]);
    } catch (error) {
      tell(error.message);
    }
    event.target.value = "";
  });
  $("forget-key").addEventListener("click", () => { forgetKey(); showAll(); });
}

// Waits until the model is loaded, and shows how far it is.
async function untilLoaded() {
  for (;;) {
    try {
      const health = await (await fetch("/health", {cache: "no-store"})).json();
      $("loading").hidden = health.status !== "loading";
      if (health.status !== "loading") return;
      $("loading-bar").value = health.progress;
      $("loading-text").textContent = `The model is loading: ${Math.floor(100 * health.progress)} %.`;
    } catch { /* the loading server has gone and the real one comes */ }
    await new Promise((resolve) => { setTimeout(resolve, 500); });
  }
}

async function loadModels() {
  const {data} = await (await call("/v1/models")).json();
  $("model").replaceChildren(...data.map((model) => element("option", {value: model.id, text: model.id})));
  const known = localStorage.getItem("sluice.model");
  if (data.some((model) => model.id === known)) $("model").value = known;
  const showName = () => { $("empty-model").textContent = $("model").value || "the model"; };
  $("model").addEventListener("change", () => {
    localStorage.setItem("sluice.model", $("model").value);
    showName();
  });
  showName();
  $("forget-key").hidden = !hasKey();
}

setUpTheme();
setUpSidebar();
setUpComposer();
setUpMenu();
if (!await openStore()) tell("This browser keeps nothing: conversations are lost when the page closes.");
conversations = await allConversations();
if (conversations.length > 0) [current] = conversations;
showAll();
scrollDown(true);
await untilLoaded();
try {
  await setUpSettings();
  await loadModels();
  document.body.dataset.ready = "true";
} catch (error) {
  tell(error.message);
}
