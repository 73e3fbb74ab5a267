// Compares encoders, decoder embedders and sequence classifiers of tests/goldens/embedding with transformers' fp32
// hidden states and logits, on the scalar reference and on this machine's best kernels: each text alone, and all in one
// step. Prints a table of the errors at the end.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "base/mmap.h"
#include "engine/runner.h"
#include "formats/safetensors.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice::embedding_test {
namespace {

namespace fs = std::filesystem;
constexpr int kBlockSize = 16;

const fs::path kFolder = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/embedding";

class Table : public ::testing::Environment {
 public:
  void note(const std::string& name, const std::string& what, double error) {
    double& worst = rows_[name + ", " + what];
    worst = std::max(worst, error);
  }
  void TearDown() override {
    for (const auto& [name, worst] : rows_) fmt::print("{:<44}{:>10.1e}\n", name, worst);
  }

 private:
  std::map<std::string, double> rows_;
};

Table& table = *static_cast<Table*>(::testing::AddGlobalTestEnvironment(new Table));  // owned by gtest

struct Text {
  std::vector<int32_t> ids, types;
};

// A batch of whole sequences, one per text.
Batch batch_of(const std::vector<Text>& texts) {
  Batch batch;
  batch.query_start = {0};
  batch.block_table_stride = 4;
  int block = 0;
  for (const Text& text : texts) {
    const int length = static_cast<int>(text.ids.size());
    for (int i = 0; i < length; ++i) {
      batch.tokens.push_back(text.ids[i]);
      batch.types.push_back(text.types.empty() ? 0 : text.types[i]);
      batch.positions.push_back(i);
      batch.slots.push_back(block * kBlockSize + i);
      batch.sample_rows.push_back(batch.size() - 1);
    }
    batch.query_start.push_back(batch.size());
    batch.kv_len.push_back(length);
    batch.prompt_len.push_back(length);
    const int blocks = (length + kBlockSize - 1) / kBlockSize;
    for (int i = 0; i < batch.block_table_stride; ++i) batch.block_table.push_back(i < blocks ? block + i : -1);
    block += blocks;
  }
  return batch;
}

class Embedding : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const auto& [name, backend] = GetParam();
    name_ = name;
    const fs::path golden = kFolder / name;
    testing::write_hashed_checkpoint(golden.string(), folder_.path());
    file_ = std::make_unique<MappedFile>((golden / "golden.safetensors").string());
    for (TensorEntry& entry : read_safetensors(file_->bytes(), name)) golden_.emplace(entry.name, entry);
    options_.model = folder_.path();
    options_.dtype = "float32";
    options_.backend = backend;
    options_.max_num_seqs = 8;
    for (const char* index : {"0", "1", "2"}) {
      texts_.push_back({ids(std::string("ids_") + index), ids(std::string("types_") + index)});
    }
  }

  std::vector<int32_t> ids(const std::string& name) const {
    const auto found = golden_.find(name);
    if (found == golden_.end()) return {};
    const auto* data = reinterpret_cast<const int32_t*>(found->second.data);
    return {data, data + found->second.shape[0]};
  }

  void check(const Tensor& got, int64_t row, const std::string& golden, const std::string& what) {
    const Tensor want = golden_.at(golden).view();
    const bool vector = want.shape.rank() == 1;
    ASSERT_EQ(got.shape[1], vector ? want.shape[0] : want.shape[1]);
    for (int64_t i = 0; i < (vector ? 1 : want.shape[0]); ++i) {
      const double error = relative_error(got.f32() + (row + i) * got.row_stride,
                                          want.f32() + i * (vector ? 0 : want.row_stride), got.shape[1]);
      table.note(name_, what, error);
      EXPECT_LE(error, kTolerance) << golden << " row " << i << ", " << what;
    }
  }

  std::string name_;
  testing::TempFolder folder_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, TensorEntry> golden_;
  std::vector<Text> texts_;
  EngineOptions options_;
  ThreadPool pool_{2};
};

