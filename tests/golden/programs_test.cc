// Decode steps in bfloat16 on a GPU, where those of few sequences are programs of one kernel: every architecture of
// tests/goldens/arch token by token, with programs and with launches, against transformers' fp32 logits. Rounding to
// bfloat16 makes errors that no bound fits which holds for all architectures, so those of programs are held to those of
// launches.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/mmap.h"
#include "engine/runner.h"
#include "formats/safetensors.h"
#include "golden/goldens.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
const fs::path kFolder = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch";

class Programs : public ::testing::TestWithParam<std::string> {
 protected:
  // Mean over the rows of the first text.
  double mean_error(const char* programs) {
    setenv("SLUICE_CUDA_PROGRAMS", programs, 1);
    EngineOptions options;
    options.model = folder_.path();
    options.dtype = "bfloat16";
    options.kv_cache_memory_bytes = 16 << 20;
    options.max_num_seqs = 4;
    ThreadPool pool(2);
    LoadedModel loaded = load_model(options, pool);
    Runner runner(loaded, pool);
    const TensorEntry& ids = golden_.at("ids_0");
    const auto* tokens = reinterpret_cast<const int32_t*>(ids.data);
    const Tensor want = golden_.at("logits_0").view();
    double sum = 0;
    for_each_logits(runner, loaded.plan, options.block_size, {tokens, static_cast<size_t>(ids.shape[0])}, 1,
                    [&](int position, std::span<const float> row) {
                      sum += relative_error(row.data(), want.f32() + position * want.row_stride, want.shape[1]);
                    });
    unsetenv("SLUICE_CUDA_PROGRAMS");
    return sum / static_cast<double>(ids.shape[0]);
  }

  testing::TempFolder folder_;
  std::map<std::string, TensorEntry> golden_;
};

bool records() { return ops::select_backend("").record != nullptr; }

TEST_P(Programs, AreAsExactAsLaunches) {
  if (!records()) GTEST_SKIP() << "this machine's best backend records nothing";
  const fs::path golden = kFolder / GetParam();
  testing::write_hashed_checkpoint(golden.string(), folder_.path());
  const MappedFile file((golden / "golden.safetensors").string());
  for (TensorEntry& entry : read_safetensors(file.bytes(), GetParam())) golden_.emplace(entry.name, entry);
  const double launches = mean_error("0"), programs = mean_error("1");
  fmt::print("{}: {:.1e} launches, {:.1e} programs\n", GetParam(), launches, programs);
  EXPECT_LE(programs, 1.5 * launches + 0.01);
}

std::vector<std::string> names() { return records() ? golden_names(kFolder) : std::vector<std::string>{"all"}; }

INSTANTIATE_TEST_SUITE_P(All, Programs, ::testing::ValuesIn(names()),
                         [](const auto& info) { return test_name(info.param, "programs"); });

}  // namespace
}  // namespace sluice
