// One engine computes prompts, and another one goes on with them, over a real connection: answers stay the same,
// whatever becomes of the connection.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "cache/row_message.h"
#include "engine/collect.h"
#include "parallel/tcp.h"
#include "sluice/engine.h"
#include "sluice/error.h"
#include "support/ucx.h"

namespace sluice::row_transfer_test {
namespace {

using namespace testing;  // engine/collect.h
using std::chrono_literals::operator""ms, std::chrono_literals::operator""s;

// Over each way that rows can travel.
class RowTransfer : public testing::OverTransports {
 protected:
  static EngineOptions options() {
    EngineOptions o;
    o.model = testing::demo_model();
    o.max_model_len = 512;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    o.kv_cache_memory_bytes = 8 << 20;
    o.kv_transfer_timeout_ms = 3000;
    o.threads = 1;
    o.deterministic = true;  // batch-invariant even if a GPU is the default backend
    return o;
  }
  static EngineOptions prefill_options() {
    EngineOptions o = options();
    o.kv_transfer_listen = "127.0.0.1:0";
    o.kv_transfer_backend = GetParam();
    o.kv_host_memory_bytes = 64 << 20;
    return o;
  }
  static EngineOptions decode_options() {
    EngineOptions o = options();
    o.kv_transfer_peer = {"*"};
    o.kv_transfer_backend = GetParam();
    o.kv_host_memory_bytes = 64 << 20;
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, RowTransfer, ::testing::Values("tcp", "ucx"),
                         [](const auto& info) { return info.param; });

Request request_of(unsigned seed, int length = 200) {
  std::mt19937 random(seed);
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(300 + random() % 1000));
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  request.sampling.temperature = seed % 2 == 0 ? 0.0F : 1.0F;
  request.sampling.seed = seed;
  return request;
}

Request for_prefill(Request request, const std::string& id) {
  request.sampling.max_tokens = 1;
  request.kv_transfer = KvTransfer{.id = id};
  return request;
}
Request for_decode(Request request, const std::string& id, int port) {
  request.kv_transfer = KvTransfer{.id = id, .host = "127.0.0.1", .port = port};
  return request;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST_P(RowTransfer, APromptIsComputedByOneEngineAndGoneOnWithByAnother) {
  const auto prefill = Engine::load(prefill_options()), decode = Engine::load(decode_options());
  const auto alone = Engine::load(options());
  const int port = prefill->model().kv_transfer_port;
  ASSERT_GT(port, 0);
  EXPECT_EQ(prefill->model().kv_transfer_host, "127.0.0.1");
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const std::string id = std::to_string(seed);
    run_alone(*prefill, for_prefill(request_of(seed), id));
    const Choice answer = run_alone(*decode, for_decode(request_of(seed), id, port));
    EXPECT_EQ(answer.tokens, run_alone(*alone, request_of(seed)).tokens);
    EXPECT_EQ(answer.usage.cached_tokens, 192);
  }
  EXPECT_EQ(metric(*decode, "sluice:kv_transfer_rows_received"), 4 * 12);
  EXPECT_EQ(metric(*decode, "sluice:kv_transfer_rows_failed"), 0);
  EXPECT_TRUE(settles(*prefill, "sluice:kv_transfer_rows_sent", 4 * 12));
  EXPECT_GT(metric(*decode, "sluice:kv_transfer_bytes_received"), 0);
  EXPECT_EQ(metric(*decode, "sluice:kv_transfer_bytes_received"), metric(*prefill, "sluice:kv_transfer_bytes_sent"));
}

// Both engines get requests at the same time, as behind a router.
TEST_P(RowTransfer, ManyRequestsAtOnce) {
  EngineOptions o = decode_options();
  o.kv_transfer_timeout_ms = 120'000;  // prompts wait for their turn
  const auto prefill = Engine::load(prefill_options()), decode = Engine::load(o);
  const auto alone = Engine::load(options());
  const int port = prefill->model().kv_transfer_port;
  Collector expected(*alone), computed(*prefill), got(*decode);
  std::mt19937 random(5);
  for (unsigned i = 0; i < 40; ++i) {
    Request request = request_of(i % 25, 1 + static_cast<int>(random() % 200));
    request.n = i % 5 == 0 ? 2 : 1;
    const std::string id = std::to_string(i);
    expected.submit(request);
    got.submit(for_decode(request, id, port));
    computed.submit(for_prefill(request, id));
  }
  for (unsigned i = 0; i < 40; ++i) {
    for (size_t choice = 0; choice < got.answer(i).size(); ++choice) {
      EXPECT_EQ(got.answer(i)[choice].tokens, expected.answer(i)[choice].tokens) << "request " << i;
    }
  }
  EXPECT_GT(metric(*decode, "sluice:kv_transfer_rows_received"), 100);
}

TEST_P(RowTransfer, AnEngineThatEndsIsReplacedByComputing) {
  auto prefill = Engine::load(prefill_options());
  const auto decode = Engine::load(decode_options()), alone = Engine::load(options());
  const int port = prefill->model().kv_transfer_port;
  Collector expected(*alone), got(*decode);
  std::atomic<int> ended{0};
  for (unsigned i = 0; i < 30; ++i) {
    const std::string id = std::to_string(i);
    expected.submit(request_of(i, 300));
    got.submit(for_decode(request_of(i, 300), id, port));
    prefill->submit(for_prefill(request_of(i, 300), id), [&](const Event& event) { ended += event.last; });
  }
  while (ended < 3) std::this_thread::sleep_for(1ms);
  prefill.reset();
  for (unsigned i = 0; i < 30; ++i) EXPECT_EQ(got.answer(i)[0].tokens, expected.answer(i)[0].tokens) << "request " << i;
  EXPECT_GT(metric(*decode, "sluice:kv_transfer_rows_failed"), 0);
  // Nobody listens there any more.
  const Choice later = run_alone(*decode, for_decode(request_of(100), "later", port));
  EXPECT_EQ(later.tokens, run_alone(*alone, request_of(100)).tokens);
}

// A server that says hello and then what the test wants.
class FakePeer {
 public:
  using Talk = std::function<void(ByteStream&, const Hello& hello)>;
  using MakeStream = std::function<std::unique_ptr<ByteStream>(std::unique_ptr<TcpStream>)>;
  FakePeer(MakeStream make_stream, Talk talk)
      : make_stream_(std::move(make_stream)), talk_(std::move(talk)), thread_([this] { run(); }) {}
  ~FakePeer() {
    stopping_ = true;
    thread_.join();
  }
  int port() const { return listener_.port(); }

