// Tests that a row's bits depend on the row alone in bfloat16 on a GPU, where the kernels of many rows differ from
// those of few: computes every architecture of tests/goldens/arch token by token and in chunks of two sizes, and
// compares the bits of the logits. `cuda-invariant` must not be further from transformers' fp32 logits than `cuda` is,
// either.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/registry.h"
#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"

namespace sluice::invariant_test {
namespace {

class Invariant : public ::testing::TestWithParam<std::string> {};

const ops::Backend* backend() {
  const ops::Backend* found = Registry<ops::Backend>::find("cuda-invariant");
  return found != nullptr && found->usable() ? found : nullptr;
}

// The logits of the first text, in steps of `chunk` tokens.
std::vector<float> logits_of(const ArchGolden& golden, const char* backend, int chunk) {
  EngineOptions options;
  options.backend = backend;
  options.model = golden.checkpoint();
  options.dtype = "bfloat16";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  ThreadPool pool(1, /*pin=*/false);
  LoadedModel loaded = load_model(options, pool);
  Runner runner(loaded);
  std::vector<float> out;
  for_each_logits(runner, loaded.plan, options.block_size, golden.ids("ids_0"), chunk,
                  [&](int, std::span<const float> row) { out.insert(out.end(), row.begin(), row.end()); });
  return out;
}

double best_row_error(const ArchGolden& golden, const std::vector<float>& logits) {
  const Tensor want = golden.logits("logits_0");
  double best = INFINITY;
  for (int64_t r = 0; r < want.rows(); ++r) {
    best = std::min(best,
                    relative_error(logits.data() + r * want.shape[1], want.f32() + r * want.row_stride, want.shape[1]));
  }
  return best;
}

TEST_P(Invariant, RowsKeepTheirBitsInEveryChunk) {
  if (backend() == nullptr) GTEST_SKIP() << "this machine has no GPU: rows of CPU backends are compared elsewhere";
  const ArchGolden golden(GetParam());
  const std::vector<float> alone = logits_of(golden, "cuda-invariant", 1);
  for (const int chunk : {5, 64}) {
    const std::vector<float> together = logits_of(golden, "cuda-invariant", chunk);
    ASSERT_EQ(together.size(), alone.size());
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0) << "chunks of " << chunk;
  }
  const double own = best_row_error(golden, alone), fast = best_row_error(golden, logits_of(golden, "cuda", 64));
  EXPECT_LE(own, 1.5 * fast + 0.01);
}

std::vector<std::string> names() {
  return backend() != nullptr ? golden_names(arch_goldens()) : std::vector<std::string>{"all"};
}

INSTANTIATE_TEST_SUITE_P(All, Invariant, ::testing::ValuesIn(names()),
                         [](const auto& info) { return test_name(info.param, "cuda-invariant"); });

}  // namespace
}  // namespace sluice::invariant_test
