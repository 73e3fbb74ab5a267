// Clients that only want answers. Each is a thread with a socket of its own; all chance comes from the machine.
#include <fmt/core.h>

#include <vector>

#include "base/json.h"
#include "simulation/chance.h"
#include "simulation/question.h"

namespace sluice::simulation {
namespace {

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
    const bool kept_out = response.body.find("connections") != std::string::npos;
    if (whole || (response.status == 503 && !kept_out) || world.plan.starves()) {
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
  expect(response.body.find("too many connections") == std::string::npos, "a probe is refused: {}", response.body);
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

// The server ends its streams when it ends itself, long before it would cut them.
static void check_end(const World& world, TestClient& client) {
  const int64_t begin = machine().now(), patience = 3 * kSecond + 20 * world.plan.weather.lateness;
  const bool ended = client.closed_by_server(remaining_ms(begin, patience));
  expect(ended, "a stream of events does not end with the server");
}

void watching_client(World& world, int number) {
  machine().current().address = kHonestNetwork + 0x100 + static_cast<uint32_t>(number);
  while (!world.over() && !world.stopping) {
    pause(kSecond);
    TestClient client(world.port, chance(30) ? static_cast<int>(draw(512, 8192)) : 0);
    if (world.stopping) return;
    expect(client.connected(), "no connection");
    const int64_t interval = draw(100, 2000);
    const int64_t patience = interval * kMillisecond + 2 * kSecond + 20 * world.plan.weather.lateness;
    client.send(get_text(fmt::format("/events?interval_ms={}", interval)));
    int64_t begin = machine().now();
    const std::string head = client.read_until("\r\n\r\n", remaining_ms(begin, patience));
    check_time(world, begin, patience, "/events");
    if (!head.starts_with("HTTP/1.1 200") || !head.ends_with("\r\n\r\n")) {
      TestResponse refused{.status = head.size() > 12 ? std::stoi(head.substr(9, 3)) : 0, .headers = {}, .body = {}};
      if (refused.status > 0) refused.body = client.read_until("}}", remaining_ms(begin, patience));
      check_refusal(world, refused, "/events");
      continue;
    }
    for (int64_t events = draw(0, 8); events > 0 && !world.over() && !world.stopping; --events) {
      begin = machine().now();
      const std::string event = client.read_until("\n\n\r\n", remaining_ms(begin, patience));
      // A snapshot needs so much memory that it may fail many times, if every thousandth allocation does.
      if (!world.plan.faults()) check_time(world, begin, patience, "an event");
      if (world.stopping) break;
      if (!event.ends_with("\n\n\r\n")) {
        expect(world.plan.faults(), "a stream of events ends or stalls after '{}'", event);
        break;
      }
      const std::string data = event.substr(event.find("data: ") + 6);
      expect(parse_json(data).at("models").size() == 1, "an event says '{}'", data);
      ++world.counts.answered;
    }
    if (world.stopping) check_end(world, client);
    if (chance(30)) client.reset();
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

}  // namespace sluice::simulation
