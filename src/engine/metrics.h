// The engine's counters and timings. Thread-safe: the engine and front-end threads write them, and /metrics reads them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/row_store.h"
#include "cache/sessions.h"
#include "scheduler/draft_stats.h"
#include "scheduler/queue_limit.h"
#include "scheduler/session_texts.h"
#include "sluice/metrics.h"
#include "sluice/request.h"

namespace sluice {

using Clock = std::chrono::steady_clock;

// Which adapters have requests: names, separated by commas.
struct AdapterUse {
  std::string running{}, waiting{};
  std::chrono::system_clock::time_point at{};
};

// The load of experts on the ranks (nn/moe/balancer.h).
struct ExpertBalance {
  double balance = 1;
  uint64_t moved = 0;
};

// Current gauges and counters, copied from the scheduler once per step.
struct EngineGauges {
  int running = 0;                               // sequences in the batch
  int waiting = 0;                               // waiting requests
  int deferred = 0;                              // of these: those that do not wait for capacity
  double kv_usage = 0;                           // share of blocks referenced by sequences, 0 .. 1
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  uint64_t preemptions = 0;
  uint64_t forced_tokens = 0;
  uint64_t context_shifts = 0;
  uint64_t modules_found = 0, modules_computed = 0;  // see SchedulerStats
  PrefetchStats prefetches{};
  SessionStats sessions{};
  int pinned_blocks = 0;                // of sessions
  int adapter_slots = 0;                // adapters that may run together; 0: there are none
  AdapterUse adapters{};                // as it was within the last tenth of a second
  std::optional<DraftStats> drafts{};   // if tokens are drafted
  std::optional<RowStoreStats> rows{};  // if rows are kept outside of the device
  size_t row_bytes = 0;
  std::optional<ExpertBalance> experts{};  // if experts are balanced
};

// The times of one request's events, and how often it was preempted.
struct RequestTimes {
  Clock::time_point arrival, scheduled, first_token, last_token;
  bool was_scheduled = false, has_token = false;
  int preemptions = 0;
};

class EngineMetrics {
 public:
  EngineMetrics(std::string model, int max_model_len);

  void step(const EngineGauges& gauges, int tokens);
  void first_token(double seconds);
  void next_token(double seconds);
  void request_done(const Request& request, const RequestTimes& times, const Usage& usage, int completion_tokens,
                    FinishReason reason, Clock::time_point now);
  // `compiling` requests wait for their grammars, outside of the scheduler. `limit` has refused requests.
  std::vector<MetricFamily> families(const QueueLimit& limit, int compiling = 0) const;

  // Counts the end of a request for health(): an error means a fault of the engine here, not of the request.
  void count_outcome(FinishReason reason);
  int errors_in_a_row() const { return errors_in_a_row_.load(std::memory_order_relaxed); }

 private:
  enum Series {
    kTtft,
    kInterToken,
    kTimePerOutput,
    kE2e,
    kQueue,
    kInference,
    kPrefill,
    kDecode,
    kPromptTokens,
    kGenerationTokens,
    kIterationTokens,
    kParamsN,
    kParamsMaxTokens,
    kPreemptions,
    kSeriesCount
  };
  void observe(Series series, double value);

  const std::string model_;
  mutable std::mutex mutex_;
  EngineGauges gauges_;
  std::array<Histogram, kSeriesCount> histograms_;
  std::array<uint64_t, 4> finished_{};  // finished choices, by FinishReason
  std::atomic<int> errors_in_a_row_{0};
  uint64_t prompt_tokens_ = 0, generation_tokens_ = 0, cached_tokens_ = 0, corrupted_ = 0;
};

}  // namespace sluice
