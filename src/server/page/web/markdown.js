// Markdown as DOM nodes, made from the tokens of Marked's lexer. HTML in the source stays text.
import {button, copyText, element, textNodes} from "/ui/dom.js";
import {formula} from "/ui/formula.js";

const MOST_SOURCE = 100_000;  // longer texts are shown as they are
const MOST_INLINE = 20_000;   // so are longer paragraphs: the lexer's time may grow with the square of their length
const MOST_DEPTH = 24;
const ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'"};

// The lexer escapes some texts for HTML.
const unescape = (text) => text.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity]);

const BLOCK_FORMULA = /^(?:\$\$([^$]{1,2000})\$\$|\\\[([\s\S]{1,2000}?)\\\])[^\S\n]*(?:\n+|$)/;
const INLINE_FORMULA =
  /^(?:\$\$([^$]{1,1000})\$\$|\$(?![\s$])((?:\\.|[^$\\\n]){1,1000})\$(?!\d)|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\])/;

function formulaExtension(level, expression) {
  return {
    name: `${level}Formula`, level,
    // Formulas that are blocks begin a line.
    start: (source) => {
      const match = (level === "block" ? /\n {0,3}(?=\$\$|\\\[)/ : /(?=\$|\\[([])/).exec(source);
      return match ? match.index + match[0].length : undefined;
    },
    tokenizer: (source) => {
      const match = expression.exec(source);
      if (!match || /^\$[^$].*\s\$$/.test(match[0])) return undefined;
      const display = match[0].startsWith("$$") || match[0].startsWith("\\[");
      const text = match.slice(1).find((part) => part !== undefined).trim();
      return {type: `${level}Formula`, raw: match[0], text, display};
    },
  };
}

let prepared = false;

function tokensOf(source) {
  const {marked} = globalThis;
  if (!prepared) {
    marked.use({extensions: [formulaExtension("block", BLOCK_FORMULA), formulaExtension("inline", INLINE_FORMULA)]});
    prepared = true;
  }
  const lexer = new marked.Lexer();
  const tokens = lexer.blockTokens(source.replace(/\r\n?/g, "\n"), []);
  for (let next = lexer.inlineQueue.shift(); next; next = lexer.inlineQueue.shift()) {
    if (next.src.length > MOST_INLINE) next.tokens.push({type: "plain", raw: next.src});
    else lexer.inlineTokens(next.src, next.tokens);
  }
  return tokens.filter((token) => token.type !== "space" && token.type !== "def");
}

// Only addresses that cannot run code.
function safeAddress(address) {
  try {
    const url = new URL(unescape(address));
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;  // a relative address would lead into this server
  }
}

function link(token, depth) {
  const address = safeAddress(token.href ?? "");
  if (address === null) return textNodes(token.raw);
  const children = token.type === "image" ? textNodes(unescape(token.text || "image")) : inline(token.tokens, depth);
  return [element("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address},
    ...children)];
}

export function codeBlock(text, language) {
  const copy = button("Copy", async () => {
    await copyText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const code = element("code", {}, ...textNodes(text));
  return element("div", {class: "code-block"},
    element("div", {class: "code-head"}, element("span", {text: language || "text"}), copy),
    element("pre", {tabindex: "0", role: "region", "aria-label": `Code, ${language || "text"}`, dir: "ltr"}, code));
}

function list(token, depth) {
  const items = token.items.map((item) => {
    const box = item.task
      ? element("input", {type: "checkbox", disabled: true, checked: item.checked, "aria-label": "Task"}) : null;
    return element("li", {dir: "auto"}, box, ...blocks(item.tokens, depth));
  });
  const start = token.ordered && token.start > 1 ? String(token.start) : undefined;
  return element(token.ordered ? "ol" : "ul", {start}, ...items);
}

function table(token, depth) {
  const cell = (tag) => (value, column) =>
    element(tag, {class: token.align[column] ? `align-${token.align[column]}` : undefined, dir: "auto",
      scope: tag === "th" ? "col" : undefined}, ...inline(value.tokens, depth));
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table"},
    element("table", {}, element("thead", {}, element("tr", {}, ...token.header.map(cell("th")))),
      element("tbody", {}, ...token.rows.map((row) => element("tr", {}, ...row.map(cell("td")))))));
}

const paragraph = (token, depth) => element("p", {dir: "auto"}, ...inline(token.tokens, depth));

const BLOCKS = {
  paragraph,
  heading: (token, depth) =>
    element(`h${Math.min(token.depth + 2, 6)}`, {dir: "auto"}, ...inline(token.tokens, depth)),
  code: (token) => codeBlock(unescape(token.text), (token.lang ?? "").split(/\s/)[0]),
  blockquote: (token, depth) => element("blockquote", {dir: "auto"}, ...blocks(token.tokens, depth)),
  hr: () => element("hr"),
  blockFormula: (token) => formula(token.text, true),
  list,
  table,
  text: (token, depth) => token.tokens ? element("span", {}, ...inline(token.tokens, depth)) : plain(token.raw),
};

const INLINE = {
  strong: (token, depth) => [element("strong", {}, ...inline(token.tokens, depth))],
  em: (token, depth) => [element("em", {}, ...inline(token.tokens, depth))],
  del: (token, depth) => [element("del", {}, ...inline(token.tokens, depth))],
  codespan: (token) => [element("code", {dir: "ltr"}, ...textNodes(unescape(token.text)))],
  br: () => [element("br")],
  inlineFormula: (token) => [formula(token.text, token.display)],
  escape: (token) => textNodes(unescape(token.text)),
  text: (token) => textNodes(unescape(token.text)),
  link,
  image: link,
};

const plain = (text) => element("p", {class: "plain", dir: "auto"}, ...textNodes(text));

function block(token, depth) {
  const make = depth < MOST_DEPTH ? BLOCKS[token.type] : undefined;
  return make ? make(token, depth + 1) : plain(token.raw.trimEnd());
}

function blocks(tokens, depth) {
  return tokens.filter((token) => token.type !== "space" && token.type !== "def").map((token) => block(token, depth));
}

function inline(tokens, depth) {
  return (tokens ?? []).flatMap((token) => {
    const make = depth < MOST_DEPTH ? INLINE[token.type] : undefined;
    return make ? make(token, depth + 1) : textNodes(token.raw);
  });
}

// Renders into `target`. While a text grows, the blocks at its beginning stay as they are.
export function renderMarkdown(target, source) {
  let tokens;
  try {
    tokens = source.length > MOST_SOURCE ? [{type: "plain", raw: source}] : tokensOf(source);
  } catch {
    tokens = [{type: "plain", raw: source}];  // nested too deeply for the lexer
  }
  const before = target.sources ?? [];
  let same = 0;
  while (same < before.length && same < tokens.length && before[same] === tokens[same].raw) ++same;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const token of tokens.slice(same)) target.append(block(token, 0));
  target.sources = tokens.map((token) => token.raw);
}
