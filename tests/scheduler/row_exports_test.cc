// Prompts that one scheduler computes and another one goes on with, over a wire that delays, refuses and breaks.
// Answers are always those of a scheduler alone.
#include "scheduler/row_exports.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "scheduler/fake_model.h"
#include "scheduler/fake_mover.h"
#include "scheduler/requests.h"
#include "scheduler/scheduler.h"

namespace sluice::row_exports_test {
namespace {

using std::chrono_literals::operator""s, std::chrono_literals::operator""ms;
using Clock = std::chrono::steady_clock;
using Kind = RowTransfer::Kind;
using Transfer = std::shared_ptr<const RowTransfer>;

constexpr int kVocab = 50, kBlockSize = 4;

struct World {
  Clock::time_point now{};
  std::mt19937 random{1};
  bool chance(unsigned percent) { return random() % 100 < percent; }
};

// A scheduler with a fake model. Transfers to and from other servers are left in `wire`.
class FakeServer {
 public:
  FakeServer(World& world, RowStoreOptions store, int blocks = 64)
      : options_{.max_num_seqs = 4,
                 .max_num_batched_tokens = 8,
                 .max_model_len = 60,
                 .block_size = kBlockSize,
                 .blocks = blocks,
                 .row_store = store,
                 .exports_held_for = 10s,
                 .clock = [&world] { return world.now; }},
        scheduler(options_),
        model_(blocks, kBlockSize, kVocab),
        mover(model_, [] { return false; }) {}

  void step() {
    ScheduledBatch step = scheduler.next();
    if (!step.batch.empty()) {
      std::vector<SampleResult> samples = model_.run(step, scheduler.block_pool());
      std::vector<StepResult> results = step_results(step, samples);
      scheduler.commit(std::move(step), results);
    }
    for (SequenceEvent& event : scheduler.drain()) {
      std::vector<TokenId>& tokens = answers[{event.request, event.index}];
      for (const TokenId token : event.tokens) tokens.push_back(token);
      cached[event.request] = event.usage.cached_tokens;
      if (event.finish) ++ended;
    }
    take_transfers();
  }

  void take_transfers() {
    std::vector<Transfer> local;
    for (Transfer& transfer : scheduler.take_transfers()) {
      const bool remote =
          transfer->kind == Kind::kReceive || transfer->kind == Kind::kSend || transfer->kind == Kind::kRefuse;
      (remote ? wire : local).push_back(transfer);
    }
    mover.take(std::move(local));
  }

  void move_all() {
    for (take_transfers(); !mover.idle(); take_transfers()) mover.run(0, scheduler);
  }

 private:
  SchedulerOptions options_;

 public:
  Scheduler scheduler;

 private:
  FakeModel model_;

 public:
  FakeMover mover;
  std::vector<Transfer> wire;
  std::map<std::pair<RequestId, int>, std::vector<TokenId>> answers;  // by choice
  std::map<RequestId, int> cached;
  int ended = 0;  // choices
};

// Carries transfers between two servers, as engine/row_server.h and engine/row_client.h do.
class Wire {
 public:
  Wire(FakeServer& owner, FakeServer& fetcher) : owner_(owner), fetcher_(fetcher) {}

