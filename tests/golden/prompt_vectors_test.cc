// Vectors in place of token ids. Rows of the model's own table give the same bits as ids; random vectors give what
// transformers computes from inputs_embeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "sluice/error.h"

namespace sluice::prompt_vectors_test {
namespace {

// Where the embeddings of an architecture are, and what its embedding module multiplies them with.
struct Table {
  const char* arch;
  const char* tensor = "model.embed_tokens.weight";
  double scale = 1.0;
};

const Table kTables[] = {{.arch = "llama"},
                         {.arch = "qwen3_moe"},
                         {.arch = "gemma", .scale = 8.0},  // inside, the square root of its width of 64
                         {.arch = "gemma2", .scale = 8.0},
                         {.arch = "gemma3_text", .scale = 8.0},
                         {.arch = "gemma4_text-experts", .scale = 8.0},
                         {.arch = "xglm", .scale = 8.0},
                         {.arch = "minicpm3-1", .scale = 12.0},
                         {.arch = "granite"},  // after
                         {.arch = "recurrent_gemma"},
                         {.arch = "hrm_text"},
                         {.arch = "bloom", .tensor = "transformer.word_embeddings.weight"},  // with a norm
                         {.arch = "gpt2", .tensor = "transformer.wte.weight"},               // with positions
                         {.arch = "opt-2", .tensor = "model.decoder.embed_tokens.weight"},   // projected
                         {.arch = "mamba", .tensor = "backbone.embeddings.weight"},
                         {.arch = "zamba2-1"}};  // read again by later layers

class Loaded {
 public:
  explicit Loaded(const std::string& arch, const std::string& backend = "", bool enabled = true) : golden_(arch) {
    options_.model = golden_.checkpoint();
    options_.dtype = "float32";
    options_.backend = backend;
    options_.kv_cache_memory_bytes = 16 << 20;
    options_.max_num_seqs = 64;
    options_.enable_prompt_embeds = enabled;
    loaded_ = std::make_unique<LoadedModel>(load_model(options_, pool_));
    runner_ = std::make_unique<Runner>(*loaded_);
  }

  int width() const { return loaded_->plan.prompt_vector_width; }
  std::vector<int32_t> ids() const { return golden_.ids("ids_0"); }
  const TensorEntry& tensor(const char* name) const { return *loaded_->plan.checkpoint->find(name); }

  // The logits of all rows of one text. `given` says which rows have vectors.
  std::vector<float> logits(const std::vector<int32_t>& tokens, std::vector<GivenRows> given = {}) {
    const LoadPlan& plan = loaded_->plan;
    const auto count = static_cast<int32_t>(tokens.size());
    Batch batch;
    batch.tokens = tokens;
    for (int32_t i = 0; i < count; ++i) {
      batch.positions.push_back(i);
      batch.slots.push_back(i);
      batch.sample_rows.push_back(i);
    }
    batch.query_start = {0, count};
    batch.kv_len = batch.prompt_len = {count};
    if (plan.state_slots > 0) batch.state_slots = {0};
    batch.block_table_stride = (count + options_.block_size - 1) / options_.block_size;
    for (int b = 0; b < batch.block_table_stride; ++b) batch.block_table.push_back(b);
    spread_over(batch, plan.kv.groups, options_.block_size);
    for (const GivenRows& rows : given) std::fill_n(batch.tokens.begin() + rows.row, rows.count, 0);
    batch.given = std::move(given);
    const Tensor out = runner_->forward(batch);
    std::vector<float> all;
    for (int64_t row = 0; row < out.rows(); ++row) {
      const float* from = out.f32() + row * out.row_stride;
      all.insert(all.end(), from, from + out.shape[1]);
    }
    return all;
  }

 private:
  ArchGolden golden_;
  EngineOptions options_;
  ThreadPool pool_{2};
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<Runner> runner_;
};

class TableRows : public ::testing::TestWithParam<Table> {};

TEST_P(TableRows, GiveTheLogitsOfTheirIds) {
  const Table& table = GetParam();
  for (const char* backend : {"reference", ""}) {
    Loaded model(table.arch, backend);
    const TensorEntry& entry = model.tensor(table.tensor);
    const auto width = static_cast<size_t>(entry.shape[1]);
    ASSERT_EQ(model.width(), static_cast<int>(width));
    const std::vector<int32_t> ids = model.ids();
    const std::vector<float> expected = model.logits(ids);
    std::vector<float> values(ids.size() * width);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t row_bytes = width * entry.dtype->block_bytes;
      to_float(entry.dtype, entry.data + static_cast<size_t>(ids[i]) * row_bytes, values.data() + i * width, width);
    }
    for (float& value : values) value *= static_cast<float>(table.scale);
    const auto given = [&](int row, int count) {
      return GivenRows{.row = row, .count = count, .values = std::span(values).subspan(row * width, count * width)};
    };
    const int all = static_cast<int>(ids.size());
    EXPECT_EQ(model.logits(ids, {given(0, all)}), expected) << table.arch << " " << backend;
    EXPECT_EQ(model.logits(ids, {given(1, 2), given(4, 1), given(all - 1, 1)}), expected)
        << table.arch << " " << backend << ", some rows";
    values[3] += 0.5f;
    EXPECT_NE(model.logits(ids, {given(0, all)}), expected) << table.arch << " " << backend << ", another vector";
  }
}

INSTANTIATE_TEST_SUITE_P(All, TableRows, ::testing::ValuesIn(kTables),
                         [](const auto& info) { return test_name(info.param.arch, "given"); });

TEST(PromptVectors, AreWhatTransformersMakesOfInputsEmbeds) {
  const std::filesystem::path folder = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/goldens/prompt_vectors";
  double worst = 0;
  for (const std::string& file : golden_names(folder)) {
    const MappedFile mapped((folder / file).string());
    std::map<std::string, TensorEntry> entries;
    for (const TensorEntry& entry : read_safetensors(mapped.bytes(), file)) entries.emplace(entry.name, entry);
    const Tensor vectors = entries.at("vectors").view(), expected = entries.at("logits").view();
    for (const std::string& backend : golden_backends()) {
      Loaded model(std::filesystem::path(file).stem().string(), backend);
      const auto rows = static_cast<int>(vectors.rows());
      const std::vector<float> logits = model.logits(
          std::vector<int32_t>(static_cast<size_t>(rows)),
          {{.row = 0, .count = rows, .values = {vectors.f32(), static_cast<size_t>(vectors.shape.elements())}}});
      ASSERT_EQ(logits.size(), static_cast<size_t>(expected.shape.elements())) << file;
      const double error = relative_error(logits.data(), expected.f32(), expected.shape.elements());
      EXPECT_LE(error, kTolerance) << file << ", " << backend;
      worst = std::max(worst, error);
    }
  }
  EXPECT_GT(worst, 0) << "there are no goldens";
}

TEST(PromptVectors, AreRefusedWhereLayersReadTheIds) {
  for (const char* arch : {"gemma3n_text-1", "gemma4_text-1"}) {
    EXPECT_EQ(Loaded(arch, "", /*enabled=*/false).width(), 0);
    try {
      Loaded model(arch);
      ADD_FAILURE() << arch << " takes vectors";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kUnsupportedModel);
      EXPECT_NE(std::string(e.what()).find("--enable-prompt-embeds"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace sluice::prompt_vectors_test
