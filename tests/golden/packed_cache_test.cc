// Tests --packed-cache: the first load writes the file, the second maps it, and both compute the same bits as weights
// in memory. Runs for every architecture of tests/goldens/arch, so that every layer that packs is covered; writing to
// mapped weights would crash.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"

namespace sluice::packed_cache_test {
namespace {

namespace fs = std::filesystem;

// `in_file`: whether the weights must be in a file.
std::vector<float> logits_of(const EngineOptions& options, std::span<const int32_t> ids, ThreadPool& pool,
                             bool in_file) {
  LoadedModel loaded = load_model(options, pool);
  EXPECT_EQ(loaded.packed != nullptr && loaded.packed->filled(), in_file);
  Runner runner(loaded);
  std::vector<float> out;
  for_each_logits(runner, loaded.plan, options.block_size, ids, 16,
                  [&](int, std::span<const float> row) { out.insert(out.end(), row.begin(), row.end()); });
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  return out;
}

class PackedCache : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    options_.model = golden_.checkpoint();
    options_.kv_cache_memory_bytes = 16 << 20;
    options_.max_num_seqs = 64;
    options_.packed_cache = cache_ / "packed";
    options_.backend = ops::select_host_backend().name;
  }
  EngineOptions in_memory() const {
    EngineOptions o = options_;
    o.packed_cache.clear();
    return o;
  }

  ArchGolden golden_{GetParam()};
  testing::TempFolder cache_;
  EngineOptions options_;
  ThreadPool pool_{2};
};

TEST_P(PackedCache, SameBits) {
  for (const char* quantization : {"none", "q8_0"}) {
    options_.quantization = quantization;
    const std::vector<int32_t> ids = golden_.ids("ids_0");
    const std::vector<float> expected = logits_of(in_memory(), ids, pool_, false);
    EXPECT_TRUE(same_bits(logits_of(options_, ids, pool_, true), expected)) << quantization << ", written";
    const size_t files = files_in(options_.packed_cache).size();
    EXPECT_EQ(files, quantization == std::string("none") ? 1u : 2u);
    std::vector<fs::file_time_type> times;
    for (const fs::path& file : files_in(options_.packed_cache)) times.push_back(fs::last_write_time(file));
    EXPECT_TRUE(same_bits(logits_of(options_, ids, pool_, true), expected)) << quantization << ", mapped";
    std::vector<fs::file_time_type> later;
    for (const fs::path& file : files_in(options_.packed_cache)) later.push_back(fs::last_write_time(file));
    EXPECT_EQ(times, later) << "packed again";
  }
}

// Every rank has a file for its part of the model.
TEST_P(PackedCache, OfRanksHasSameBits) {
  const std::vector<int32_t> ids = golden_.ids("ids_0");
  size_t files = 0;
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, {1, 2}}) {
    options_.tensor_parallel_size = tensor;
    options_.pipeline_parallel_size = pipeline;
    const auto logits = [&](const EngineOptions& options) {
      RankGroup group(options);
      EXPECT_EQ(group.model().packed != nullptr && group.model().packed->filled(), !options.packed_cache.empty());
      std::vector<float> out;
      for_each_logits(group.runner(), group.plan(), options.block_size, ids, 16,
                      [&](int, std::span<const float> row) { out.insert(out.end(), row.begin(), row.end()); });
      return out;
    };
    const std::vector<float> expected = logits(in_memory());
    EXPECT_TRUE(same_bits(logits(options_), expected)) << tensor << " x " << pipeline << ", written";
    EXPECT_EQ(files_in(options_.packed_cache).size(), files += 2);
    EXPECT_TRUE(same_bits(logits(options_), expected)) << tensor << " x " << pipeline << ", mapped";
    EXPECT_EQ(files_in(options_.packed_cache).size(), files) << "packed again";
  }
}

// Ranks that cannot write files agree to pack into memory.
TEST(PackedCacheOfRanks, WithoutAFolderIsInMemory) {
  EngineOptions options;
  options.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options.backend = ops::select_host_backend().name;
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.packed_cache = "/dev/null/packed";
  options.tensor_parallel_size = 2;
  RankGroup group(options);
  EXPECT_EQ(group.model().packed, nullptr);
  int rows = 0;
  for_each_logits(group.runner(), group.plan(), options.block_size, std::vector<int32_t>{1, 2, 3}, 16,
                  [&](int, std::span<const float>) { ++rows; });
  EXPECT_EQ(rows, 3);
}

INSTANTIATE_TEST_SUITE_P(All, PackedCache, ::testing::ValuesIn(golden_names(arch_goldens())),
                         [](const auto& info) { return test_name(info.param, ""); });

class PackedCacheOfLlama : public PackedCache {};

