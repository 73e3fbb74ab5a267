// What a server's clients see under load: the times of every answer and their summary.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/json.h"

namespace sluice::cli {

// One request as seen by its client.
struct ServedRequest {
  using Clock = std::chrono::steady_clock;
  Clock::time_point sent{};
  std::vector<Clock::time_point> pieces{};  // arrival times of the pieces of the answer that hold tokens
  Clock::time_point ended{};
  int prompt_tokens = 0, output_tokens = 0;
  std::string error{};  // empty: the request was answered

  double ttft() const;  // seconds from sending to the first piece
  double tpot() const;  // seconds per token after the first piece; 0 for one token
  double e2e() const;   // seconds from sending to the end
};

// A request is good if it meets every limit that is above 0; in milliseconds.
struct ServiceLimits {
  double ttft = 0, tpot = 0, e2e = 0;
  // Parses a limit such as "ttft:200"; throws Error(kInvalidRequest).
  void set(const std::string& limit);
  bool any() const { return ttft > 0 || tpot > 0 || e2e > 0; }
  bool kept_by(const ServedRequest& request) const;
};

// Rates over `seconds`, percentiles of the times in milliseconds, and, if there are limits, "goodput" in requests per
// second.
Json summarize(const std::vector<ServedRequest>& requests, double seconds, const ServiceLimits& limits);

// Streams one completion of `prompt` from an OpenAI-compatible server (http://HOST:PORT) and records what arrives.
struct RemoteModel {
  std::string host, port, path;  // path: prefix of the server's root, without a trailing slash
  std::string name;              // model name used in requests
  std::string api_key;
};
// Asks the server for its first model. Throws Error.
RemoteModel find_remote_model(const std::string& base_url, const std::string& api_key);
void stream_completion(const RemoteModel& model, const std::vector<int>& prompt, int max_tokens,
                       ServedRequest& request);

}  // namespace sluice::cli
