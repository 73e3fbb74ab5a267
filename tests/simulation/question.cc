// Draws requests and compares answers with those that the model must give.
#include "simulation/question.h"

#include <vector>

#include "base/json.h"
#include "simulation/chance.h"

namespace sluice::simulation {

std::string random_text(int64_t length) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < length) text += static_cast<char>(draw('a', 'z'));
  return text;
}

namespace {

std::vector<TokenId> tokens_of(const std::string& text) { return {text.begin(), text.end()}; }

// The text of each choice, and that each ended exactly once.
void check_choices(const Question& q, const std::vector<std::string>& texts, const std::vector<int>& ends) {
  for (int i = 0; i < q.n; ++i) {
    expect(ends[static_cast<size_t>(i)] == 1, "choice {} of {} has {} ends", i, q.n, ends[static_cast<size_t>(i)]);
    expect(texts[static_cast<size_t>(i)] == q.answer.text, "choice {} is '{}', expected '{}', after {} {}", i,
           texts[static_cast<size_t>(i)], q.answer.text, q.path, q.body);
  }
}

const char* expected_reason(const Question& q) { return q.answer.ended ? "stop" : "length"; }

void take_choice(const Question& q, const Json& choice, const char* message, std::vector<std::string>& texts,
                 std::vector<int>& ends) {
  const int index = choice.at("index").get<int>();
  expect(index >= 0 && index < q.n, "choice {} of {}", index, q.n);
  if (q.chat) {
    const Json& part = choice.at(message);
    if (part.contains("content") && part["content"].is_string()) {
      texts[static_cast<size_t>(index)] += part["content"].get<std::string>();
    }
  } else {
    texts[static_cast<size_t>(index)] += choice.at("text").get<std::string>();
  }
  if (choice.at("finish_reason").is_null()) return;
  ++ends[static_cast<size_t>(index)];
  expect(choice["finish_reason"] == expected_reason(q), "finish_reason {}, expected {}", choice["finish_reason"].dump(),
         expected_reason(q));
}

}  // namespace

Question make_question(const World& world, int64_t most_tokens, bool lasting) {
  Question q;
  const int64_t context = world.plan.engine.max_model_len;
  q.n = chance(30) ? static_cast<int>(draw(1, std::min(4, world.plan.engine.max_num_seqs))) : 1;
  q.stream = chance(50);
  q.chat = chance(40);
  const int64_t tokens = draw(lasting ? context / 4 : 1, std::min(most_tokens, context / 2));
  // Some begin alike, so that the prefix cache has something to find.
  std::string text = chance(50) ? std::string(static_cast<size_t>(draw(1, context / 4)), 'x') : "";
  text += random_text(draw(1, std::max<int64_t>(1, context / 4 - static_cast<int64_t>(text.size()) - 8)));
  const bool past_end = chance(lasting ? 80 : 20);
  Json body = {{"max_tokens", tokens}, {"temperature", 0}, {"n", q.n}, {"stream", q.stream}};
  if (past_end) body["ignore_eos"] = true;
  std::string prompt = text;
  if (q.chat) {
    q.path = "/v1/chat/completions";
    body["messages"] = {{{"role", "user"}, {"content", text}}};
    prompt = "user:" + text + "|>";
  } else {
    q.path = "/v1/completions";
    body["prompt"] = text;
  }
  q.answer = answer_to(tokens_of(prompt), static_cast<int>(tokens), past_end);
  q.body = dump_json(body);
  return q;
}

std::string request_text(const Question& q) {
  if (!chance(20)) return post_text(q.path, q.body);
  std::string text = fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
      q.path);
  for (size_t at = 0; at < q.body.size();) {
    const auto size = static_cast<size_t>(draw(1, static_cast<int64_t>(q.body.size() - at)));
    text += fmt::format("{:x}\r\n{}\r\n", size, q.body.substr(at, size));
    at += size;
  }
  return text + "0\r\n\r\n";
}

bool send_in_pieces(TestClient& client, std::string_view bytes, int64_t longest_pause) {
  while (!bytes.empty()) {
    const auto size = static_cast<size_t>(chance(50) ? draw(1, static_cast<int64_t>(bytes.size())) : bytes.size());
    if (!client.send(bytes.substr(0, size))) return false;
    bytes.remove_prefix(size);
    if (!bytes.empty() && chance(50)) pause(longest_pause);
  }
  return true;
}

bool check_answer(const Question& q, const TestResponse& response) {
  std::vector<std::string> texts(static_cast<size_t>(q.n));
  std::vector<int> ends(static_cast<size_t>(q.n));
  if (!q.stream) {
    const auto length = response.headers.find("content-length");
    if (length == response.headers.end() || length->second != std::to_string(response.body.size())) return false;
    const Json body = response.json();
    for (const Json& choice : body.at("choices")) take_choice(q, choice, "message", texts, ends);
    check_choices(q, texts, ends);
    return true;
  }
  bool done = false;
  for (const std::string& data : sse_data(response.body)) {
    expect(!done, "an event after the end of the stream");
    done = data == "[DONE]";
    if (done) break;
    Json event;
    try {
      event = parse_json(data);
    } catch (const std::exception&) {
      return false;  // cut
    }
    if (event.contains("error")) return false;
    for (const Json& choice : event.at("choices")) take_choice(q, choice, "delta", texts, ends);
  }
  if (!done) return false;
  check_choices(q, texts, ends);
  return true;
}

}  // namespace sluice::simulation
