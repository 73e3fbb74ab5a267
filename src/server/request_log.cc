// One line about a request; see request_log.h.
#include "server/request_log.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "server/milliseconds.h"

namespace sluice::server {

void RequestLog::add(int prompt, const Event& event) {
  last_ = Clock::now();
  if (event.usage.prompt_tokens > 0) prompts_[prompt] = event.usage;
  int& tokens = generated_[{prompt, event.index}];
  if (tokens == 0 && first_ == Clock::time_point() && !event.tokens.empty()) first_ = last_;
  tokens += static_cast<int>(event.tokens.size());
  if (!event.finish) return;
  const std::string reason = to_string(event.finish->reason);
  if (finish_.find(reason) == std::string::npos) finish_ += (finish_.empty() ? "" : ",") + reason;
}

void RequestLog::add(const PoolingResult& result) {
  prompts_[0].prompt_tokens = result.prompt_tokens;
  finish_ = to_string(result.reason);
}

void RequestLog::write(std::string_view finish) noexcept {
  if (std::exchange(written_, true)) return;
  try {
    if (log::enabled(log::Level::kInfo)) write_line(finish);
  } catch (const std::exception&) {
  }
}

void RequestLog::write_line(std::string_view finish) const {
  int64_t in = 0, cached = 0, out = 0, longest = 0;
  for (const auto& [_, usage] : prompts_) in += usage.prompt_tokens, cached += usage.cached_tokens;
  for (const auto& [_, tokens] : generated_) out += tokens, longest = std::max<int64_t>(longest, tokens);
  std::vector<log::Field> fields = {
      {"id", std::string_view(id_)}, {"model", std::string_view(model_)}, {"in", in}, {"cached", cached}, {"out", out}};
  if (first_ != Clock::time_point()) {
    fields.push_back({"ttft_ms", milliseconds(first_ - arrived_)});
    // A token of the longest choice, after the first.
    if (longest > 1) fields.push_back({"tpot_ms", milliseconds(last_ - first_) / static_cast<double>(longest - 1)});
  }
  fields.push_back({"total_ms", milliseconds(Clock::now() - arrived_)});
  fields.push_back({"finish", finish.empty() ? std::string_view(finish_) : finish});
  log::write(log::Level::kInfo, "request", fields);
}

}  // namespace sluice::server