  void carry(World& world) {
    for (const Transfer& transfer : std::exchange(fetcher_.wire, {})) {
      Open open{.transfer = transfer, .left = transfer->rows.size()};
      open.here.resize(transfer->rows.size());
      RowWant want{.number = ++last_, .id = transfer->source->id};
      for (const RowTransfer::Row& row : transfer->rows) want.rows.push_back(row.hash);
      open_[last_] = std::move(open);
      owner_.scheduler.exports().want(std::move(want), world.now);
    }
    std::set<uint64_t> behind;  // wants whose rows are still being saved
    for (const Transfer& transfer : std::exchange(owner_.wire, {})) {
      const bool saved = std::ranges::none_of(
          transfer->rows, [&](const RowTransfer::Row& row) { return owner_.mover.saves(row.host_slot); });
      if (!saved || behind.contains(transfer->want)) {
        behind.insert(transfer->want);
        owner_.wire.push_back(transfer);
        continue;
      }
      const auto open = open_.find(transfer->want);
      std::vector<int> failed;
      for (int i = 0; i < static_cast<int>(transfer->rows.size()); ++i) {
        if (open == open_.end()) failed.push_back(i);
        if (open != open_.end()) copy(open->second, transfer->rows[static_cast<size_t>(i)]);
      }
      owner_.scheduler.finish_transfer(transfer->id, failed);
      if (open != open_.end() && (transfer->kind == Kind::kRefuse || open->second.left == 0)) end(open);
    }
  }

  // The owner dies, or the connection does.
  void break_off() {
    while (!open_.empty()) {
      owner_.scheduler.exports().forget(open_.begin()->first);
      end(open_.begin());
    }
  }

  size_t open() const { return open_.size(); }

 private:
  struct Open {
    Transfer transfer;
    std::vector<bool> here{};
    size_t left = 0;
  };

  void copy(Open& open, const RowTransfer::Row& row) {
    const auto& wanted = open.transfer->rows.at(static_cast<size_t>(row.index));
    EXPECT_EQ(wanted.hash, row.hash);
    FakeMover::Slot& from = owner_.mover.host_slot(row.host_slot);
    EXPECT_EQ(from.row, row.hash);
    EXPECT_FALSE(open.here[static_cast<size_t>(row.index)]) << "a row is sent twice";
    fetcher_.mover.host_slot(wanted.host_slot) = {.row = wanted.hash, .values = from.values};
    open.here[static_cast<size_t>(row.index)] = true;
    --open.left;
  }

  void end(std::map<uint64_t, Open>::iterator at) {
    const Open open = std::move(at->second);
    open_.erase(at);
    std::vector<int> failed;
    for (size_t i = 0; i < open.here.size(); ++i) {
      if (!open.here[i]) failed.push_back(static_cast<int>(i));
    }
    fetcher_.scheduler.finish_transfer(open.transfer->id, failed);
  }

  FakeServer &owner_, &fetcher_;
  std::map<uint64_t, Open> open_;
  uint64_t last_ = 0;
};

Request exported(Request request, const std::string& id) {
  request.sampling.max_tokens = 1;
  request.kv_transfer = KvTransfer{.id = id};
  return request;
}

Request imported(Request request, const std::string& id) {
  request.kv_transfer = KvTransfer{.id = id, .host = "prefill", .port = 1};
  return request;
}

const RowStoreOptions kStore{.host_slots = 64, .rows_per_transfer = 3, .rows_per_fetch = 3};

struct TwoServers {
  World world;
  FakeServer prefill{world, kStore}, decode{world, kStore};
  Wire wire{prefill, decode};

