// Keeps conversations in the browser's IndexedDB, and in memory alone where it has none.

const STORE = "conversations";
let database = null;
const memory = new Map();

const result = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// Returns whether conversations outlive the page.
export async function openStore() {
  try {
    const request = indexedDB.open("sluice", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, {keyPath: "id"});
    database = await result(request);
    return true;
  } catch {
    return false;
  }
}

const table = (mode) => database.transaction(STORE, mode).objectStore(STORE);

export async function allConversations() {
  const all = database ? await result(table("readonly").getAll()) : [...memory.values()];
  return all.sort((a, b) => b.updated - a.updated);
}

export async function saveConversation(conversation) {
  if (database) await result(table("readwrite").put(conversation));
  else memory.set(conversation.id, conversation);
}

export async function removeConversation(id) {
  if (database) await result(table("readwrite").delete(id));
  else memory.delete(id);
}
