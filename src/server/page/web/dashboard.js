// The dashboard: reads /metrics once a second and shows the last two minutes.
import {$, element} from "/ui/dom.js";
import {call} from "/ui/api.js";
import {plot} from "/ui/plot.js";
import {gained, parseMetrics, quantile, within} from "/ui/prometheus.js";

const SECONDS = 120;  // shown
const WINDOW = 15;    // seconds over which quantiles and goodput are taken
const TTFT = "vllm:time_to_first_token_seconds";
const TPOT = "vllm:request_time_per_output_token_seconds";

const readings = [];  // {time, metrics}, oldest first
const history = [];   // what the plots show, one row per reading

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

// Rates and quantiles of the readings up to now.
function measure() {
  const now = readings.at(-1), last = readings.at(-2) ?? now;
  const from = readings.find((reading) => reading.time >= now.time - WINDOW * 1000);
  const {metrics} = now;
  const rate = (name, since) => {
    const gain = Math.max(0, metrics.sum(name) - since.metrics.sum(name));
    return now.time > since.time ? gain * 1000 / (now.time - since.time) : 0;
  };
  const recent = (name) => gained(from.metrics.histogram(name), metrics.histogram(name));
  const ttft = recent(TTFT), tpot = recent(TPOT);
  const seconds = Math.max((now.time - from.time) / 1000, 1);
  const milliseconds = (buckets, share) => {
    const value = quantile(buckets, share);
    return value === null ? null : value * 1000;
  };
  return {
    running: metrics.sum("vllm:num_requests_running"), waiting: metrics.sum("vllm:num_requests_waiting"),
    batch: rate("vllm:iteration_tokens_total_sum", last), prompt: rate("vllm:prompt_tokens_total", from),
    generated: rate("vllm:generation_tokens_total", from), kv: metrics.sum("vllm:kv_cache_usage_perc"),
    ttft50: milliseconds(ttft, 0.5), ttft95: milliseconds(ttft, 0.95),
    tpot50: milliseconds(tpot, 0.5), tpot95: milliseconds(tpot, 0.95),
    goodput: Math.min(within(ttft, Number($("ttft-limit").value)),
      within(tpot, Number($("tpot-limit").value))) / seconds,
    finished: rate("vllm:request_success_total", from),
  };
}

function showTiles(metrics, row) {
  const blocks = metrics.of("vllm:cache_config_info")[0]?.labels ?? {};
  const total = Number(blocks.num_cpu_blocks ?? blocks.num_gpu_blocks ?? 0);
  const queries = metrics.sum("vllm:prefix_cache_queries_total"), hits = metrics.sum("vllm:prefix_cache_hits_total");
  $("tiles").replaceChildren(
    tile("Batch", String(row.running), "sequences that run"),
    tile("Queue", String(row.waiting), `requests that wait; ${metrics.sum("vllm:num_preemptions_total")} preemptions`),
    tile("KV blocks", String(Math.round(row.kv * total)),
      `of ${total} blocks with ${blocks.block_size ?? "?"} tokens each; ${percent(row.kv)} in use`, row.kv),
    tile("Cache hits", queries > 0 ? percent(hits / queries) : "–", `${hits} of ${queries} prompt tokens`,
      queries > 0 ? hits / queries : 0),
    tile("Tokens/s", row.batch.toFixed(0), "computed, prompts included"),
    tile("Finished", String(metrics.sum("vllm:request_success_total")),
      `requests; ${row.finished.toFixed(2)} per second now`));
}

function showPlots() {
  const values = (name) => history.map((row) => row[name]);
  const line = (name, key) => ({name, values: values(key)});
  $("plots").replaceChildren(
    plot("Queue and batch", "sequences", [line("running", "running"), line("waiting", "waiting")], SECONDS, {most: 2}),
    plot("Tokens of finished requests", "tokens/s", [line("generated", "generated"), line("prompt", "prompt")],
      SECONDS),
    plot("KV cache in use", "share", [line("used", "kv")], SECONDS, {most: 0.1}),
    plot("TTFT", "ms", [line("p50", "ttft50"), line("p95", "ttft95")], SECONDS),
    plot("TPOT", "ms", [line("p50", "tpot50"), line("p95", "tpot95")], SECONDS),
    plot("Goodput", "requests/s", [line("goodput", "goodput"), line("finished", "finished")], SECONDS));
}

function showMemory(metrics) {
  const samples = metrics.of("sluice:memory_bytes");
  const total = samples.reduce((sum, sample) => sum + sample.value, 0);
  const rows = samples.map(({labels, value}) => [labels.model_name, labels.use, bytesText(value),
    percent(total > 0 ? value / total : 0)]);
  $("memory").tBodies[0].replaceChildren(...[...rows, ["all", "", bytesText(total), ""]].map((cells) =>
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

async function read() {
  const metrics = parseMetrics(await (await call("/metrics")).text());
  readings.push({time: performance.now(), metrics});
  fillLimits(metrics);
  history.push(measure());
  while (readings.length > WINDOW * 2) readings.shift();
  while (history.length > SECONDS) history.shift();
  showTiles(metrics, history.at(-1));
  showPlots();
  showMemory(metrics);
}

for (;;) {
  try {
    await read();
    $("state").textContent = "Live";
    $("state").className = "state live";
  } catch (error) {
    $("state").textContent = error.message;
    $("state").className = "state lost";
  }
  await new Promise((resolve) => { setTimeout(resolve, 1000); });
}
