// Tests opening checkpoints: folders, single files, shards, generation defaults.
#include "formats/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "base/log.h"
#include "formats/safetensors.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::checkpoint_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

std::string error_of(const std::string& path, ErrorCode code) {
  try {
    open_checkpoint(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.what();
    return e.what();
  }
  return "";
}

// Writes a file whose tensors hold one byte each.
void write_bytes(const std::string& path, const std::vector<std::pair<std::string, uint8_t>>& values) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, value] : values) {
    tensors.push_back({name, Tensor(const_cast<uint8_t*>(&value), &kUInt8, {1})});
  }
  write_safetensors(path, tensors);
}

int value_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorEntry* entry = checkpoint.find(name);
  return entry == nullptr ? -1 : std::to_integer<int>(*entry->data);
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_.write("config.json", R"({"model_type": "llama", "eos_token_id": 2})"); }
  std::string path() const { return folder_.path().string(); }
  void write_model() const { write_bytes(folder_ / "model.safetensors", {{"a", 1}, {"b", 2}}); }
  void write_index(const std::string& map) const {
    folder_.write("model.safetensors.index.json", fmt::format(R"({{"metadata": {{}}, "weight_map": {}}})", map));
  }
  TempFolder folder_;
};

TEST_F(CheckpointTest, OneFile) {
  write_model();
  for (const std::string& what : {path(), folder_ / "model.safetensors"}) {
    const auto checkpoint = open_checkpoint(what);
    EXPECT_EQ(checkpoint->folder, path());
    EXPECT_EQ(checkpoint->config.at<std::string>("model_type"), "llama");
    EXPECT_EQ(checkpoint->tensors().size(), 2u);
    EXPECT_EQ(checkpoint->total_bytes(), 2u);
    EXPECT_EQ(value_of(*checkpoint, "b"), 2);
    EXPECT_EQ(checkpoint->find("c"), nullptr);
    EXPECT_THAT(checkpoint->generation.eos_token_ids, ElementsAre(2));
  }
}

TEST_F(CheckpointTest, AFileOfAnotherNameIsOpenedByItsPath) {
  write_model();
  write_bytes(folder_ / "other.safetensors", {{"z", 9}});
  EXPECT_EQ(value_of(*open_checkpoint(folder_ / "other.safetensors"), "z"), 9);
  EXPECT_EQ(value_of(*open_checkpoint(path()), "z"), -1);
}

TEST_F(CheckpointTest, TheDemoModelOpens) {
  const auto checkpoint = open_checkpoint(SLUICE_SOURCE_DIR "/models/minnow-6m");
  EXPECT_THAT(checkpoint->generation.eos_token_ids, ElementsAre(8179));
  const TensorEntry* embedding = checkpoint->find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape, (Shape{8192, 256}));
  EXPECT_EQ(embedding->dtype, &kBFloat16);
}

TEST_F(CheckpointTest, Shards) {
  write_bytes(folder_ / "m-1.safetensors", {{"a", 1}, {"b", 2}});
  write_bytes(folder_ / "m-2.safetensors", {{"c", 3}, {"b", 99}});
  write_index(R"({"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"})");
  log::set_level(log::Level::kError);  // silences the warning about the unlisted copy of b
  const auto checkpoint = open_checkpoint(path());
  log::set_level(log::Level::kInfo);
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(value_of(*checkpoint, "a"), 1);
  EXPECT_EQ(value_of(*checkpoint, "b"), 2);
  EXPECT_EQ(value_of(*checkpoint, "c"), 3);
}

TEST_F(CheckpointTest, AnIndexThatContradictsItsShardsIsRefused) {
  write_bytes(folder_ / "m-1.safetensors", {{"a", 1}});
  write_index(R"({"a": "m-1.safetensors", "b": "m-2.safetensors"})");
  EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile),
              AllOf(HasSubstr("1 of 2 shards"), HasSubstr("m-2.safetensors")));
  write_index(R"({"a": "m-1.safetensors", "b": "m-1.safetensors"})");
  EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile), AllOf(HasSubstr("m-1.safetensors"), HasSubstr("\"b\"")));
  for (const char* map : {"[]", "null", R"({"a": 1})", R"("m-1.safetensors")"}) {
    write_index(map);
    EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile), HasSubstr("weight_map")) << map;
  }
}

