// Tests decode steps in bfloat16 on a GPU, where steps of few sequences run as one persistent decode kernel. Computes
// every architecture of tests/goldens/arch token by token, with that kernel and with separate launches, and compares
// with transformers' fp32 logits.
//
// No bound on the bfloat16 rounding error holds for all architectures, so the decode kernel's errors are compared with
// those of separate launches. The worst row is compared; with experts the best row, because a row whose two experts'
// scores are nearly equal may go to either one (in cohere2_moe-2 they differ by 4e-5), and all later rows see the
// difference.
//
// Steps that verify drafts run in that kernel, too, but for their attention. They are computed two tokens at a time.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/json.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"

namespace sluice::decode_kernel_test {
namespace {

class Programs : public ::testing::TestWithParam<std::string> {};

EngineOptions options_for(const ArchGolden& golden, int ranks = 1) {
  EngineOptions options;
  options.model = golden.checkpoint();
  options.dtype = "bfloat16";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 4;
  options.tensor_parallel_size = ranks;
  return options;
}

// Errors of the rows of the first text.
struct Errors {
  double best, worst;
};
Errors errors_of(EngineOptions options, const ArchGolden& golden, const char* decode_kernel, int rows = 1) {
  setenv("SLUICE_CUDA_DECODE_KERNEL", decode_kernel, 1);
  RankGroup group(options);
  const std::vector<int32_t> ids = golden.ids("ids_0");
  const Tensor want = golden.logits("logits_0");
  std::vector<double> errors;
  for_each_logits(
      group.runner(), group.plan(), options.block_size, ids, rows, [&](int position, std::span<const float> row) {
        errors.push_back(relative_error(row.data(), want.f32() + position * want.row_stride, want.shape[1]));
      });
  unsetenv("SLUICE_CUDA_DECODE_KERNEL");
  const auto [best, worst] = std::ranges::minmax(errors);
  return {best, worst};
}

bool has_experts(const ArchGolden& golden) {
  const Json config = read_json_file(golden.checkpoint() + "/config.json");
  return dump_json(config).find("expert") != std::string::npos;
}

bool captures() { return ops::select_backend("").can.captures; }

void expect_as_exact(const ArchGolden& golden, const Errors& launches, const Errors& decode_kernel) {
  fmt::print("{:.1e} to {:.1e} launches, {:.1e} to {:.1e} decode kernel\n", launches.best, launches.worst,
             decode_kernel.best, decode_kernel.worst);
  EXPECT_LE(decode_kernel.best, 1.5 * launches.best + 0.01);
  if (!has_experts(golden)) {
    EXPECT_LE(decode_kernel.worst, 1.5 * launches.worst + 0.01);
  }
}

TEST_P(Programs, AreAsExactAsLaunches) {
  if (!captures()) GTEST_SKIP() << "this machine's best backend records nothing";
  const ArchGolden golden(GetParam());
  const EngineOptions options = options_for(golden);
  expect_as_exact(golden, errors_of(options, golden, "0"), errors_of(options, golden, "1"));
}

// Sums over the ranks are a part of the kernel.
TEST_P(Programs, OfRanksAreAsExactAsLaunchesOfOneProcess) {
  if (!captures()) GTEST_SKIP() << "this machine's best backend records nothing";
  const ArchGolden golden(GetParam());
  expect_as_exact(golden, errors_of(options_for(golden), golden, "0"), errors_of(options_for(golden, 2), golden, "1"));
}

TEST_P(Programs, WithDraftsAreAsExactAsLaunches) {
  if (!captures()) GTEST_SKIP() << "this machine's best backend records nothing";
  const ArchGolden golden(GetParam());
  EngineOptions options = options_for(golden);
  ThreadPool pool(1);
  if (!plan_load(options, pool).shape.state.empty()) GTEST_SKIP() << GetParam() << " has no drafts";
  const Errors launches = errors_of(options, golden, "0");
  options.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 1})";
  expect_as_exact(golden, launches, errors_of(options, golden, "1", 2));
}

std::vector<std::string> names() { return captures() ? golden_names(arch_goldens()) : std::vector<std::string>{"all"}; }

INSTANTIATE_TEST_SUITE_P(All, Programs, ::testing::ValuesIn(names()),
                         [](const auto& info) { return test_name(info.param, "decode_kernel"); });

}  // namespace
}  // namespace sluice::decode_kernel_test
