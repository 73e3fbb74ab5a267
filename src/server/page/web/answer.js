// One streamed answer: sends the request and collects its deltas in a message.
import {call, events} from "/ui/api.js";

function addCalls(node, deltas) {
  node.calls ??= [];
  for (const delta of deltas) {
    const known = node.calls[delta.index ?? 0] ??= {id: "", name: "", arguments: ""};
    if (delta.id) known.id = delta.id;
    known.name += delta.function?.name ?? "";
    known.arguments += delta.function?.arguments ?? "";
  }
}

function addDelta(node, delta) {
  node.content += delta.content ?? "";
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
  if (delta.tool_calls?.length) addCalls(node, delta.tool_calls);
  return Boolean(delta.content || reasoning || delta.tool_calls?.length);
}

function statsText({begin, first, tokens, finish}) {
  if (first === null) return "";
  const seconds = (performance.now() - first) / 1000;
  const parts = [];
  if (tokens > 1 && seconds > 0.002) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  parts.push(`TTFT ${Math.round(first - begin)} ms`);
  if (tokens > 0) parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  if (finish === "length") parts.push("cut at the most tokens");
  return parts.join(" · ");
}

// Calls onChange() after each delta. Ends with node.error set when the request fails; an abort keeps what has come.
export async function answer(node, body, signal, onChange) {
  const times = {begin: performance.now(), first: null, tokens: 0, finish: null};
  try {
    const response = await call("/v1/chat/completions", {method: "POST", signal, body: JSON.stringify({...body,
      stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}})});
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message ?? "The answer ended with an error.");
      const choice = event.choices?.[0];
      if (choice && addDelta(node, choice.delta ?? {})) times.first ??= performance.now();
      times.tokens = event.usage?.completion_tokens ?? times.tokens;
      times.finish = choice?.finish_reason ?? times.finish;
      if (choice) node.stats = statsText(times);
      onChange();
    }
    if (times.finish === null) throw new Error("The connection ended before the answer did.");
  } catch (error) {
    if (error.name !== "AbortError") node.error = error.message;
  }
}
