// The dashboard: shows the last two minutes of /events.
import {$, element} from "/ui/dom.js";
import {call, events} from "/ui/api.js";
import {plot} from "/ui/plot.js";
import {gained, quantile, readSnapshot, within} from "/ui/metrics.js";

const SECONDS = 120;     // shown, one event a second
const WINDOW = 15;       // seconds over which quantiles and goodput are taken
const LATE = 2;          // seconds from one event to the next that are no gap
const SILENCE = 5000;    // milliseconds without an event after which the connection counts as lost
const TRY_AGAIN = 1000;  // milliseconds until the next try
const TTFT = "vllm:time_to_first_token_seconds";
const TPOT = "vllm:request_time_per_output_token_seconds";
const STEPS = "vllm:iteration_tokens_total";

// One row per second, oldest first. A row is a snapshot, or null while there was no connection.
const snapshots = [];

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}\u00a0%`;
const bytesText = (bytes) => {
  const unit = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(4, bytes > 0 ? Math.floor(Math.log2(bytes) / 10) : 0);
  return `${(bytes / 1024 ** power).toFixed(power > 1 ? 1 : 0)} ${unit[power]}`;
};

function tile(name, value, detail, share) {
  const meter = share === undefined ? null
    : element("meter", {min: 0, max: 1, value: share, "aria-label": name});
  return element("div", {class: "card tile"}, element("h2", {text: name}),
    element("p", {class: "value", text: value}), meter, element("p", {class: "detail", text: detail}));
}

// The KV blocks of all models that have some.
function blocksOf(metrics) {
  const usage = new Map(metrics.of("vllm:kv_cache_usage_perc").map(({model, value}) => [model, value]));
  const caches = metrics.of("vllm:cache_config_info").map(({model, block_size, num_gpu_blocks, num_cpu_blocks}) =>
    ({size: block_size, all: Number(num_cpu_blocks ?? num_gpu_blocks ?? 0), usage: usage.get(model) ?? 0}));
  const all = caches.reduce((sum, cache) => sum + cache.all, 0);
  const used = caches.reduce((sum, cache) => sum + cache.all * cache.usage, 0);
  return {all, used, sizes: [...new Set(caches.map(({size}) => size))], share: all > 0 ? used / all : 0};
}

// Rates and quantiles at one of the readings, from it and those before it; null for a gap. The first reading behind a gap
// has no rates.
function measure(readings, index) {
  const now = readings[index];
  if (now === null) return null;
  let first = index;  // of the readings without a gap, within the window
  while (first > 0 && index - first < WINDOW && readings[first - 1] !== null) --first;
  const from = readings[first], last = readings[Math.max(first, index - 1)];
  const {metrics} = now;
  const perSecond = (gain, since) => now.time > since.time ? Math.max(0, gain) / (now.time - since.time) : null;
  const rate = (name) => perSecond(metrics.sum(name) - from.metrics.sum(name), from);
  const recent = (name) => gained(from.metrics.histogram(name), metrics.histogram(name));
  const ttft = recent(TTFT), tpot = recent(TPOT);
  const milliseconds = (buckets, share) => {
    const value = quantile(buckets, share);
    return value === null ? null : value * 1000;
  };
  return {
    running: metrics.sum("vllm:num_requests_running"), waiting: metrics.sum("vllm:num_requests_waiting"),
    batch: perSecond(metrics.histogramSum(STEPS) - last.metrics.histogramSum(STEPS), last),
    prompt: rate("vllm:prompt_tokens_total"), generated: rate("vllm:generation_tokens_total"),
    kv: blocksOf(metrics).share,
    ttft50: milliseconds(ttft, 0.5), ttft95: milliseconds(ttft, 0.95),
    tpot50: milliseconds(tpot, 0.5), tpot95: milliseconds(tpot, 0.95),
    goodput: perSecond(Math.min(within(ttft, Number($("ttft-limit").value)),
      within(tpot, Number($("tpot-limit").value))), from),
    finished: rate("vllm:request_success_total"),
  };
}

function showTiles(metrics, row) {
  const blocks = blocksOf(metrics);
  const queries = metrics.sum("vllm:prefix_cache_queries_total"), hits = metrics.sum("vllm:prefix_cache_hits_total");
  const size = blocks.sizes.length === 1 ? ` with ${blocks.sizes[0]} tokens each` : "";
  $("tiles").replaceChildren(
    tile("Batch", String(row.running), "sequences that run"),
    tile("Queue", String(row.waiting), `requests that wait; ${metrics.sum("vllm:num_preemptions_total")} preemptions`),
    tile("KV blocks", String(Math.round(blocks.used)), `of ${blocks.all} blocks${size}; ${percent(row.kv)} in use`,
      row.kv),
    tile("Cache hits", queries > 0 ? percent(hits / queries) : "–", `${hits} of ${queries} prompt tokens`,
      queries > 0 ? hits / queries : 0),
    tile("Tokens/s", row.batch?.toFixed(0) ?? "–", "computed, prompts included"),
    tile("Finished", String(metrics.sum("vllm:request_success_total")),
      `requests; ${row.finished?.toFixed(2) ?? "–"} per second now`));
}

function showPlots(history) {
  const line = (name, key) => ({name, values: history.map((row) => row?.[key] ?? null)});
  $("plots").replaceChildren(
    plot("Queue and batch", "sequences", [line("running", "running"), line("waiting", "waiting")], SECONDS, {most: 2}),
    plot("Tokens of finished requests", "tokens/s", [line("generated", "generated"), line("prompt", "prompt")],
      SECONDS),
    plot("KV cache in use", "share", [line("used", "kv")], SECONDS, {most: 0.1}),
    plot("TTFT", "ms", [line("p50", "ttft50"), line("p95", "ttft95")], SECONDS),
    plot("TPOT", "ms", [line("p50", "tpot50"), line("p95", "tpot95")], SECONDS),
    plot("Goodput", "requests/s", [line("goodput", "goodput"), line("finished", "finished")], SECONDS));
}

// Models that are not loaded have no memory and a row that says so.
function showMemory(metrics) {
  const samples = metrics.of("sluice:memory_bytes");
  const total = samples.reduce((sum, sample) => sum + sample.value, 0);
  const away = metrics.of("sluice:model_loaded").filter(({value}) => value === 0);
  const rows = [
    ...samples.map(({model, use, value}) => [model, use, bytesText(value), percent(total > 0 ? value / total : 0)]),
    ...away.map(({model}) => [model, "not loaded", "–", ""]),
    ["all", "", bytesText(total), ""]];
  $("memory").tBodies[0].replaceChildren(...rows.map((cells) =>
    element("tr", {}, ...cells.map((text) => element("td", {text})))));
}

// The limits to choose from are the bounds of the histograms.
function fillLimits(metrics) {
  for (const [id, name, preset] of [["ttft-limit", TTFT, 0.5], ["tpot-limit", TPOT, 0.05]]) {
    if ($(id).options.length > 0) continue;
    const bounds = metrics.histogram(name).map(([bound]) => bound).filter((bound) => bound !== Infinity);
    const text = (bound) => `${+(bound * 1000).toPrecision(3)} ms`;
    $(id).replaceChildren(...bounds.map((bound) => element("option", {value: bound, text: text(bound)})));
    const chosen = bounds.find((bound) => bound >= preset);
    if (chosen !== undefined) $(id).value = String(chosen);
  }
}

// One model can be chosen where there are several.
function fillModels(names) {
  const select = $("model");
  const known = [...select.options].slice(1).map(({value}) => value);
  if (known.join("\n") === names.join("\n")) return;
  const before = select.value;
  select.replaceChildren(element("option", {value: "", text: "all models"}),
    ...names.map((name) => element("option", {value: name, text: name})));
  if (names.includes(before)) select.value = before;
  $("model-label").hidden = names.length < 2;
}

function show() {
  const latest = snapshots.at(-1) ?? null;
  if (latest === null) return;
  fillModels(readSnapshot(latest).names);
  const chosen = $("model").value === "" ? null : $("model").value;
  const readings = snapshots.map((snapshot) =>
    snapshot === null ? null : {time: snapshot.time, metrics: readSnapshot(snapshot, chosen)});
  const {metrics} = readings.at(-1);
  fillLimits(metrics);
  const history = readings.map((_, index) => measure(readings, index));
  showTiles(metrics, history.at(-1));
  showPlots(history);
  showMemory(metrics);
}

// Seconds without an event become a gap, and so does a server that has begun anew, as its counters have, too.
function take(snapshot) {
  const before = snapshots.findLast((one) => one !== null);
  const passed = before === undefined ? 0 : Math.round(snapshot.time - before.time);
  const missed = passed > LATE ? passed - 1 : 0;
  for (let i = snapshots.at(-1) === null ? 1 : 0; i < Math.min(missed, SECONDS); ++i) snapshots.push(null);
  snapshots.push(snapshot);
  while (snapshots.length > SECONDS) snapshots.shift();
}

function showState(text, lost) {
  if ($("state").textContent === text) return;  // screen readers read every change
  $("state").textContent = text;
  $("state").className = lost ? "state lost" : "state live";
}

// Reads events until the stream ends, which is an error: the server ends, or the network fails.
async function follow() {
  const quiet = new AbortController();
  let timer = 0;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => quiet.abort(), SILENCE);
  };
  try {
    const response = await call("/events", {signal: quiet.signal});
    wait();
    for await (const snapshot of events(response)) {
      wait();
      take(snapshot);
      show();
      showState("Live", false);
    }
  } catch (error) {
    if (error.name === "AbortError") throw new Error("The server sends nothing.");
    throw error instanceof TypeError ? new Error("The connection broke.") : error;
  } finally {
    clearTimeout(timer);
  }
  throw new Error("The server has ended the stream.");
}

for (const id of ["model", "ttft-limit", "tpot-limit"]) $(id).addEventListener("change", show);
for (;;) {
  try {
    await follow();
  } catch (error) {
    showState(`Disconnected, retrying: ${error.message}`, true);
    if (snapshots.length > 0 && snapshots.at(-1) !== null) snapshots.push(null);
  }
  await new Promise((resolve) => { setTimeout(resolve, TRY_AGAIN); });
}
