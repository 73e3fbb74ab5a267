// Tests hub model names, and where the cache stores their files.
#include "hub/cache.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::cache_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempFolder;

class HubCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      saved_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      ::unsetenv(name);
    }
    ::setenv("HF_HOME", path().c_str(), 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_) {
      if (value)
        ::setenv(name, value->c_str(), 1);
      else
        ::unsetenv(name);
    }
  }
  std::string path() const { return folder_.path().string(); }
  std::string resolve_error(const std::string& name, ErrorCode code = ErrorCode::kNotFound) {
    try {
      resolve_model_path(name);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, code) << e.what();
      return e.what();
    }
    return "";
  }

  TempFolder folder_;

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

TEST_F(HubCacheTest, NamesAreResolved) {
  const std::string root = "hub/models--org--name/";
  folder_.write(root + "refs/main", "abc123\n");
  folder_.write(root + "refs/pr/1", "def456");
  folder_.write(root + "snapshots/abc123/config.json", "{}");
  folder_.write(root + "snapshots/def456/config.json", "{}");
  folder_.write("hub/models--gpt2/refs/main", "0");
  folder_.write("hub/models--gpt2/snapshots/0/config.json", "{}");
  EXPECT_EQ(resolve_model_path("org/name"), folder_ / (root + "snapshots/abc123"));
  EXPECT_EQ(resolve_model_path("org/name:main"), folder_ / (root + "snapshots/abc123"));
  EXPECT_EQ(resolve_model_path("org/name:pr/1"), folder_ / (root + "snapshots/def456"));
  EXPECT_EQ(resolve_model_path("org/name:def456"), folder_ / (root + "snapshots/def456"));
  EXPECT_EQ(resolve_model_path("gpt2"), folder_ / "hub/models--gpt2/snapshots/0");
  EXPECT_EQ(resolve_model_path(path()), path()) << "an existing path is used as it is";
}

TEST_F(HubCacheTest, PlacesLookedAtAreNamed) {
  EXPECT_THAT(resolve_error("org/name"), AllOf(HasSubstr("org/name"), HasSubstr(path() + "/hub/models--org--name")));
  ::setenv("HF_HUB_CACHE", "/somewhere/cache", 1);
  EXPECT_THAT(resolve_error("org/name"), HasSubstr("/somewhere/cache/models--org--name"));
  ::unsetenv("HF_HUB_CACHE");
  ::unsetenv("HF_HOME");
  ::setenv("HOME", "/home/nobody", 1);
  EXPECT_THAT(resolve_error("org/name"), HasSubstr("/home/nobody/.cache/huggingface/hub/models--org--name"));
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_THAT(resolve_error("org/name"), HasSubstr("/cache/huggingface/hub"));
}

TEST_F(HubCacheTest, NamesLeadNowhereElse) {
  folder_.write("secret/config.json", "{}");
  folder_.write("hub/models--org--name/refs/evil", "../../../secret");
  EXPECT_THAT(resolve_error("org/name:evil", ErrorCode::kCorruptFile), HasSubstr("does not contain a commit"));
  for (const char* name :
       {"../secret/x", "org/../x", "/no/such/place", "a/b/c", "", ":main", "org/name:", "org/name:../main",
        "org/name:a/../b", "org/name:/etc", "org/na me", ".hidden/x", "https://host/x"}) {
    EXPECT_THAT(resolve_error(name), HasSubstr("no such file or folder")) << name;
  }
}

TEST_F(HubCacheTest, FilesOfAQuantization) {
  const std::string snapshot = "hub/models--org--name/snapshots/abc123/";
  folder_.write("hub/models--org--name/refs/main", "abc123");
  for (const char* file : {"m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"}) {
    folder_.write(snapshot + file, "x");
  }
  EXPECT_EQ(resolve_model_path("org/name"), folder_ / (snapshot + "m-Q4_K_M.gguf")) << "the usual choice";
  EXPECT_EQ(resolve_model_path("org/name:q8_0"), folder_ / (snapshot + "m-Q8_0.gguf"));
  EXPECT_EQ(resolve_model_path("org/name:F16"), folder_ / (snapshot + "m-F16-00001-of-00002.gguf"));
  EXPECT_THAT(resolve_error("org/name:Q5_K_S"), HasSubstr("Q5_K_S"));
  folder_.write(snapshot + "model.safetensors", "x");
  EXPECT_EQ(resolve_model_path("org/name"), folder_ / "hub/models--org--name/snapshots/abc123");
  EXPECT_EQ(model_name(folder_ / "hub/models--org--name/snapshots/abc123"), "org/name");
  EXPECT_EQ(model_name(folder_ / "my-model/"), "my-model");
}

TEST(HubName, TypesAndRevisions) {
  for (const char* type : {"Q4_K_M", "q8_0", "IQ2_XXS", "TQ1_0", "F16", "BF16", "MXFP4", "UD-Q4_K_XL"}) {
    EXPECT_TRUE(names_quantization(type)) << type;
  }
  for (const char* revision : {"main", "quantized", "q4", "v1.0", "Q", "iq", "refs/pr/1", "Q9_K", "f17"}) {
    EXPECT_FALSE(names_quantization(revision)) << revision;
  }
  EXPECT_EQ(HubName::parse("org/name:v1.0")->revision, "v1.0");
  EXPECT_EQ(HubName::parse("org/name:Q4_K_M")->revision, "main");
}

}  // namespace
}  // namespace sluice::cache_test
