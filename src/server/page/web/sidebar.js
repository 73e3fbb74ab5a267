// The list of conversations, and the drawer that it becomes on narrow screens.
import {$, button, element, textNodes} from "/ui/dom.js";

const narrow = matchMedia("(max-width: 760px)");

function setOpen(open) {
  $("sidebar").classList.toggle("open", open);
  $("sidebar").inert = narrow.matches && !open;
  $("backdrop").hidden = !(narrow.matches && open);
  $("open-sidebar").setAttribute("aria-expanded", String(open));
  if (open) $("close-sidebar").focus();
}

export function closeSidebar() {
  const wasOpen = $("sidebar").classList.contains("open");
  setOpen(false);
  if (wasOpen) $("open-sidebar").focus();
}

export function setUpSidebar() {
  $("open-sidebar").addEventListener("click", () => setOpen(true));
  for (const id of ["close-sidebar", "backdrop"]) $(id).addEventListener("click", closeSidebar);
  $("sidebar").addEventListener("keydown", (event) => { if (event.key === "Escape") closeSidebar(); });
  narrow.addEventListener("change", () => setOpen(false));
  setOpen(false);
}

export function showConversations(conversations, current, {open, remove}) {
  $("conversations").replaceChildren(...conversations.map((conversation) => {
    const name = button("", () => open(conversation),
      {class: "name", "aria-current": conversation === current ? "true" : undefined});
    name.append(...textNodes(conversation.title));
    return element("li", {}, name,
      button("✕", () => remove(conversation), {class: "icon delete", "aria-label": `Delete ${conversation.title}`}));
  }));
}

const THEMES = {auto: "automatic", light: "light", dark: "dark"};

export function setUpTheme() {
  const root = document.documentElement;
  const show = () => { $("theme").textContent = `Theme: ${THEMES[root.dataset.theme] ?? "automatic"}`; };
  $("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    root.dataset.theme = names[(names.indexOf(root.dataset.theme) + 1) % names.length];
    localStorage.setItem("sluice.theme", root.dataset.theme);
    show();
  });
  show();
}