// Changed weights are packed again, even if the file's size and time are unchanged.
TEST_P(PackedCacheOfLlama, OtherWeightsAreNoHit) {
  const std::vector<int32_t> ids = golden_.ids("ids_0");
  const std::vector<float> before = logits_of(options_, ids, pool_, true);
  const fs::path weights = fs::path(options_.model) / "model.safetensors";
  const auto time = fs::last_write_time(weights);
  {
    std::ifstream in(weights, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    for (size_t i = sizeof header + header + 1; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(bytes[i] ^ 0x80);
    std::ofstream(weights, std::ios::binary) << bytes;  // flips the sign of every bf16 value
  }
  fs::last_write_time(weights, time);
  const std::vector<float> after = logits_of(options_, ids, pool_, true);
  EXPECT_FALSE(same_bits(before, after));
  EXPECT_TRUE(same_bits(after, logits_of(in_memory(), ids, pool_, false)));
  EXPECT_EQ(files_in(options_.packed_cache).size(), 2u);
}

TEST_P(PackedCacheOfLlama, TouchedFileIsNoHit) {
  const std::vector<int32_t> ids = golden_.ids("ids_0");
  logits_of(options_, ids, pool_, true);
  const fs::path weights = fs::path(options_.model) / "model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  logits_of(options_, ids, pool_, true);
  EXPECT_EQ(files_in(options_.packed_cache).size(), 2u);
}

// A copy in another folder with the same file times is the same model.
TEST_P(PackedCacheOfLlama, PathsDoNotMatter) {
  const std::vector<int32_t> ids = golden_.ids("ids_0");
  logits_of(options_, ids, pool_, true);
  const fs::path moved = cache_ / "moved";
  fs::copy(options_.model, moved, fs::copy_options::recursive);
  for (const fs::path& file : files_in(options_.model)) {
    fs::last_write_time(moved / file.filename(), fs::last_write_time(file));
  }
  options_.model = moved;
  logits_of(options_, ids, pool_, true);
  EXPECT_EQ(files_in(options_.packed_cache).size(), 1u);
}

TEST_P(PackedCacheOfLlama, BackendsHaveFilesOfTheirOwn) {
  const std::vector<int32_t> ids = golden_.ids("ids_0");
  logits_of(options_, ids, pool_, true);
  options_.backend = "reference";
  const std::vector<float> written = logits_of(options_, ids, pool_, true);
  EXPECT_EQ(files_in(options_.packed_cache).size(), 2u);
  EXPECT_TRUE(same_bits(written, logits_of(in_memory(), ids, pool_, false)));
}

TEST_P(PackedCacheOfLlama, AFolderThatCannotBeIsNoObstacle) {
  const std::vector<int32_t> ids = golden_.ids("ids_0");
  options_.packed_cache = cache_.write("file", "text") + "/packed";
  EXPECT_TRUE(same_bits(logits_of(options_, ids, pool_, false), logits_of(in_memory(), ids, pool_, false)));
}

// The load then starts over with a new plan. Warnings of the first attempt are not repeated.
TEST_P(PackedCacheOfLlama, AFolderThatCannotBeIsWarnedOfOnce) {
  const auto count = [](const std::string& text, const std::string& what) {
    int n = 0;
    for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  options_.kv_cache_memory_bytes = static_cast<int64_t>(2 * plan_load(options_, pool_).kv.block_bytes());
  options_.packed_cache = cache_.write("file", "text") + "/packed";
  ::testing::internal::CaptureStderr();
  load_model(options_, pool_);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(log, "warning --packed-cache"), 1) << log;
  EXPECT_EQ(count(log, "warning the KV cache has room for"), 1) << log;
}

TEST_P(PackedCacheOfLlama, PlanDoesNotCountPagesOfTheFile) {
  const LoadPlan memory = plan_load(in_memory(), pool_), file = plan_load(options_, pool_);
  EXPECT_EQ(memory.weight_bytes, file.weight_bytes);
  EXPECT_GT(file.packed_bytes(), file.weight_bytes / 2);
  EXPECT_EQ(memory.memory.total() - file.memory.total(), file.packed_bytes());
  EXPECT_NE(file.memory.table().find("packed weights"), std::string::npos) << file.memory.table();
  EXPECT_NE(file.memory.table().find("not counted"), std::string::npos) << file.memory.table();
  EXPECT_FALSE(fs::exists(options_.packed_cache)) << "a plan writes nothing";
}

INSTANTIATE_TEST_SUITE_P(One, PackedCacheOfLlama, ::testing::Values("llama"),
                         [](const auto& info) { return test_name(info.param, ""); });

}  // namespace
}  // namespace sluice::packed_cache_test