TEST_P(Embedding, HiddenStates) {
  const ops::Backend& backend = ops::select_backend(options_.backend);
  if (!backend.open(0).memory().host_accessible()) GTEST_SKIP() << "looks at tensors in place, which are on a device";
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(options_.model);
  const auto queue = backend.open(0).make_queue(pool_);
  LoadContext context{.checkpoint = *checkpoint, .queue = *queue, .dtype = &kFloat32, .task = Task::kEmbed};
  const std::unique_ptr<Model> model = find_family(checkpoint->config).build(checkpoint->config, context, 64);
  EXPECT_TRUE(context.problems.empty()) << context.problems.front();
  KvCache kv(one_place(model->shape().kv, &kFloat32, kBlockSize), 8);
  StateCache states(model->shape().state, 3);
  Arena arena(model->activation_bytes(64, 64));
  ops::Ctx ctx(*queue, arena);
  const Batch all = batch_of(texts_);
  const Tensor together = model->forward(ctx, all, kv, states).hidden;
  std::vector<float> bits(together.f32(), together.f32() + together.shape.elements());
  for (size_t i = 0; i < texts_.size(); ++i) {
    check(together, all.query_start[i], fmt::format("hidden_{}", i), "hidden states");
  }
  for (size_t i = 0; i < texts_.size(); ++i) {
    arena.reset();
    const Tensor alone = model->forward(ctx, batch_of({texts_[i]}), kv, states).hidden;
    EXPECT_EQ(std::memcmp(alone.f32(), bits.data() + all.query_start[i] * alone.shape[1],
                          static_cast<size_t>(alone.shape.elements()) * sizeof(float)),
              0)
        << "text " << i << " has other bits alone";
  }
}

TEST_P(Embedding, Vectors) {
  const bool scores = golden_.contains("logits_0");
  ThreadPool& pool = pool_;
  LoadedModel loaded = load_model(options_, pool);
  EXPECT_EQ(loaded.plan.task, scores ? Task::kScore : Task::kEmbed);
  Runner runner(loaded);
  const Tensor vectors = runner.forward(batch_of(texts_));
  ASSERT_EQ(vectors.rows(), 3);
  ASSERT_EQ(vectors.shape[1], loaded.plan.shape.width);
  const bool encoder = find_family(loaded.plan.checkpoint->config).encoder;
  for (int i = 0; i < 3; ++i) {
    if (scores) {
      check(vectors, i, fmt::format("logits_{}", i), "scores");
    } else if (encoder) {
      check(vectors, i, fmt::format("mean_{}", i), "mean");
    }
  }
}

// Ranks divide layers, or are the stages of a pipeline, which cuts a step of so many rows between two texts.
TEST_P(Embedding, VectorsOfRanks) {
  const ops::Backend& backend = ops::select_backend(options_.backend);
  if (options_.backend == "reference" || !backend.can.collectives) {
    GTEST_SKIP() << "ranks run the kernels of the other backends";
  }
  constexpr int kRows = 600;
  for (size_t i = 0; batch_of(texts_).size() < kRows; ++i) texts_.push_back(texts_[i]);
  options_.max_num_seqs = static_cast<int>(texts_.size());
  options_.max_num_batched_tokens = 2 * kRows;
  const Batch batch = batch_of(texts_);
  LoadedModel alone = load_model(options_, pool_);
  Runner runner(alone);
  const Tensor wanted = runner.forward(batch);
  for (const auto& [tensor, stages] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    if (tensor * stages > most_ranks()) continue;
    SCOPED_TRACE(fmt::format("{} ranks, {} stages", tensor, stages));
    options_.tensor_parallel_size = tensor, options_.pipeline_parallel_size = stages;
    RankGroup group(options_);
    const Tensor got = group.runner().forward(batch);
    ASSERT_EQ(got.shape, wanted.shape);
    for (int64_t row = 0; row < got.rows(); ++row) {
      const float *a = got.f32() + row * got.row_stride, *b = wanted.f32() + row * wanted.row_stride;
      const double error = relative_error(a, b, got.shape[1]);
      table.note(name_, "vectors of ranks", error);
      EXPECT_LE(error, tensor == 1 && backend.can.batch_invariant ? 0 : kTolerance) << "text " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Embedding,
                         ::testing::Combine(::testing::ValuesIn(golden_names(kFolder)),
                                            ::testing::ValuesIn(golden_backends())),
                         [](const auto& info) { return test_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace sluice::embedding_test