TEST_F(CheckpointTest, ShardsOutsideOfTheFolderAreRefused) {
  const TempFolder outside;
  write_bytes(outside / "x.safetensors", {{"a", 1}});
  const std::string up = "../" + outside.path().filename().string() + "/x.safetensors";
  for (const std::string& shard : {up, outside / "x.safetensors", std::string("./x.safetensors"),
                                   std::string("sub/x.safetensors"), std::string(".."), std::string("."), std::string(),
                                   std::string("..\\\\x"), std::string("x\\u0000.safetensors")}) {
    write_index(fmt::format(R"({{"a": "{}"}})", shard));
    EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile), HasSubstr("in this folder")) << shard;
  }
}

TEST_F(CheckpointTest, GenerationDefaults) {
  write_model();
  folder_.write("generation_config.json", R"({"eos_token_id": [7, 8], "temperature": 0.6, "top_p": 1, "top_k": 20,
      "min_p": 0.05, "repetition_penalty": 1.1, "max_new_tokens": 100, "do_sample": true, "pad_token_id": null})");
  GenerationConfig g = open_checkpoint(path())->generation;
  EXPECT_THAT(g.eos_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(g.temperature, 0.6);
  EXPECT_EQ(g.top_p, 1.0);
  EXPECT_EQ(g.min_p, 0.05);
  EXPECT_EQ(g.top_k, 20);
  EXPECT_EQ(g.repetition_penalty, 1.1);
  EXPECT_EQ(g.max_new_tokens, 100);
  EXPECT_TRUE(g.do_sample);

  folder_.write("generation_config.json", "{}");
  g = open_checkpoint(path())->generation;
  EXPECT_THAT(g.eos_token_ids, ElementsAre(2)) << "config.json applies where generation_config.json has no value";
  EXPECT_EQ(g.temperature, std::nullopt);
  EXPECT_FALSE(g.do_sample);
}

TEST_F(CheckpointTest, GenerationDefaultsThatCannotBeMeantAreRefused) {
  write_model();
  for (const char* field :
       {R"("eos_token_id": "</s>")", R"("eos_token_id": [1, "a"])", R"("eos_token_id": -1)",
        R"("eos_token_id": 4294967296)", R"("temperature": "hot")", R"("temperature": -0.1)", R"("temperature": NaN)",
        R"("temperature": Infinity)", R"("top_p": 1.5)", R"("min_p": -1)", R"("top_k": 2.5)", R"("top_k": -2)",
        R"("repetition_penalty": 0)", R"("max_new_tokens": 0)", R"("do_sample": 1)"}) {
    folder_.write("generation_config.json", fmt::format("{{{}}}", field));
    const std::string key(field + 1, std::strchr(field + 1, '"'));
    EXPECT_THAT(error_of(path(), ErrorCode::kUnsupportedModel),
                AllOf(HasSubstr("generation_config.json"), HasSubstr(key)));
  }
}

TEST_F(CheckpointTest, OtherFormatsAreNamed) {
  EXPECT_THAT(error_of(path(), ErrorCode::kNotFound), HasSubstr("no weights"));
  folder_.write("tokenizer.model", "x");
  EXPECT_THAT(error_of(path(), ErrorCode::kNotFound), HasSubstr("no weights"));
  folder_.write("tf_model.h5", "x");
  EXPECT_THAT(error_of(path(), ErrorCode::kUnsupportedModel), HasSubstr("tf_model.h5: unsupported format"));
  folder_.write("flax_model.msgpack", "x");
  EXPECT_THAT(error_of(path(), ErrorCode::kUnsupportedModel), HasSubstr("flax_model.msgpack and 1 more"));
  EXPECT_THAT(error_of(folder_ / "tf_model.h5", ErrorCode::kUnsupportedModel), HasSubstr("tf_model.h5"));
}

TEST_F(CheckpointTest, AdaptersAreNoModels) {
  write_bytes(folder_ / "adapter_model.safetensors", {{"a", 1}});
  folder_.write("adapter_config.json", R"({"base_model_name_or_path": "org/base"})");
  EXPECT_THAT(error_of(path(), ErrorCode::kUnsupportedModel), HasSubstr("an adapter for org/base"));
}

TEST_F(CheckpointTest, BrokenFilesAreNamed) {
  write_model();
  std::filesystem::resize_file(folder_ / "model.safetensors",
                               std::filesystem::file_size(folder_ / "model.safetensors") - 1);
  EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile), AllOf(HasSubstr("model.safetensors"), HasSubstr("truncated")));
  std::filesystem::remove(folder_ / "model.safetensors");
  ASSERT_EQ(::mkfifo((folder_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile), HasSubstr("not a regular file"));
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_THAT(error_of(path(), ErrorCode::kCorruptFile), HasSubstr("config.json"));
}

}  // namespace
}  // namespace sluice::checkpoint_test
