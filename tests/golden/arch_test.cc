// Compares every architecture of tests/goldens/arch with Hugging Face transformers' fp32 logits and greedy tokens, on
// the scalar reference and on this machine's best kernels: in one piece, in chunks of five, token by token, and beside
// other sequences in batches of mixed lengths. Prints a table of the errors at the end.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <random>

#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/greedy_tokens.h"

namespace sluice::arch_test {
namespace {

// The largest error per architecture and way of computing, over all backends; printed after all tests.
class Table : public ::testing::Environment {
 public:
  void note(const std::string& name, const std::string& way, double error) {
    double& worst = rows_[name][way];
    worst = std::max(worst, error);
  }
  void TearDown() override {
    if (rows_.empty()) return;
    fmt::print("{:<24}", "largest relative error");
    for (const char* way : kWays) fmt::print("{:>12}", way);
    int passed = 0;
    for (const auto& [name, ways] : rows_) {
      fmt::print("\n{:<24}", name);
      double worst = ways.size() == std::size(kWays) ? 0 : INFINITY;
      for (const char* way : kWays) {
        const auto found = ways.find(way);
        fmt::print("{:>12}", found == ways.end() ? "-" : fmt::format("{:.1e}", found->second));
        if (found != ways.end()) worst = std::max(worst, found->second);
      }
      passed += worst <= kTolerance ? 1 : 0;
    }
    fmt::print("\n{} of {} architectures within {:.0e}\n", passed, rows_.size(), kTolerance);
  }

 private:
  static constexpr const char* kWays[] = {"one piece", "chunks", "tokens", "mixed"};
  std::map<std::string, std::map<std::string, double>> rows_;
};

Table& table = *static_cast<Table*>(::testing::AddGlobalTestEnvironment(new Table));  // owned by gtest

class Arch : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const auto& [name, backend] = GetParam();
    name_ = name;
    golden_ = std::make_unique<ArchGolden>(name);
    options_.model = golden_->checkpoint();
    options_.dtype = "float32";
    options_.backend = backend;
    options_.kv_cache_memory_bytes = 16 << 20;
    options_.max_num_seqs = 64;
    loaded_ = std::make_unique<LoadedModel>(load_model(options_, pool_));
    runner_ = std::make_unique<Runner>(*loaded_);
  }

  void expect_logits(int sample, int chunk) {
    const std::string index = std::to_string(sample);
    const Tensor want = golden_->logits("logits_" + index);
    for_each_logits(*runner_, loaded_->plan, options_.block_size, golden_->ids("ids_" + index), chunk,
                    [&](int position, std::span<const float> row) {
                      ASSERT_EQ(static_cast<int64_t>(row.size()), want.shape[1]);
                      check_row(row, want, position, chunk == 1 ? "tokens" : chunk == 5 ? "chunks" : "one piece");
                    });
  }

  void check_row(std::span<const float> row, const Tensor& want, int position, const std::string& way) const {
    const double error = relative_error(row.data(), want.f32() + position * want.row_stride, want.shape[1]);
    table.note(name_, way, error);
    EXPECT_LE(error, kTolerance) << "row " << position << ", " << way;
  }

  void expect_logits_of_mixed_lengths();

  std::string name_;
  std::unique_ptr<ArchGolden> golden_;
  EngineOptions options_;
  ThreadPool pool_{2};
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<Runner> runner_;
};

// Three texts at once, each in pieces of one to seven tokens, so that prefill and decode are combined in many ways.
void Arch::expect_logits_of_mixed_lengths() {
  struct Text {
    std::vector<int32_t> tokens;
    Tensor want;
    int done = 0;
  };
  std::vector<Text> texts;
  for (const char* index : {"0", "1", "0"}) {
    texts.push_back(
        {.tokens = golden_->ids(std::string("ids_") + index), .want = golden_->logits(std::string("logits_") + index)});
  }
  const int size = options_.block_size, count = static_cast<int>(texts.size());
  const int stride = (64 + size - 1) / size;
  ASSERT_GE(loaded_->plan.blocks, stride * count * static_cast<int>(loaded_->plan.kv.groups.size()));
  std::mt19937 random(1);
  for (bool more = true; more;) {
    more = false;
    Batch batch;
    batch.query_start = {0};
    batch.block_table_stride = stride;
    std::vector<std::pair<int, int>> rows;  // text and position of each logit row
    for (int i = 0; i < count; ++i) {
      Text& text = texts[i];
      const int left = static_cast<int>(text.tokens.size()) - text.done;
      const int piece = std::min(left, 1 + static_cast<int>(random() % 7));
      if (piece == 0) continue;
      more = true;
      for (int position = text.done; position < text.done + piece; ++position) {
        batch.tokens.push_back(text.tokens[position]);
        batch.positions.push_back(position);
        batch.slots.push_back((position / size * count + i) * size + position % size);  // the texts' blocks alternate
        batch.sample_rows.push_back(static_cast<int>(rows.size()));
        rows.emplace_back(i, position);
      }
      text.done += piece;
      batch.query_start.push_back(batch.size());
      batch.kv_len.push_back(text.done);
      batch.prompt_len.push_back(static_cast<int>(text.tokens.size()));
      if (loaded_->plan.state_slots > 0) batch.state_slots.push_back(count - i);
      for (int block = 0; block < batch.block_table_stride; ++block) batch.block_table.push_back(block * count + i);
    }
    if (!more) break;
    spread_over(batch, loaded_->plan.kv.groups, size);
    const Tensor logits = runner_->forward(batch);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto& [i, position] = rows[r];
      check_row({logits.f32() + r * logits.row_stride, static_cast<size_t>(logits.shape[1])}, texts[i].want, position,
                "mixed");
    }
  }
}

// One test, so that a model is loaded once.
TEST_P(Arch, IsThatOfTransformers) {
  for (const int chunk : {64, 5, 1}) {
    expect_logits(0, chunk);
    expect_logits(1, chunk);
  }
  expect_logits_of_mixed_lengths();
  expect_greedy_tokens(*runner_, loaded_->plan, options_.block_size, *golden_);
}

INSTANTIATE_TEST_SUITE_P(All, Arch,
                         ::testing::Combine(::testing::ValuesIn(golden_names(arch_goldens())),
                                            ::testing::ValuesIn(golden_backends())),
                         [](const auto& info) { return test_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace sluice::arch_test
