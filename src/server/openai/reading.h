// A request of the OpenAI API while it is turned into engine requests. Private to openai*.cc.
#pragma once

#include <string>
#include <vector>

#include "server/openai/openai.h"

namespace sluice::server {

struct OpenAiApi::Reading {
  RequestFields fields;
  UnknownFields unknown;
  std::string salt;  // of the prefix cache
  std::string request_id;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

}  // namespace sluice::server