 private:
  void run() {
    while (!stopping_) {
      std::unique_ptr<TcpStream> connection = listener_.accept(20ms);
      if (connection == nullptr) continue;
      const std::unique_ptr<ByteStream> stream = make_stream_(std::move(connection));
      Hello hello{};
      if (!stream->open(2s).empty() || !stream->read(std::as_writable_bytes(std::span(&hello, 1)), 2s)) continue;
      talk_(*stream, hello);
    }
  }

  const MakeStream make_stream_;
  const Talk talk_;
  TcpListener listener_{{.host = "127.0.0.1", .port = 0}, "--listen"};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

TEST_P(RowTransfer, WhateverAPeerSendsTheAnswerIsRight) {
  const auto alone = Engine::load(options());
  const std::vector<TokenId> expected = run_alone(*alone, request_of(1)).tokens;
  std::mt19937 random(3);
  const auto greet = [](ByteStream& stream, const Hello& hello) {
    stream.write(std::as_bytes(std::span(&hello, 1)), 1s);
  };
  const auto send_head = [](ByteStream& stream, MessageKind kind, size_t size, uint64_t transfer) {
    const MessageHead head{.kind = kind, .size = static_cast<uint32_t>(size), .transfer = transfer};
    stream.write(std::as_bytes(std::span(&head, 1)), 1s);
  };
  const auto read_want = [](ByteStream& stream) {
    MessageHead head{};
    stream.read(std::as_writable_bytes(std::span(&head, 1)), 2s);
    std::vector<std::byte> body(head.size);
    stream.read(body, 2s);
    return head;
  };
  const auto row = [&](ByteStream& stream, const Hello& hello, uint64_t transfer, uint32_t index, uint32_t checksum) {
    send_head(stream, MessageKind::kRow, sizeof(RowHead) + hello.row_bytes, transfer);
    const RowHead head{.index = index, .checksum = checksum};
    stream.write(std::as_bytes(std::span(&head, 1)), 1s);
    std::vector<std::byte> bytes(hello.row_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    stream.write(bytes, 1s);
  };
  const std::vector<std::pair<std::string, FakePeer::Talk>> talks = {
      {"ends at once", [](ByteStream&, const Hello&) {}},
      {"another model",
       [&](ByteStream& stream, Hello hello) {
         hello.identity[0] ^= 1;
         greet(stream, hello);
       }},
      {"no server of ours",
       [](ByteStream& stream, const Hello&) {
         stream.write(std::as_bytes(std::span("HTTP/1.1 400 Bad Request\r\n\r\nand so on, for fifty-six bytes")), 1s);
       }},
      {"refuses",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         send_head(stream, MessageKind::kRefuse, 0, read_want(stream).transfer);
         stream.readable(1s);
       }},
      {"wrong checksums",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         const uint64_t transfer = read_want(stream).transfer;
         for (uint32_t i = 0; i < 12; ++i) row(stream, hello, transfer, i, 12345);
         stream.readable(1s);
       }},
      {"an index behind the last row",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         row(stream, hello, read_want(stream).transfer, 1 << 20, 0);
         stream.readable(1s);
       }},
      {"a row twice",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         const uint64_t transfer = read_want(stream).transfer;
         row(stream, hello, transfer, 0, 0);
         row(stream, hello, transfer, 0, 0);
         stream.readable(1s);
       }},
      {"a row of another transfer, then silence",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         row(stream, hello, read_want(stream).transfer + 99, 0, 0);
         stream.readable(10s);
       }},
      {"a message that is too large",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         send_head(stream, MessageKind::kRow, 0xffffffff, read_want(stream).transfer);
         stream.readable(1s);
       }},
      {"half a row",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         send_head(stream, MessageKind::kRow, sizeof(RowHead) + hello.row_bytes, read_want(stream).transfer);
         const RowHead head{.index = 0, .checksum = 0};
         stream.write(std::as_bytes(std::span(&head, 1)), 1s);
         stream.write(std::vector<std::byte>(hello.row_bytes / 2), 1s);
       }},
      {"random bytes",
       [&](ByteStream& stream, const Hello& hello) {
         greet(stream, hello);
         std::vector<std::byte> bytes(4000);
         for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
         stream.write(bytes, 1s);
       }},
  };
  EngineOptions o = decode_options();
  o.kv_transfer_timeout_ms = 300;
  for (const auto& [name, talk] : talks) {
    const auto decode = Engine::load(o);
    const FakePeer peer([this](auto connection) { return stream_over(std::move(connection)); }, talk);
    const Choice answer = run_alone(*decode, for_decode(request_of(1), "a", peer.port()));
    EXPECT_EQ(answer.tokens, expected) << name;
    EXPECT_EQ(answer.usage.cached_tokens, 0) << name;
    EXPECT_EQ(metric(*decode, "sluice:kv_transfer_rows_failed"), 12) << name;
  }
}

