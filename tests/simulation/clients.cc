// Honest and hostile clients. Each is a thread with a socket of its own; all chance comes from the machine.
#include <fmt/core.h>

#include <optional>
#include <vector>

#include "base/json.h"
#include "server/http_client.h"
#include "simulation/world.h"

namespace sluice::simulation {
namespace {

constexpr int64_t kMillisecond = 1'000'000, kSecond = 1'000'000'000;
constexpr uint32_t kHonestNetwork = 10u << 24 | 1 << 16, kHostileNetwork = 10u << 24 | 2 << 16;

Machine& machine() { return Machine::get(); }
int64_t draw(int64_t low, int64_t high) { return machine().between(low, high); }
bool chance(int percent) { return machine().chance(percent * 10'000); }
void pause(int64_t most) { machine().sleep_until(machine().now() + draw(0, most)); }

template <class... Args>
void expect(bool good, fmt::format_string<Args...> what, Args&&... args) {
  if (!good) machine().fail(fmt::format(what, std::forward<Args>(args)...));
}

std::string random_text(int64_t length) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < length) text += static_cast<char>(draw('a', 'z'));
  return text;
}

std::vector<TokenId> tokens_of(const std::string& text) { return {text.begin(), text.end()}; }

// A request for a generation and what must answer it.
struct Question {
  std::string body, path;
  int n = 1;
  bool stream = false, chat = false;
  Answer answer;
};

// `lasting`: it takes as long as the context allows, in most cases.
Question make_question(const World& world, int64_t most_tokens, bool lasting = false) {
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

// Sends in pieces that end anywhere.
bool send_in_pieces(TestClient& client, std::string_view bytes, int64_t longest_pause) {
  while (!bytes.empty()) {
    const auto size = static_cast<size_t>(chance(50) ? draw(1, static_cast<int64_t>(bytes.size())) : bytes.size());
    if (!client.send(bytes.substr(0, size))) return false;
    bytes.remove_prefix(size);
    if (!bytes.empty() && chance(50)) pause(longest_pause);
  }
  return true;
}

// The text of each choice, and that each ended exactly once.
void check_choices(const Question& q, const std::vector<std::string>& texts, const std::vector<int>& ends) {
  for (int i = 0; i < q.n; ++i) {
    expect(ends[static_cast<size_t>(i)] == 1, "choice {} of {} has {} ends", i, q.n, ends[static_cast<size_t>(i)]);
    expect(texts[static_cast<size_t>(i)] == q.answer.text, "choice {} is '{}', expected '{}'", i,
           texts[static_cast<size_t>(i)], q.answer.text);
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

// False: the stream ends with an error, or is cut.
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

// Whether it is right that the server does not answer an honest request.
void check_refusal(const World& world, const TestResponse& response, const char* what) {
  // A connection that waits for its request may give way when there are too many.
  const bool may_cut = world.plan.faults() || world.stopping || world.plan.crowded();
  const bool kept_out = response.body.find("too many connections") != std::string::npos;
  expect(!kept_out || world.plan.active() >= world.plan.server.max_connections, "{}: idle sockets keep a client out",
         what);
  if (response.status == 503 || response.status == 200) {
    expect(response.status == 503 || may_cut, "{}: an answer that is cut", what);
    return;
  }
  expect(response.status == 0 ? may_cut : response.status == 500 && world.plan.faults(), "{}: status {} {}", what,
         response.status, response.body);
}

int remaining_ms(int64_t begin, int64_t patience) {
  return static_cast<int>(std::max<int64_t>(1, (begin + patience - machine().now()) / kMillisecond));
}

void check_time(const World& world, int64_t begin, int64_t patience, const char* what) {
  const int64_t took = machine().now() - begin;
  expect(world.stopping || took < patience, "{} took {:.3f} s, expected at most {:.3f}", what,
         static_cast<double>(took) * 1e-9, static_cast<double>(patience) * 1e-9);
}

// Reads the answers to questions that were sent one after the other. False: the connection cannot be used any more.
bool read_answers(World& world, TestClient& client, const std::vector<Question>& questions,
                  std::vector<uint64_t>& entries, int64_t& progress) {
  bool usable = true;
  for (size_t i = 0; i < questions.size(); ++i) {
    const int64_t begin = machine().now(), patience = world.plan.patience();
    TestResponse response;
    if (usable) {
      response = client.read_response(false, remaining_ms(begin, patience));
      check_time(world, begin, patience, "an answer");
    }
    const bool whole = response.status == 200 && check_answer(questions[i], response);
    if (usable && !whole) check_refusal(world, response, questions[i].path.c_str());
    ++(whole ? world.counts.answered : response.status == 503 ? world.counts.refused : world.counts.cut);
    if (response.status == 0 || (response.status == 200 && !whole)) usable = false;
    if (const auto close = response.headers.find("connection"); close != response.headers.end()) {
      usable = usable && close->second != "close";
    }
    if (whole || (response.status == 503 && response.body.find("connections") == std::string::npos)) {
      progress = machine().now();
    }
    world.ledger.left(entries[i], world.plan.notice());
  }
  return usable;
}

void ask_health(World& world, TestClient& client) {
  const int64_t begin = machine().now(), patience = 2 * kSecond + 20 * world.plan.weather.lateness;
  client.send(get_text(chance(70) ? "/health" : "/metrics"));
  const TestResponse response = client.read_response(false, remaining_ms(begin, patience));
  check_time(world, begin, patience, "/health");
  if (response.status == 200) {
    ++world.counts.answered;
  } else {
    check_refusal(world, response, "/health");
  }
}

}  // namespace

// Ledger

uint64_t Ledger::expect(int sequences) {
  entries_[next_] = {.sequences = sequences};
  return next_++;
}
void Ledger::left(uint64_t entry, int64_t noticed_within) {
  const auto found = entries_.find(entry);
  if (found != entries_.end()) found->second.until = machine().now() + noticed_within;
}
int64_t Ledger::sequences() {
  int64_t sum = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.until < machine().now()) {
      it = entries_.erase(it);
    } else {
      sum += (it++)->second.sequences;
    }
  }
  return sum;
}

// Honest clients

void honest_client(World& world, int number) {
  machine().current().address = kHonestNetwork + static_cast<uint32_t>(number) + 1;
  int64_t progress = machine().now();  // when the server last answered with something else than that it is full
  while (!world.over() && !world.stopping) {
    pause(200 * kMillisecond);
    check_time(world, progress, 2 * world.plan.patience(), "a client's last success");
    TestClient client(world.port, chance(30) ? static_cast<int>(draw(512, 8192)) : 0);
    if (world.stopping) return;
    expect(client.connected(), "no connection");
    bool usable = true;
    for (int64_t round = draw(1, 4); usable && round > 0 && !world.over(); --round) {
      if (chance(25)) {
        ask_health(world, client);
        break;
      }
      std::vector<Question> questions;
      std::vector<uint64_t> entries;
      std::string text;
      for (int64_t count = chance(30) ? draw(2, 4) : 1; count > 0; --count) {
        questions.push_back(make_question(world, 40));
        entries.push_back(world.ledger.expect(questions.back().n));
        text += request_text(questions.back());
      }
      send_in_pieces(client, text, world.plan.crowded() ? 0 : 20 * kMillisecond);
      usable = read_answers(world, client, questions, entries, progress);
      pause(50 * kMillisecond);
    }
  }
}

void ask_once(World& world) {
  machine().current().address = kHonestNetwork;
  TestClient client(world.port);
  const std::vector<Question> questions = {make_question(world, 20)};
  std::vector<uint64_t> entries = {world.ledger.expect(questions[0].n)};
  client.send(request_text(questions[0]));
  const uint64_t before = world.counts.answered;
  int64_t progress = 0;
  read_answers(world, client, questions, entries, progress);
  expect(world.counts.answered == before + 1, "the server does not serve any more ({} refusals, {} cuts)",
         world.counts.refused, world.counts.cut);
}

void expect_metric(World& world, const std::string& name, int wanted, int64_t patience) {
  machine().current().address = kHonestNetwork;
  const int64_t end = machine().now() + patience;
  for (;;) {
    TestClient client(world.port);
    client.send(get_text("/metrics", "Connection: close\r\n"));
    const std::string body = client.read_response().body;
    const size_t at = body.find("\n" + name);
    expect(at != std::string::npos, "no metric '{}' in {}", name, body);
    const size_t value = body.find(' ', at + 1 + name.size() - 1);
    const double number = std::stod(body.substr(value + 1));
    if (number == wanted) return;
    expect(machine().now() < end, "{} is {}, expected {}", name, number, wanted);
    machine().sleep_until(machine().now() + 100 * kMillisecond);
  }
}

// Hostile clients

// Ends a connection in one of three ways.
static void leave(TestClient& client) {
  if (chance(30)) return client.reset();
  if (chance(20)) client.finish_writing();
  client.close();
}

void leaving_client(World& world, int number) {
  machine().current().address = kHostileNetwork + static_cast<uint32_t>(number) + 1;
  while (!world.over()) {
    pause(300 * kMillisecond);
    TestClient client(world.port);
    if (!client.connected()) return;
    const Question q = make_question(world, world.plan.engine.max_model_len, true);
    const uint64_t entry = world.ledger.expect(q.n);
    ++world.counts.hostile;
    send_in_pieces(client, request_text(q), 5 * kMillisecond);
    if (chance(40)) {  // bytes behind the request, from which the server must not lose sight of the end
      const bool much = chance(50);
      const std::string more =
          get_text("/health") + std::string(static_cast<size_t>(draw(0, much ? 400'000 : 100'000)), 'x');
      client.send_what_fits(more);
    }
    if (chance(50)) pause(draw(0, 1) != 0 ? 20 * kMillisecond : 500 * kMillisecond);
    if (chance(50)) client.fill(static_cast<int>(draw(1, 200)));
    leave(client);
    ++world.counts.left;
    world.ledger.left(entry, world.plan.notice());
  }
}

void slow_client(World& world, int number) {
  machine().current().address = kHostileNetwork + 0x100 + static_cast<uint32_t>(number);
  while (!world.over()) {
    pause(300 * kMillisecond);
    TestClient client(world.port, static_cast<int>(draw(64, 1024)));
    if (!client.connected()) return;
    const Question q = make_question(world, world.plan.engine.max_model_len, true);
    const std::string text = request_text(q);
    ++world.counts.hostile;
    if (chance(40)) {  // writes slowly, and perhaps stops
      size_t at = 0;
      while (at < text.size() && !world.over() && !chance(3)) {
        if (!client.send(text.substr(at, 1))) break;
        ++at;
        pause(chance(10) ? kSecond : 10 * kMillisecond);
      }
      const uint64_t entry = world.ledger.expect(at == text.size() ? q.n : 0);
      if (chance(50)) client.closed_by_server(static_cast<int>(draw(100, 120'000)));
      client.close();
      world.ledger.left(entry, world.plan.notice());
      continue;
    }
    const uint64_t entry = world.ledger.expect(q.n);
    client.send(text);
    for (int64_t reads = draw(0, 20); reads > 0 && !world.over(); --reads) {
      char bytes[64];
      if (::recv(client.fd(), bytes, static_cast<size_t>(draw(1, sizeof bytes)), MSG_DONTWAIT) == 0) break;
      pause(kSecond);
    }
    leave(client);
    ++world.counts.left;
    world.ledger.left(entry, world.plan.notice());
  }
}

void garbage_client(World& world, int number) {
  machine().current().address = kHostileNetwork + 0x200 + static_cast<uint32_t>(number);
  while (!world.over()) {
    pause(200 * kMillisecond);
    TestClient client(world.port);
    if (!client.connected()) return;
    ++world.counts.hostile;
    const Question q = make_question(world, 20);
    std::string text = request_text(q);
    if (chance(30)) {
      text.clear();
      for (int64_t i = draw(1, 2000); i > 0; --i) text += static_cast<char>(draw(0, 255));
    } else {
      for (int64_t i = draw(1, 4); i > 0; --i) {
        const auto at = static_cast<size_t>(draw(0, static_cast<int64_t>(text.size()) - 1));
        if (chance(30)) {
          text.erase(at, static_cast<size_t>(draw(1, 20)));
        } else if (chance(50)) {
          text.insert(at, text.substr(at / 2, static_cast<size_t>(draw(1, 20))));
        } else {
          text[at] = static_cast<char>(draw(0, 255));
        }
        if (text.empty()) break;
      }
    }
    const uint64_t entry = world.ledger.expect(128);  // n may have become anything
    send_in_pieces(client, text, 5 * kMillisecond);
    if (chance(50)) client.finish_writing();
    if (chance(70)) client.closed_by_server(static_cast<int>(draw(1, 3000)));
    leave(client);
    world.ledger.left(entry, world.plan.notice());
  }
}

void uploading_client(World& world, int number) {
  machine().current().address = kHostileNetwork + 0x300 + static_cast<uint32_t>(number);
  const std::string half(static_cast<size_t>(world.plan.server.max_body_bytes) * 9 / 10, '[');
  while (!world.over()) {
    pause(500 * kMillisecond);
    TestClient client(world.port);
    if (!client.connected()) return;
    ++world.counts.hostile;
    const bool counted = chance(50);
    client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}",
                            counted ? fmt::format("Content-Length: {}\r\n\r\n", world.plan.server.max_body_bytes)
                                    : fmt::format("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", half.size())));
    client.send(half);
    if (chance(50) && counted)
      client.send(std::string(static_cast<size_t>(world.plan.server.max_body_bytes) - half.size(), '['));
    if (chance(80)) client.closed_by_server(static_cast<int>(draw(100, 10'000)));
    leave(client);
  }
}

void idle_clients(World& world) {
  constexpr int kAddresses = 4;  // one alone would meet its own limit
  std::vector<std::optional<TestClient>> clients(static_cast<size_t>(world.plan.idle));
  while (!world.over()) {
    for (auto& client : clients) {
      if (world.over()) break;
      machine().current().address = kHostileNetwork + 0x400 + static_cast<uint32_t>(draw(1, kAddresses));
      client.emplace(world.port);
      if (!client->connected()) return;
      if (chance(20))
        client->send(std::string_view("GET /health HTTP/1.1\r\nHost").substr(0, static_cast<size_t>(draw(1, 20))));
      pause(2 * kMillisecond);
    }
    pause(kSecond);
  }
}

// Asks for more sequences than may wait. If the server has not refused them soon after it began to answer, it has taken
// all of them.
void bomb_client(World& world, int number) {
  machine().current().address = kHostileNetwork + 0x500 + static_cast<uint32_t>(number);
  const EngineOptions& o = world.plan.engine;
  while (!world.over()) {
    pause(kSecond);
    TestClient client(world.port);
    if (!client.connected()) return;
    ++world.counts.hostile;
    const int n = o.max_num_seqs;
    const int64_t count = draw(1, std::min(2 * o.max_num_queued_reqs, 2048 / n)), tokens = o.max_model_len / 2;
    Json prompts = Json::array();
    for (int64_t i = 0; i < count; ++i) prompts.push_back(random_text(3));
    const Json body = {{"prompt", prompts}, {"n", n}, {"max_tokens", tokens}, {"ignore_eos", true}, {"stream", true}};
    const uint64_t entry = world.ledger.expect(static_cast<int>(count) * n);
    const int64_t begin = machine().now();
    client.send(post_text("/v1/completions", dump_json(body)));
    if (client.read_until("\r\n", static_cast<int>(draw(100, 60'000))).starts_with("HTTP/1.1 200")) {
      const int64_t end = machine().now() + world.plan.notice();
      bool refused = false;
      while (!refused && machine().now() < end) {
        refused = !client.fill(remaining_ms(machine().now(), end - machine().now())) && machine().now() < end;
      }
      const int64_t rounds = (machine().now() - begin) / (tokens * world.plan.pace.per_step);
      const int64_t most = o.max_num_queued_reqs + o.max_num_seqs * (rounds + 2);
      expect(refused || count * n <= most, "{} sequences are accepted, expected at most {}", count * n, most);
    }
    leave(client);
    world.ledger.left(entry, world.plan.notice());
  }
}

}  // namespace sluice::simulation
