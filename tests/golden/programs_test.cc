// Decode steps in bfloat16 on a GPU, where those of few sequences are programs of one kernel: every architecture of
// tests/goldens/arch token by token, with programs and with launches, against transformers' fp32 logits. Rounding to
// bfloat16 makes errors that no bound fits which holds for all architectures, so those of programs are held to those of
// launches: of the row at a quarter, since rounding can also send a row to another expert, and rows behind see it.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"

namespace sluice {
namespace {

class Programs : public ::testing::TestWithParam<std::string> {};

// Of the rows of the first text, sorted by error, the ones at a quarter and in the middle.
struct Errors {
  double quarter, middle;
};
Errors errors_of(const ArchGolden& golden, const char* programs) {
  setenv("SLUICE_CUDA_PROGRAMS", programs, 1);
  EngineOptions options;
  options.model = golden.checkpoint();
  options.dtype = "bfloat16";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 4;
  ThreadPool pool(2);
  LoadedModel loaded = load_model(options, pool);
  Runner runner(loaded, pool);
  const std::vector<int32_t> ids = golden.ids("ids_0");
  const Tensor want = golden.logits("logits_0");
  std::vector<double> errors;
  for_each_logits(runner, loaded.plan, options.block_size, ids, 1, [&](int position, std::span<const float> row) {
    errors.push_back(relative_error(row.data(), want.f32() + position * want.row_stride, want.shape[1]));
  });
  unsetenv("SLUICE_CUDA_PROGRAMS");
  std::ranges::sort(errors);
  return {errors[errors.size() / 4], errors[errors.size() / 2]};
}

bool records() { return ops::select_backend("").record != nullptr; }

TEST_P(Programs, AreAsExactAsLaunches) {
  if (!records()) GTEST_SKIP() << "this machine's best backend records nothing";
  const ArchGolden golden(GetParam());
  const Errors launches = errors_of(golden, "0"), programs = errors_of(golden, "1");
  fmt::print("{}: {:.1e} launches, {:.1e} programs; in the middle {:.1e}, {:.1e}\n", GetParam(), launches.quarter,
             programs.quarter, launches.middle, programs.middle);
  EXPECT_LE(programs.quarter, 1.5 * launches.quarter + 0.01);
}

std::vector<std::string> names() { return records() ? golden_names(arch_goldens()) : std::vector<std::string>{"all"}; }

INSTANTIATE_TEST_SUITE_P(All, Programs, ::testing::ValuesIn(names()),
                         [](const auto& info) { return test_name(info.param, "programs"); });

}  // namespace
}  // namespace sluice
