// Every architecture of tests/goldens/arch against Hugging Face transformers' fp32 logits and greedy tokens, on the
// scalar reference and on this machine's best kernels: in one piece, in chunks of five, and token by token.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/mmap.h"
#include "engine/runner.h"
#include "formats/safetensors.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr double kTolerance = 2e-4;

fs::path golden_folder() { return fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch"; }

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_folder())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Largest |a - b| over the row, relative to the largest |b|.
double relative_error(std::span<const float> a, const float* b) {
  double worst = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return std::isfinite(worst) ? worst / scale : INFINITY;
}

class Arch : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const auto [name, backend] = GetParam();
    const fs::path golden = golden_folder() / name;
    testing::write_hashed_checkpoint(golden.string(), folder_.path());
    file_ = std::make_unique<MappedFile>((golden / "golden.safetensors").string());
    for (TensorEntry& entry : read_safetensors(file_->bytes(), name)) golden_.emplace(entry.name, entry);
    options_.model = folder_.path();
    options_.dtype = "float32";
    options_.backend = backend;
    options_.kv_cache_memory_bytes = 16 << 20;
    options_.max_num_seqs = 64;
    loaded_ = std::make_unique<LoadedModel>(load_model(options_, pool_));
    runner_ = std::make_unique<Runner>(*loaded_, pool_);
  }

  std::vector<int32_t> ids(const std::string& name) const {
    const TensorEntry& entry = golden_.at(name);
    const auto* data = reinterpret_cast<const int32_t*>(entry.data);
    return {data, data + entry.shape[0]};
  }

  void expect_logits(int sample, int chunk) {
    const std::string index = std::to_string(sample);
    const Tensor want = golden_.at("logits_" + index).view();
    for_each_logits(*runner_, loaded_->plan, options_.block_size, ids("ids_" + index), chunk,
                    [&](int position, std::span<const float> row) {
                      ASSERT_EQ(static_cast<int64_t>(row.size()), want.shape[1]);
                      EXPECT_LE(relative_error(row, want.f32() + position * want.row_stride), kTolerance)
                          << "sample " << sample << " row " << position << " chunk " << chunk;
                    });
  }

  testing::TempFolder folder_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, TensorEntry> golden_;
  EngineOptions options_;
  ThreadPool pool_{2};
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<Runner> runner_;
};

TEST_P(Arch, LogitsInOnePiece) {
  expect_logits(0, 64);
  expect_logits(1, 64);
}

TEST_P(Arch, LogitsInChunks) {
  expect_logits(0, 5);
  expect_logits(1, 5);
}

TEST_P(Arch, LogitsTokenByToken) {
  expect_logits(0, 1);
  expect_logits(1, 1);
}

TEST_P(Arch, GreedyTokens) {
  for (const char* index : {"0", "1"}) {
    std::vector<int32_t> tokens = ids(std::string("ids_") + index);
    for (const int32_t want : ids(std::string("gen_") + index)) {
      int32_t got = -1;
      for_each_logits(*runner_, loaded_->plan, options_.block_size, tokens, 64, [&](int, std::span<const float> row) {
        got = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      });
      ASSERT_EQ(got, want) << "sample " << index << " after " << tokens.size() << " tokens";
      tokens.push_back(got);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Arch,
                         ::testing::Combine(::testing::ValuesIn(architectures()), ::testing::Values("reference", "")),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + (std::get<1>(info.param).empty() ? "_best" : "_reference");
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace sluice