  void run_prefill() {
    while (!prefill.scheduler.idle()) step(prefill);
    prefill.move_all();
  }
  void run_decode() {
    while (!decode.scheduler.idle()) step(decode);
  }
  void step(FakeServer& server) {
    server.step();
    server.move_all();
  }
  // Returns whether the fetch has ended.
  bool exchange() {
    decode.move_all();
    wire.carry(world);
    prefill.move_all();
    wire.carry(world);
    decode.move_all();
    return !decode.scheduler.row_store().take_fetches().empty();
  }
};

TEST(RowExports, APromptIsFetchedAfterItWasComputed) {
  TwoServers two;
  const Request request = numbered_request(30, 5, 0);
  two.prefill.scheduler.add(1, exported(request, "a"));
  two.run_prefill();
  EXPECT_NE(two.decode.scheduler.fetch(imported(request, "a")), 0u);
  EXPECT_TRUE(two.exchange());
  two.decode.scheduler.add(1, imported(request, "a"));
  two.run_decode();
  EXPECT_EQ(two.decode.cached[1], 28);
  World world;
  FakeServer alone(world, {});
  alone.scheduler.add(1, request);
  while (!alone.scheduler.idle()) alone.step();
  EXPECT_EQ(two.decode.answers, alone.answers);
  const RowStoreStats stats = two.decode.scheduler.row_store().stats();
  EXPECT_EQ(stats.received, 7u);
  EXPECT_EQ(stats.not_received, 0u);
  EXPECT_EQ(two.prefill.scheduler.row_store().stats().sent, 7u);
}

// Each chunk of 8 tokens is two blocks: they arrive while the rest is still to be computed.
TEST(RowExports, RowsLeaveWhileThePromptIsComputed) {
  TwoServers two;
  const Request request = numbered_request(33, 5, 0);
  EXPECT_NE(two.decode.scheduler.fetch(imported(request, "a")), 0u);
  EXPECT_FALSE(two.exchange()) << "the export is not known yet";
  two.prefill.scheduler.add(1, exported(request, "a"));
  std::vector<uint64_t> sent;
  while (!two.prefill.scheduler.idle()) {
    two.step(two.prefill);
    two.wire.carry(two.world);
    sent.push_back(two.prefill.scheduler.row_store().stats().sent);
  }
  ASSERT_GE(sent.size(), 4u);
  EXPECT_GE(sent[1], 2u);
  EXPECT_GE(sent[2], 4u);
  EXPECT_TRUE(two.exchange());
  EXPECT_EQ(two.decode.scheduler.row_store().stats().received, 8u);
}

// Nobody has to notice that a row was saved before it is sent.
TEST(RowExports, RowsAreSentWhileTheyAreSaved) {
  TwoServers two;
  const Request request = numbered_request(33, 5, 0);
  two.decode.scheduler.fetch(imported(request, "a"));
  two.exchange();
  two.prefill.scheduler.add(1, exported(request, "a"));
  two.prefill.step();
  two.prefill.take_transfers();
  EXPECT_FALSE(two.prefill.mover.idle());
  size_t rows = 0;
  for (const Transfer& transfer : two.prefill.wire) rows += transfer->rows.size();
  EXPECT_EQ(rows, 2u);
  two.run_prefill();
  EXPECT_TRUE(two.exchange());
  EXPECT_EQ(two.decode.scheduler.row_store().stats().received, 8u);
}

TEST(RowExports, RowsOfThePrefixCacheAreSentToo) {
  TwoServers two;
  FakeServer small(two.world, {.host_slots = 2, .rows_per_transfer = 3});  // forgets rows that the blocks still have
  Wire wire(small, two.decode);
  const Request request = numbered_request(30, 5, 0);
  for (const RequestId id : {1, 2}) {
    small.scheduler.add(id, exported(request, "a"));
    while (!small.scheduler.idle()) {
      small.step();
      small.move_all();
    }
  }
  EXPECT_NE(two.decode.scheduler.fetch(imported(request, "a")), 0u);
  for (int i = 0; i < 40; ++i) {
    two.decode.move_all();
    wire.carry(two.world);
    small.move_all();
  }
  wire.carry(two.world);
  EXPECT_EQ(two.decode.scheduler.row_store().take_fetches().size(), 1u);
  EXPECT_EQ(two.decode.scheduler.row_store().stats().received, 7u);
}

TEST(RowExports, WhatNobodyComputesIsRefused) {
  TwoServers two;
  const Request request = numbered_request(30, 5, 0);
  two.decode.scheduler.fetch(imported(request, "unknown"));
  EXPECT_FALSE(two.exchange());
  ASSERT_TRUE(two.prefill.scheduler.next_deadline().has_value());
  EXPECT_EQ(*two.prefill.scheduler.next_deadline(), two.world.now + RowExports::kUnknownFor);
  two.world.now += RowExports::kUnknownFor;
  EXPECT_TRUE(two.exchange());
  EXPECT_EQ(two.decode.scheduler.row_store().stats().not_received, 7u);
  EXPECT_EQ(two.prefill.scheduler.row_store().stats().not_sent, 7u);
  EXPECT_TRUE(two.prefill.scheduler.exports().idle());
  // A request that ended before its prompt was computed.
  two.prefill.scheduler.add(1, exported(request, "cancelled"));
  two.prefill.step();  // 8 tokens
  two.decode.scheduler.fetch(imported(request, "cancelled"));
  two.prefill.scheduler.cancel(1);
  two.prefill.step();
  EXPECT_TRUE(two.exchange());
  EXPECT_EQ(two.decode.scheduler.row_store().stats().received, 2u);
}

TEST(RowExports, RowsAreHeldUntilTheyAreReleasedOrTimePasses) {
  for (const bool release : {false, true}) {
    TwoServers two;
    FakeServer small(two.world, {.host_slots = 16, .rows_per_transfer = 3}, 16);
    const Request request = numbered_request(30, 1, 0);
    const auto run = [&](RequestId id, Request r) {
      small.scheduler.add(id, std::move(r));
      while (!small.scheduler.idle()) {
        small.step();
        small.move_all();
      }
    };
    const auto compute_others = [&](RequestId first) {
      for (RequestId id = first; id < first + 10; ++id) {
        run(id, numbered_request(40, 1, static_cast<TokenId>(100 * id)));
      }
    };
    run(1, exported(request, "a"));
    compute_others(2);
    Scheduler& scheduler = small.scheduler;
    const BlockPool& pool = scheduler.block_pool();
    const BlockHash first = pool.hash(pool.root(""), std::span(request.prompt).first(kBlockSize));
    EXPECT_EQ(pool.find(first), kNoBlock) << "the blocks have other prompts";
    EXPECT_TRUE(scheduler.row_store().in_host(first)) << "it is held";
    if (release) scheduler.exports().release("a");
    if (!release) two.world.now += 10s;
    small.move_all();
    EXPECT_TRUE(scheduler.exports().idle());
    compute_others(20);
    EXPECT_FALSE(scheduler.row_store().in_host(first));
  }
}

TEST(RowExports, ForgettingThePrefixCacheRefusesWhatIsNotOnItsWay) {
  TwoServers two;
  const Request request = numbered_request(30, 5, 0);
  two.decode.scheduler.fetch(imported(request, "a"));
  two.exchange();
  two.prefill.scheduler.add(1, exported(request, "a"));
  two.prefill.step();
  two.prefill.scheduler.reset_prefix_cache();
  EXPECT_TRUE(two.exchange());
  EXPECT_EQ(two.decode.scheduler.row_store().stats().received, 2u);
  EXPECT_EQ(two.prefill.scheduler.row_store().stats().not_sent, 5u);
  two.run_prefill();
}

TEST(RowExports, FetchesOfEqualPromptsShareTheirRows) {
  TwoServers two;
  const Request request = numbered_request(30, 5, 0);
  two.prefill.scheduler.add(1, exported(request, "a"));
  two.run_prefill();
  EXPECT_NE(two.decode.scheduler.fetch(imported(request, "a")), 0u);
  EXPECT_NE(two.decode.scheduler.fetch(imported(request, "a")), 0u);
  two.exchange();
  EXPECT_EQ(two.decode.scheduler.row_store().stats().received, 7u);
  EXPECT_EQ(two.decode.scheduler.fetch(imported(request, "a")), 0u) << "all is here";
}

// Random requests, a wire that breaks, pools and host memory that are too small: every answer is right.
TEST(RowExports, AnswersAreThoseOfOneServer) {
  uint64_t received = 0, lost = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    World world;
    world.random.seed(seed);
    const bool files = world.chance(30);
    const auto store = [&] {
      return RowStoreOptions{.host_slots = 2 + static_cast<int>(world.random() % 60),
                             .file_slots = files ? 20 : 0,
                             .rows_per_transfer = 1 + static_cast<int>(world.random() % 4),
                             .rows_per_fetch = 1 + static_cast<int>(world.random() % 4)};
    };
    FakeServer prefill(world, store(), 20), decode(world, store(), 20), alone(world, {});
    Wire wire(prefill, decode);
    std::map<uint64_t, std::pair<RequestId, Request>> fetching;
    RequestId last = 0;
    const auto some_request = [&] {
      Request request;
      std::mt19937 shared(world.random() % 3);
      const size_t length = 1 + world.random() % 50, common = world.random() % (length + 1);
      for (size_t i = 0; i < length; ++i) {
        request.prompt.push_back(static_cast<TokenId>((i < common ? shared() : world.random()) % kVocab));
      }
      request.sampling.max_tokens = 1 + static_cast<int>(world.random() % 9);
      request.sampling.seed = static_cast<int64_t>(world.random() % 4);
      request.n = world.chance(20) ? 2 : 1;
      return request;
    };
    for (int turn = 0; turn < 4000 && (last < 25 || !fetching.empty() || !decode.scheduler.idle()); ++turn) {
      world.now += 50ms;
      if (last < 25 && world.chance(20)) {
        Request request = some_request();
        const std::string id = std::to_string(++last);
        alone.scheduler.add(last, request);
        const bool first = world.chance(50);
        const auto compute = [&] { prefill.scheduler.add(last, exported(request, id)); };
        if (first) compute();
        const uint64_t fetch = decode.scheduler.fetch(imported(request, id));
        if (fetch == 0) decode.scheduler.add(last, imported(request, id));
        if (fetch != 0) fetching.emplace(fetch, std::pair(last, imported(request, id)));
        if (!first && world.chance(90)) compute();
      }
      if (world.chance(60)) prefill.step();
      if (world.chance(60)) decode.step();
      if (world.chance(50)) wire.carry(world);
      if (world.chance(3)) wire.break_off();
      if (world.chance(2)) prefill.scheduler.cancel(1 + world.random() % 25);
      if (world.chance(1) && !files) (world.chance(50) ? prefill : decode).scheduler.reset_prefix_cache();
      if (world.chance(10)) prefill.scheduler.exports().release(std::to_string(1 + world.random() % 25));
      for (FakeServer* server : {&prefill, &decode}) {
        server->take_transfers();
        while (!server->mover.idle() && world.chance(70)) {
          server->mover.run(world.random() % server->mover.pending(), server->scheduler);
        }
      }
      for (const uint64_t fetch : decode.scheduler.row_store().take_fetches()) {
        auto node = fetching.extract(fetch);
        ASSERT_FALSE(node.empty());
        decode.scheduler.add(node.mapped().first, std::move(node.mapped().second));
      }
    }
    ASSERT_EQ(last, 25u) << "seed " << seed;
    ASSERT_TRUE(fetching.empty()) << "a fetch never ends, seed " << seed;
    while (!alone.scheduler.idle()) alone.step();
    ASSERT_EQ(decode.ended, alone.ended) << "seed " << seed;
    ASSERT_EQ(decode.answers, alone.answers) << "seed " << seed;
    received += decode.scheduler.row_store().stats().received;
    lost += decode.scheduler.row_store().stats().not_received;
    // Nothing stays behind: after the last hold every slot can be used again.
    wire.break_off();
    world.now += 20s;
    while (!prefill.scheduler.idle()) {
      prefill.step();
      prefill.move_all();
      wire.carry(world);
    }
    world.now += 20s;
    for (int i = 0; i < 5; ++i) {
      prefill.move_all();
      wire.carry(world);
    }
    EXPECT_TRUE(prefill.scheduler.exports().idle()) << "seed " << seed;
  }
  EXPECT_GT(received, 500u);
  EXPECT_GT(lost, 50u);
}

}  // namespace
}  // namespace sluice::row_exports_test
