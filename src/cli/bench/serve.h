// What a server's clients see under load: times of every answer, and what they add up to.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/json.h"

namespace sluice::cli {

// One request as its client saw it.
struct ServedRequest {
  using Clock = std::chrono::steady_clock;
  Clock::time_point sent{};
  std::vector<Clock::time_point> pieces{};  // when each piece of the answer came that holds tokens
  Clock::time_point ended{};
  int prompt_tokens = 0, output_tokens = 0;
  std::string error{};  // empty: it was answered

  double ttft() const;  // seconds from sending to the first piece
  double tpot() const;  // seconds per token after the first piece; 0 for one token
  double e2e() const;   // seconds from sending to the end
};

// A request is good if it keeps every limit that is above 0, milliseconds.
struct ServiceLimits {
  double ttft = 0, tpot = 0, e2e = 0;
  // Reads "ttft:200"; throws Error(kInvalidRequest).
  void set(const std::string& limit);
  bool any() const { return ttft > 0 || tpot > 0 || e2e > 0; }
  bool kept_by(const ServedRequest& request) const;
};

// Rates over `seconds`, percentiles of the times in milliseconds; "goodput" in requests per second, if there are
// limits.
Json summarize(const std::vector<ServedRequest>& requests, double seconds, const ServiceLimits& limits);

// Streams one completion of `prompt` from an OpenAI-compatible server (http://HOST:PORT) and fills in what came.
struct RemoteModel {
  std::string host, port, path;  // path: of the server's root, without a slash at the end
  std::string name;              // the model's, in requests
  std::string api_key;
};
// Asks for the first model that the server names. Throws Error.
RemoteModel find_remote_model(const std::string& base_url, const std::string& api_key);
void stream_completion(const RemoteModel& model, const std::vector<int>& prompt, int max_tokens,
                       ServedRequest& request);

}  // namespace sluice::cli
