// Uses vLLM's metric names, so that dashboards and autoscalers for vLLM work unchanged. The buckets are vLLM's too,
// with finer ones added below; otherwise a small model on a fast machine would only fill the first bucket.
#include "engine/metrics.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace sluice {
namespace {

struct SeriesInfo {
  const char* name;
  const char* help;
};
constexpr SeriesInfo kSeriesInfo[] = {
    {"vllm:time_to_first_token_seconds", "Time to first token in seconds."},
    {"vllm:inter_token_latency_seconds", "Time between two tokens of a sequence in seconds."},
    {"vllm:request_time_per_output_token_seconds",
     "Mean time per output token of a request after its first, in seconds."},
    {"vllm:e2e_request_latency_seconds", "Time from arrival to the last token in seconds."},
    {"vllm:request_queue_time_seconds", "Time a request waited before it was first scheduled, in seconds."},
    {"vllm:request_inference_time_seconds", "Time from first scheduled to the last token in seconds."},
    {"vllm:request_prefill_time_seconds", "Time from first scheduled to the first token in seconds."},
    {"vllm:request_decode_time_seconds", "Time from the first to the last token in seconds."},
    {"vllm:request_prompt_tokens", "Prompt tokens per request."},
    {"vllm:request_generation_tokens", "Generated tokens per request."},
    {"vllm:iteration_tokens_total", "Tokens per engine step."},
    {"vllm:request_params_n", "The n of requests."},
    {"vllm:request_params_max_tokens", "The max_tokens of requests."},
    {"vllm:request_num_preemptions", "Preemptions per request."},
};

const std::vector<double> kLatency = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                      1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kToken = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                    0.4,    0.5,   0.75,   1,     2.5,  5,     7.5,  10,    20,  40,   80};
const std::vector<double> kRequest = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                      15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kPreemption = {0, 1, 2, 3, 4, 5, 10, 20};
const std::vector<double> kIteration = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// Returns the buckets 1, 2, 5, 10, 20, 50, ... up to the longest sequence.
std::vector<double> token_buckets(int max_len) {
  std::vector<double> bounds;
  for (double scale = 1;; scale *= 10) {
    for (const double m : {1.0, 2.0, 5.0}) {
      if (m * scale > max_len) return bounds;
      bounds.push_back(m * scale);
    }
  }
}

using ReasonCounts = std::vector<std::pair<const char*, double>>;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

EngineMetrics::EngineMetrics(std::string model, int max_model_len) : model_(std::move(model)) {
  const std::vector<double> tokens = token_buckets(max_model_len);
  const std::vector<double> bounds[kSeriesCount] = {
      kLatency, kToken, kToken, kRequest,   kRequest,          kRequest, kRequest,
      kRequest, tokens, tokens, kIteration, {1, 2, 5, 10, 20}, tokens,   kPreemption};
  for (int i = 0; i < kSeriesCount; ++i) {
    histograms_[i].bounds = bounds[i];
    histograms_[i].counts.assign(bounds[i].size() + 1, 0);
  }
}

void EngineMetrics::observe(Series series, double value) {
  Histogram& h = histograms_[series];
  const auto bucket = std::lower_bound(h.bounds.begin(), h.bounds.end(), value) - h.bounds.begin();
  ++h.counts[static_cast<size_t>(bucket)];
  h.sum += value;
}

void EngineMetrics::step(const EngineGauges& gauges, int tokens) {
  const std::scoped_lock lock(mutex_);
  gauges_ = gauges;
  if (tokens > 0) observe(kIterationTokens, tokens);
}

void EngineMetrics::first_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  observe(kTtft, seconds);
}

void EngineMetrics::next_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  observe(kInterToken, seconds);
}

void EngineMetrics::request_done(const Request& request, const RequestTimes& times, const Usage& usage,
                                 int completion_tokens, FinishReason reason, Clock::time_point now) {
  const std::scoped_lock lock(mutex_);
  ++finished_[static_cast<int>(reason)];
  if (reason == FinishReason::kError) ++corrupted_;
  if (!times.was_scheduled) return;
  prompt_tokens_ += static_cast<uint64_t>(usage.prompt_tokens);
  cached_tokens_ += static_cast<uint64_t>(usage.cached_tokens);
  generation_tokens_ += static_cast<uint64_t>(completion_tokens);
  observe(kE2e, seconds(now - times.arrival));
  observe(kQueue, seconds(times.scheduled - times.arrival));
  observe(kInference, seconds(now - times.scheduled));
  observe(kPromptTokens, usage.prompt_tokens);
  observe(kGenerationTokens, completion_tokens);
  observe(kParamsN, request.n);
  observe(kPreemptions, times.preemptions);
  if (request.sampling.max_tokens) observe(kParamsMaxTokens, *request.sampling.max_tokens);
  if (!times.has_token) return;
  observe(kPrefill, seconds(times.first_token - times.scheduled));
  observe(kDecode, seconds(times.last_token - times.first_token));
  const int per_choice = completion_tokens / std::max(request.n, 1);
  if (per_choice > 1) observe(kTimePerOutput, seconds(times.last_token - times.first_token) / (per_choice - 1));
}