// What a peer sends to an engine that computes prompts.
TEST_P(RowTransfer, MalformedWantsEndTheConnection) {
  const auto prefill = Engine::load(prefill_options());
  const int port = prefill->model().kv_transfer_port;
  std::mt19937 random(9);
  for (int round = 0; round < 20; ++round) {
    const auto stream = stream_over(connect_tcp({.host = "127.0.0.1", .port = port}, 2s));
    ASSERT_EQ(stream->open(2s), "");
    std::vector<std::byte> bytes(sizeof(Hello) + random() % 3000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    stream->write(bytes, 1s);
    Hello hello{};
    if (stream->read(std::as_writable_bytes(std::span(&hello, 1)), 1s)) {
      std::byte byte{};
      EXPECT_FALSE(stream->read({&byte, 1}, 2s));
    }
  }
  EXPECT_EQ(run_alone(*prefill, request_of(1)).tokens.size(), 8u);
}

// Strangers that know no protocol at all, some of whom stay connected in silence.
TEST_P(RowTransfer, StrangersDoNotDisturb) {
  const auto prefill = Engine::load(prefill_options()), decode = Engine::load(decode_options());
  const int port = prefill->model().kv_transfer_port;
  std::mt19937 random(21);
  std::vector<std::unique_ptr<TcpStream>> strangers;
  for (int i = 0; i < 24; ++i) {
    strangers.push_back(connect_tcp({.host = "127.0.0.1", .port = port}, 2s));
    std::vector<std::byte> bytes(i % 4 == 0 ? 0 : random() % 2000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (!bytes.empty()) strangers.back()->write(bytes, 1s);
    if (i % 3 == 0) strangers.back()->shut_down();
  }
  run_alone(*prefill, for_prefill(request_of(2), "a"));
  const Choice answer = run_alone(*decode, for_decode(request_of(2), "a", port));
  EXPECT_EQ(answer.usage.cached_tokens, 192);
  EXPECT_EQ(answer.tokens, run_alone(*prefill, request_of(2)).tokens);
}

// One server uses TCP, and the other one UCX.
TEST_P(RowTransfer, TransportsThatDifferAreReplacedByComputing) {
  EngineOptions o = decode_options();
  o.kv_transfer_backend = GetParam() == "tcp" ? "ucx" : "tcp";
  std::unique_ptr<Engine> decode;
  try {
    decode = Engine::load(o);
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  const auto prefill = Engine::load(prefill_options());
  run_alone(*prefill, for_prefill(request_of(2), "a"));
  const Choice answer = run_alone(*decode, for_decode(request_of(2), "a", prefill->model().kv_transfer_port));
  EXPECT_EQ(answer.usage.cached_tokens, 0);
  EXPECT_EQ(answer.tokens, run_alone(*prefill, request_of(2)).tokens);
}

TEST_P(RowTransfer, ARequestThatWaitsForRowsCanBeCancelledOrRunOutOfTime) {
  std::atomic<bool> asked{false};
  FakePeer silent([this](auto connection) { return stream_over(std::move(connection)); },
                  [&](ByteStream& stream, const Hello& hello) {
                    stream.write(std::as_bytes(std::span(&hello, 1)), 1s);
                    asked = true;
                    stream.readable(1s);
                    std::this_thread::sleep_for(500ms);
                  });
  EngineOptions o = decode_options();
  o.kv_transfer_timeout_ms = 60'000;
  const auto decode = Engine::load(o);
  Collector collector(*decode);
  const size_t cancelled = collector.submit(for_decode(request_of(1), "a", silent.port()));
  Request late = for_decode(request_of(2), "b", silent.port());
  late.deadline = std::chrono::steady_clock::now() + 100ms;
  const size_t ended = collector.submit(std::move(late));
  while (!asked) std::this_thread::sleep_for(1ms);
  decode->cancel(collector.id(cancelled));
  EXPECT_EQ(collector.answer(cancelled)[0].finish->reason, FinishReason::kAbort);
  EXPECT_EQ(collector.answer(ended)[0].finish->reason, FinishReason::kAbort);
  EXPECT_EQ(metric(*decode, "vllm:num_requests_waiting"), 0);
}

TEST_P(RowTransfer, AnEngineThatEndsEndsItsWaitingRequests) {
  FakePeer silent([this](auto connection) { return stream_over(std::move(connection)); },
                  [&](ByteStream& stream, const Hello& hello) {
                    stream.write(std::as_bytes(std::span(&hello, 1)), 1s);
                    std::this_thread::sleep_for(300ms);
                  });
  EngineOptions o = decode_options();
  o.kv_transfer_timeout_ms = 60'000;
  auto decode = Engine::load(o);
  std::atomic<bool> ended{false};
  decode->submit(for_decode(request_of(1), "a", silent.port()), [&](const Event& event) {
    EXPECT_EQ(event.finish->reason, FinishReason::kAbort);
    ended = true;
  });
  decode.reset();
  EXPECT_TRUE(ended);
}

TEST_P(RowTransfer, RefusesWhatItCannotDo) {
  EngineOptions o = options();
  o.kv_transfer_listen = "127.0.0.1";
  EXPECT_EQ(message_of([&] { Engine::load(o); }),
            "--kv-transfer-listen: '127.0.0.1' is not an address (expected HOST:PORT, or [HOST]:PORT for IPv6)");
  o.kv_transfer_listen = "0.0.0.0:0";
  EXPECT_EQ(message_of([&] { Engine::load(o); }),
            "--kv-transfer-listen: other servers cannot reach '0.0.0.0' (expected an address of this machine)");
  o.kv_transfer_listen = "127.0.0.1:0";
  o.enable_prefix_caching = false;
  EXPECT_EQ(message_of([&] { Engine::load(o); }), "--kv-transfer-listen needs --enable-prefix-caching");
  o.enable_prefix_caching = true;
  o.data_parallel_size = 2;
  EXPECT_EQ(message_of([&] { Engine::load(o); }),
            "--kv-transfer-listen cannot be used with --data-parallel-size: the replicas would share an address; start "
            "a server for each");
  o = options();
  o.kv_transfer_peer = {"somewhere"};
  EXPECT_EQ(message_of([&] { Engine::load(o); }),
            "--kv-transfer-peer: 'somewhere' is not an address (expected HOST:PORT, or [HOST]:PORT for IPv6)");
  o.kv_transfer_peer = {};
  o.kv_transfer_backend = "ucx";
  EXPECT_EQ(message_of([&] { Engine::load(o); }),
            "--kv-transfer-backend ucx needs --kv-transfer-listen or --kv-transfer-peer");
  o.kv_transfer_backend = "rdma";
  EXPECT_EQ(message_of([&] { Engine::load(o); }), "--kv-transfer-backend: unknown value 'rdma' (expected tcp, ucx)");
  o.kv_transfer_backend = GetParam();
  o.kv_transfer_peer = {"127.0.0.1:7"};
  const auto engine = Engine::load(o);
  EXPECT_EQ(message_of([&] { run_alone(*engine, for_decode(request_of(1), "a", 8)); }),
            "Invalid 'kv_transfer_params.remote_host': '127.0.0.1:8' is not one of the server's --kv-transfer-peer.");
  EXPECT_EQ(message_of([&] { run_alone(*engine, for_prefill(request_of(1), "a")); }),
            "Invalid 'kv_transfer_params.do_remote_decode': the server was started without --kv-transfer-listen.");
}

}  // namespace
}  // namespace sluice::row_transfer_test
