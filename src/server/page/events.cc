// /events: the metrics of all models as server-sent events, which the dashboard shows.
#include <fmt/core.h>

#include <charconv>

#include "server/endpoint.h"
#include "server/event_streams.h"
#include "server/openai/dialect.h"

namespace sluice::server {
namespace {

constexpr int kLeastInterval = 100, kMostInterval = 60'000, kUsualInterval = 1000;  // milliseconds

std::chrono::milliseconds interval_of(std::string_view target) {
  const std::string text = query_value(target, "interval_ms");
  int interval = kUsualInterval;
  if (!text.empty()) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, interval);
    if (error != std::errc() || at != end || interval < kLeastInterval || interval > kMostInterval) {
      throw invalid_value(
          "interval_ms",
          fmt::format("Invalid value for 'interval_ms' in the query: '{}'. It must be an integer from {} "
                      "to {}.",
                      quotable(text), kLeastInterval, kMostInterval));
    }
  }
  return std::chrono::milliseconds(interval);
}

void run_events(Call& call) {
  const std::chrono::milliseconds interval = interval_of(call.target);
  if (call.method == "HEAD") {  // has no body that could go on
    call.reply->start_stream(EventStreams::head());
    return call.reply->end_stream(false);
  }
  call.shared->of<EventStreams>()->open(call.models, call.reply, interval, call.deadline);
}

const EndpointInfo events_endpoint{.name = "events",
                                   .dialect = &kOpenAi,
                                   .method = "GET",
                                   .paths = {"/events"},
                                   .flags = Route::kQuick,
                                   .help =
                                       "metrics of all models as events, every ?interval_ms=N (100 to 60000, "
                                       "default 1000)",
                                   .run = run_events};
const Registry<EndpointInfo> events_registered{events_endpoint};

}  // namespace
}  // namespace sluice::server
