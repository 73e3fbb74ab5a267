// A request for a generation and what must answer it.
#pragma once

#include <string>

#include "server/http_client.h"
#include "simulation/model.h"
#include "simulation/world.h"

namespace sluice::simulation {

struct Question {
  std::string body, path;
  int n = 1;
  bool stream = false, chat = false;
  Answer answer;
};

// `lasting`: it takes as long as the context allows, in most cases.
Question make_question(const World& world, int64_t most_tokens, bool lasting = false);
std::string request_text(const Question& q);
// Fails the run if the answer is wrong. False: the stream ends with an error, or is cut.
bool check_answer(const Question& q, const TestResponse& response);

}  // namespace sluice::simulation