void EngineMetrics::count_outcome(FinishReason reason) {
  if (reason == FinishReason::kError) errors_in_a_row_.fetch_add(1, std::memory_order_relaxed);
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    errors_in_a_row_.store(0, std::memory_order_relaxed);
  }
}

std::vector<MetricFamily> EngineMetrics::families(const QueueLimit& limit, int compiling) const {
  const std::scoped_lock lock(mutex_);
  const std::vector<std::pair<std::string, std::string>> labels = {{"engine", "0"}, {"model_name", model_}};
  std::vector<MetricFamily> out;
  const auto number = [&](MetricFamily::Type type, const char* name, const char* help, double value) {
    out.push_back({name, help, type, {{labels, value, {}}}});
  };
  using Type = MetricFamily::Type;
  number(Type::kGauge, "vllm:num_requests_running", "Sequences in the running batch.", gauges_.running);
  number(Type::kGauge, "vllm:num_requests_waiting", "Requests waiting to be scheduled.", gauges_.waiting + compiling);
  const auto by_reason = [&](Type type, const char* name, const char* help, const ReasonCounts& counts) {
    MetricFamily family{name, help, type, {}};
    for (const auto& [reason, count] : counts) {
      auto with_reason = labels;
      with_reason.emplace_back("reason", reason);
      family.samples.push_back({with_reason, count, {}});
    }
    out.push_back(std::move(family));
  };
  by_reason(Type::kGauge, "vllm:num_requests_waiting_by_reason",
            "Requests waiting to be scheduled: for capacity, or deferred until their grammar is compiled or their "
            "adapter has a slot.",
            {{"capacity", gauges_.waiting - gauges_.deferred}, {"deferred", gauges_.deferred + compiling}});
  by_reason(Type::kCounter, "vllm:admission_rejections",
            "Requests refused as too many waited, by the limit that was met.",
            {{"max_num_queued_reqs", static_cast<double>(limit.refused_by_sequences())},
             {"max_num_queued_tokens", static_cast<double>(limit.refused_by_tokens())}});
  number(Type::kGauge, "vllm:kv_cache_usage_perc", "Share of KV cache blocks in use by sequences; 1 is all.",
         gauges_.kv_usage);
  number(Type::kCounter, "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
         static_cast<double>(gauges_.prefix_queries));
  number(Type::kCounter, "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.",
         static_cast<double>(gauges_.prefix_hits));
  number(Type::kCounter, "vllm:num_preemptions", "Sequences preempted.", static_cast<double>(gauges_.preemptions));
  number(Type::kCounter, "sluice:forced_tokens", "Generated tokens that a grammar forced, which were not sampled.",
         static_cast<double>(gauges_.forced_tokens));
  number(Type::kCounter, "sluice:context_shifts", "Answers that went on without their oldest tokens, by each time.",
         static_cast<double>(gauges_.context_shifts));
  by_reason(Type::kCounter, "sluice:prompt_modules",
            "Modules of prompts, by where they came from: the prefix cache, or computed for the request.",
            {{"cached", static_cast<double>(gauges_.modules_found)},
             {"computed", static_cast<double>(gauges_.modules_computed)}});
  number(Type::kGauge, "sluice:sessions", "Sessions whose cached tokens wait for the next turn.",
         gauges_.sessions.sessions);
  number(Type::kGauge, "sluice:session_blocks", "KV cache blocks that these sessions keep.", gauges_.pinned_blocks);
  by_reason(Type::kCounter, "sluice:sessions_lost",
            "Sessions that gave up their blocks: to time, or to other requests.",
            {{"expired", static_cast<double>(gauges_.sessions.expired)},
             {"displaced", static_cast<double>(gauges_.sessions.displaced)}});
  by_reason(Type::kCounter, "sluice:session_prefetches",
            "Prefetches of sessions, by what came of them: all that was kept is on the device, or why not.",
            {{"loaded", static_cast<double>(gauges_.prefetches.loaded)},
             {"present", static_cast<double>(gauges_.prefetches.present)},
             {"unknown", static_cast<double>(gauges_.prefetches.unknown)},
             {"no_room", static_cast<double>(gauges_.prefetches.no_room)},
             {"failed", static_cast<double>(gauges_.prefetches.failed)}});
  number(Type::kCounter, "vllm:prompt_tokens", "Prompt tokens of finished requests.",
         static_cast<double>(prompt_tokens_));
  number(Type::kCounter, "vllm:prompt_tokens_cached", "Prompt tokens of finished requests that came from the cache.",
         static_cast<double>(cached_tokens_));
  number(Type::kCounter, "vllm:generation_tokens", "Generated tokens of finished requests.",
         static_cast<double>(generation_tokens_));
  number(Type::kCounter, "vllm:corrupted_requests", "Requests that ended by a fault of the engine.",
         static_cast<double>(corrupted_));

  if (gauges_.adapter_slots > 0) {
    auto with_names = labels;
    with_names.emplace_back("max_lora", std::to_string(gauges_.adapter_slots));
    with_names.emplace_back("running_lora_adapters", gauges_.adapters.running);
    with_names.emplace_back("waiting_lora_adapters", gauges_.adapters.waiting);
    const std::chrono::duration<double> at = gauges_.adapters.at.time_since_epoch();
    out.push_back({"vllm:lora_requests_info",
                   "Adapters of the requests that run and wait; the value is the time.",
                   Type::kGauge,
                   {{with_names, at.count(), {}}}});
  }

  if (gauges_.drafts) {
    const DraftStats& drafts = *gauges_.drafts;
    const uint64_t accepted = std::accumulate(drafts.accepted.begin(), drafts.accepted.end(), uint64_t{0});
    const auto count = [&](const char* name, const char* help, uint64_t value) {
      number(Type::kCounter, name, help, static_cast<double>(value));
    };
    count("vllm:spec_decode_num_drafts", "Drafts that were verified.", drafts.drafts);
    count("vllm:spec_decode_num_draft_tokens", "Tokens of these drafts.", drafts.tokens);
    count("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", accepted);
    MetricFamily places{"vllm:spec_decode_num_accepted_tokens_per_pos",
                        "Drafted tokens that were accepted, by their place in the draft.",
                        Type::kCounter,
                        {}};
    for (size_t place = 0; place < drafts.accepted.size(); ++place) {
      auto with_place = labels;
      with_place.emplace_back("position", std::to_string(place));
      places.samples.push_back({with_place, static_cast<double>(drafts.accepted[place]), {}});
    }
    out.push_back(std::move(places));
  }

  if (gauges_.experts) {
    number(Type::kGauge, "sluice:expert_balance",
           "Mean load of the ranks' experts divided by the largest one, over the steps since the window began.",
           gauges_.experts->balance);
    number(Type::kCounter, "sluice:experts_moved", "Physical experts that were replaced by others between steps.",
           static_cast<double>(gauges_.experts->moved));
  }

  if (gauges_.rows) {
    const RowStoreStats& rows = *gauges_.rows;
    MetricFamily kept{
        "sluice:kv_rows", "Rows of the prefix cache that are kept outside of its blocks.", Type::kGauge, {}};
    for (const auto& [where, count] : {std::pair{"host", rows.host_rows}, std::pair{"disk", rows.file_rows}}) {
      auto with_place = labels;
      with_place.emplace_back("where", where);
      kept.samples.push_back({with_place, static_cast<double>(count), {}});
    }
    out.push_back(std::move(kept));
    const auto count = [&](const char* name, const char* help, uint64_t value) {
      number(Type::kCounter, name, help, static_cast<double>(value));
    };
    count("sluice:kv_rows_saved", "Rows that were copied to host memory.", rows.saved);
    count("sluice:kv_rows_loaded", "Rows that were loaded from there.", rows.loaded);
    count("sluice:kv_rows_written", "Rows that were written to the disk.", rows.written);
    count("sluice:kv_rows_read", "Rows that were read from the disk.", rows.read);
    count("sluice:kv_rows_not_saved", "Rows for which no memory was free of transfers.", rows.not_saved);
    count("sluice:kv_transfer_rows_sent", "Rows that other servers fetched.", rows.sent);
    count("sluice:kv_transfer_rows_not_sent", "Rows that other servers asked for and did not get.", rows.not_sent);
    count("sluice:kv_transfer_rows_received", "Rows that were fetched from other servers.", rows.received);
    count("sluice:kv_transfer_rows_failed", "Rows that did not come from other servers, and were computed.",
          rows.not_received);
    count("sluice:kv_transfer_bytes_sent", "Bytes of the rows that other servers fetched.",
          rows.sent * gauges_.row_bytes);
    count("sluice:kv_transfer_bytes_received", "Bytes of the rows that were fetched from other servers.",
          rows.received * gauges_.row_bytes);
    count("sluice:kv_rows_failed", "Rows that could not be moved, or were damaged on the disk.", rows.failed);
  }

  MetricFamily success{"vllm:request_success", "Finished requests by reason.", Type::kCounter, {}};
  for (int i = 0; i < 4; ++i) {
    auto with_reason = labels;
    with_reason.emplace_back("finished_reason", to_string(static_cast<FinishReason>(i)));
    success.samples.push_back({with_reason, static_cast<double>(finished_[i]), {}});
  }
  out.push_back(std::move(success));
  for (int i = 0; i < kSeriesCount; ++i) {
    out.push_back({kSeriesInfo[i].name, kSeriesInfo[i].help, Type::kHistogram, {{labels, 0, histograms_[i]}}});
  }
  return out;
}

}  // namespace sluice
