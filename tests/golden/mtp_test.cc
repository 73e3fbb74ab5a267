// Layers that predict further tokens, against an fp32 reference in PyTorch (tests/tools/make_mtp_goldens.py). The model
// is one of tests/goldens/arch with a layer less, whose last layer becomes the predicting one. Two ranks that divide
// the layers, or share the experts, compute the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/mmap.h"
#include "formats/safetensors.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"
#include "support/hashed_weights.h"

namespace sluice::mtp_test {
namespace {

namespace fs = std::filesystem;

fs::path goldens() { return fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/mtp"; }

constexpr const char* kLast = "model.layers.2.";

// Where the checkpoint has the predicting layer, and what comes before it.
struct Place {
  std::string layer = kLast, input = kLast;
  bool dense = false;  // the layer has the MLP of the first one
};

Place place_of(const std::string& arch) {
  if (arch.starts_with("mimo")) return {.layer = "model.mtp_layers.0.", .input = "model.mtp_layers.0."};
  if (arch.starts_with("ernie")) return {.layer = "model.mtp_block.0.", .input = "model.mtp_", .dense = true};
  return {};
}

bool is_input(const std::string& name, const Place& place) {
  return name.starts_with(place.input) && (!place.dense || !name.starts_with("model.mtp_layers."));
}

// `selected` > 0: tokens that an indexer selects.
void write_checkpoint(const std::string& arch, const testing::TempFolder& folder, int selected) {
  const fs::path from = arch_goldens() / arch;
  Json config = read_json_file((from / "config.json").string());
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() - 1;
  config["num_nextn_predict_layers"] = 1;
  if (selected > 0) config["index_topk"] = selected;
  if (config.contains("mlp_layer_types")) config["mlp_layer_types"].erase(config["num_hidden_layers"].get<size_t>());
  const int hidden = config["hidden_size"].get<int>();
  const Place place = place_of(arch);
  const std::string first = "model.layers.0.", last = kLast;
  Json rows = Json::array();
  for (Json row : read_json_file((from / "weights.json").string())) {
    const auto name = row["name"].get<std::string>();
    if (place.layer != last && name.starts_with(place.layer)) continue;
    if (place.dense && name.starts_with(last + "mlp.")) continue;
    if (place.dense && name.starts_with(first + "mlp.")) {
      Json copy = row;
      copy["name"] = place.layer + name.substr(first.size());
      rows.push_back(std::move(copy));
    }
    if (name.starts_with(last)) row["name"] = place.layer + name.substr(last.size());
    rows.push_back(std::move(row));
  }
  for (Json row : read_json_file((goldens() / "weights.json").string())) {
    if (!is_input(row["name"].get<std::string>(), place)) continue;
    row["shape"] = row["shape"].size() == 1 ? Json::array({hidden}) : Json::array({hidden, 2 * hidden});
    rows.push_back(std::move(row));
  }
  folder.write("golden/config.json", dump_json(config));
  folder.write("golden/weights.json", dump_json(rows));
  testing::write_hashed_checkpoint(folder / "golden", folder / "model");
}

enum class Ways { kAlone, kTwoRanks, kTwoRanksOfExperts };

class Mtp : public ::testing::TestWithParam<std::tuple<std::string, std::string, Ways>> {
 protected:
  void SetUp() override {
    const auto& [arch, backend, way] = GetParam();
    write_checkpoint(arch, folder_, selected());
    options_.model = folder_ / "model";
    options_.dtype = "float32";
    options_.backend = backend;
    options_.kv_cache_memory_bytes = 16 << 20;
    options_.max_num_seqs = 64;
    options_.speculative_config = R"({"method": "mtp"})";
    if (way != Ways::kAlone && !ops::select_backend(backend).can.collectives) {
      GTEST_SKIP() << "no ranks on backend " << backend;
    }
    options_.tensor_parallel_size = way == Ways::kAlone ? 1 : 2;
    options_.enable_expert_parallel = way == Ways::kTwoRanksOfExperts;
    group_ = std::make_unique<RankGroup>(options_);
    predictor_ = std::make_unique<Runner>(*group_->model().draft, Runner::Role::kDraftModel);
    file_ = std::make_unique<MappedFile>((goldens() / (arch + ".safetensors")).string());
    for (TensorEntry& entry : read_safetensors(file_->bytes(), arch)) gold_.emplace(entry.name, entry);
  }

  virtual int selected() const { return 0; }
  const TensorEntry& gold(const char* name) const { return gold_.at(name); }
  std::vector<int32_t> tokens(const char* name) const {
    const TensorEntry& entry = gold(name);
    const auto* data = reinterpret_cast<const int32_t*>(entry.data);
    return {data, data + entry.shape[0]};
  }

  // Positions [begin, end) of a text whose blocks are 0, 1, ...
  Batch batch_of(const std::vector<int32_t>& text, int begin, int end) const {
    Batch batch;
    for (int i = begin; i < end; ++i) {
      batch.tokens.push_back(text[static_cast<size_t>(i)]);
      batch.positions.push_back(i);
      batch.slots.push_back(i);
      batch.sample_rows.push_back(i - begin);
    }
    batch.query_start = {0, end - begin};
    batch.kv_len = {end};
    batch.prompt_len = {static_cast<int32_t>(text.size())};
    batch.block_table_stride = (end + options_.block_size - 1) / options_.block_size;
    for (int b = 0; b < batch.block_table_stride; ++b) batch.block_table.push_back(b);
    batch.wants_hidden = true;
    return batch;
  }

  // Computes positions [begin, end) with the model, then with the layer. Appends the layer's logits.
  void compute(const std::vector<int32_t>& text, int begin, int end, std::vector<float>& logits) {
    group_->runner().run(batch_of(text, begin, end));
    if (begin == 0) ++begin;
    if (begin == end) return;
    Batch batch = batch_of(text, begin, end);
    batch.wants_hidden = false;
    append(predictor_->run(batch).logits, logits);
  }

  void append(const Tensor& rows, std::vector<float>& logits) const {
    ASSERT_TRUE(rows.dense());
    ops::Queue& queue = predictor_->context().queue;
    const Buffer copy(rows.bytes(), queue.device().pinned_memory());
    queue.copy_async(copy.data(), rows.data, rows.bytes());
    queue.wait();
    const auto* values = reinterpret_cast<const float*>(copy.data());
    logits.insert(logits.end(), values, values + rows.shape.elements());
  }

  void expect_close(const std::vector<float>& logits, const char* name) const {
    const Tensor wanted = gold(name).view();
    ASSERT_EQ(static_cast<int64_t>(logits.size()), wanted.shape.elements());
    EXPECT_LE(relative_error(logits.data(), wanted.f32(), wanted.shape.elements()), kTolerance) << name;
  }

  testing::TempFolder folder_;
  EngineOptions options_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<Runner> predictor_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, TensorEntry> gold_;
};

TEST_P(Mtp, LogitsAreThoseOfTheReference) {
  const std::vector<int32_t> text = tokens("ids");
  const int length = static_cast<int>(text.size());
  for (const int chunk : {length, 5, 2, 1}) {
    SCOPED_TRACE(chunk);
    std::vector<float> logits;
    for (int begin = 0; begin < length; begin += chunk) {
      compute(text, begin, std::min(begin + chunk, length), logits);
    }
    expect_close(logits, "logits");
  }
}

// From the second drafted token on the layer goes on from its own hidden states. They make way for the model's.
TEST_P(Mtp, DraftsGoOnFromTheLayersOwnStates) {
  std::vector<int32_t> text = tokens("ids");
  const int length = static_cast<int>(text.size());
  const std::vector<int32_t> draft = tokens("draft");
  text.insert(text.end(), draft.begin(), draft.end());
  for (int round = 0; round < 2; ++round) {
    std::vector<float> logits, drafted;
    compute(text, 0, length, logits);
    expect_close(logits, "logits");
    predictor_->run(batch_of(text, length - 1, length));
    for (int position = length; position + 1 < static_cast<int>(text.size()); ++position) {
      append(predictor_->run(batch_of(text, position, position + 1)).logits, drafted);
    }
    expect_close(drafted, "draft_logits");
  }
}

class MtpOfSelections : public Mtp {
 protected:
  static constexpr int kSelected = 6;
  int selected() const override { return kSelected; }
};

// Up to the number of tokens that it selects, the layer sees all of them. Behind that, it sees the same ones however
// the text is computed.
TEST_P(MtpOfSelections, LogitsDoNotDependOnChunks) {
  const std::vector<int32_t> text = tokens("ids");
  const int length = static_cast<int>(text.size());
  ASSERT_GT(length, kSelected);
  std::vector<float> whole;
  compute(text, 0, length, whole);
  const int64_t columns = gold("logits").shape[1], same = (kSelected - 1) * columns;
  const float* wanted = gold("logits").view().f32();
  EXPECT_LE(relative_error(whole.data(), wanted, same), kTolerance);
  EXPECT_GT(relative_error(whole.data() + same, wanted + same, static_cast<int64_t>(whole.size()) - same), 0.01);
  for (const int chunk : {5, 1}) {
    std::vector<float> logits;
    for (int begin = 0; begin < length; begin += chunk) {
      compute(text, begin, std::min(begin + chunk, length), logits);
    }
    ASSERT_EQ(logits.size(), whole.size());
    EXPECT_LE(relative_error(logits.data(), whole.data(), static_cast<int64_t>(whole.size())), kTolerance) << chunk;
  }
}

std::string name_of(const ::testing::TestParamInfo<Mtp::ParamType>& info) {
  const auto& [arch, backend, way] = info.param;
  constexpr const char* kRanks[] = {"", "_2", "_2e"};
  return test_name(arch, backend) + kRanks[static_cast<int>(way)];
}

INSTANTIATE_TEST_SUITE_P(All, Mtp,
                         ::testing::Combine(::testing::Values("deepseek_v3", "deepseek_v32-1", "ernie4_5_moe",
                                                              "glm4_moe", "glm4_moe_lite-1", "mimo-1"),
                                            ::testing::ValuesIn(golden_backends()),
                                            ::testing::Values(Ways::kAlone, Ways::kTwoRanks, Ways::kTwoRanksOfExperts)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, MtpOfSelections,
                         ::testing::Combine(::testing::Values("deepseek_v32-1"), ::testing::ValuesIn(golden_backends()),
                                            ::testing::Values(Ways::kAlone, Ways::kTwoRanks)),
                         name_of);

}  // namespace
}  // namespace sluice::mtp_test
