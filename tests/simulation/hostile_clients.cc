// Clients that leave, send what they should not, or too much. Each is a thread with a socket of its own; all chance
// comes from the machine.
#include <fmt/core.h>

#include <optional>
#include <vector>

#include "base/json.h"
#include "simulation/chance.h"
#include "simulation/question.h"

namespace sluice::simulation {
namespace {

// Ends a connection in one of three ways.
void leave(TestClient& client) {
  if (chance(30)) return client.reset();
  if (chance(20)) client.finish_writing();
  client.close();
}

}  // namespace

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

// Sends a body a byte at a time, or just fast enough. The server must end both.
void dripping_client(World& world, int number) {
  machine().current().address = kHostileNetwork + 0x600 + static_cast<uint32_t>(number);
  const ServerOptions& o = world.plan.server;
  constexpr int64_t kGrace = 10 * kSecond;  // after which a body needs a rate (HttpServerOptions)
  while (!world.over() && !world.stopping) {
    pause(kSecond);
    TestClient client(world.port);
    if (!client.connected()) return;
    ++world.counts.hostile;
    const bool fast_enough = chance(50);
    const int64_t total = o.body_total_timeout_ms * kMillisecond;
    const int64_t longest = fast_enough ? total : std::min(kGrace, total);
    const int64_t begin = machine().now(), patience = longest + 2 * kSecond + 20 * world.plan.weather.lateness;
    const std::string piece(fast_enough ? 1024 : 1, '[');
    constexpr int kEvery = 500;  // milliseconds
    client.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    "Content-Length: {}\r\n\r\n",
                    o.max_body_bytes));
    bool ended = false;
    while (!ended && !world.over() && !world.stopping) {
      expect(machine().now() < begin + patience, "a body has been arriving for {:.1f} s, expected at most {:.1f}",
             static_cast<double>(machine().now() - begin) * 1e-9, static_cast<double>(patience) * 1e-9);
      client.send(piece);
      ended = client.closed_by_server(kEvery);
    }
    leave(client);
  }
}

// Takes as many connections as a few addresses get, and holds each with a request that does not go on.
void crowding_clients(World& world) {
  std::vector<std::optional<TestClient>> clients(static_cast<size_t>(world.plan.crowd));
  while (!world.over() && !world.stopping) {
    uint32_t next = 0;
    for (auto& client : clients) {
      if (world.over() || world.stopping) break;
      machine().current().address =
          kHostileNetwork + 0x700 + next++ % static_cast<uint32_t>(world.plan.crowd_addresses);
      client.emplace(world.port);
      if (!client->connected()) return;
      ++world.counts.hostile;
      client->send(
          "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
          "Content-Length: 1000\r\n\r\n{");
      pause(2 * kMillisecond);
    }
    pause(4 * kSecond);
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
