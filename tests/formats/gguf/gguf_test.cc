// Tests GGUF files made in memory: the contents of a good one, and some hundred bad ones. Each bad file is rejected
// with an error that names the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/gguf/failure.h"
#include "formats/gguf/file.h"
#include "support/gguf_writer.h"

namespace sluice::gguf_test {
namespace {

using testing::failure;
using ::testing::HasSubstr;

using Writer = testing::GgufWriter;

GgufFile read(const std::string& bytes) {
  // An exact-size copy, so that the sanitizers detect a read past its end.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return read_gguf({reinterpret_cast<const std::byte*>(exact.data()), exact.size()}, "test.gguf");
}

// A file with two keys and two tensors: [2, 3] of F32 and [4, 32] of Q8_0.
std::string good(uint32_t version = 3) {
  return Writer()
      .header(2, 2, version)
      .key_text("general.architecture", "llama")
      .key_u32("llama.block_count", 7)
      .tensor("first", {3, 2}, 0, 0)
      .tensor("second", {32, 4}, 8, 32)
      .data(32 + 4 * 34)
      .bytes;
}

TEST(Gguf, ReadsBothVersions) {
  for (uint32_t version : {2, 3}) {
    const std::string bytes = good(version);
    const GgufFile file = read_gguf({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "test.gguf");
    EXPECT_EQ(file.version, static_cast<int>(version));
    EXPECT_EQ(file.metadata.text("general.architecture"), "llama");
    EXPECT_EQ(file.metadata.integer("llama.block_count"), 7);
    ASSERT_EQ(file.tensors.size(), 2u);
    EXPECT_EQ(file.tensors[0].shape, (Shape{2, 3}));
    EXPECT_EQ(file.tensors[1].dtype->name, "q8_0");
    EXPECT_EQ(file.tensors[1].bytes, 4u * 34);
    EXPECT_EQ(file.tensors[1].data - file.tensors[0].data, 32);
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string bytes = good();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto found = failure([&] { read(bytes.substr(0, size)); });
    ASSERT_TRUE(found) << size << " bytes";
    EXPECT_EQ(found->code, ErrorCode::kCorruptFile);
    EXPECT_THAT(found->message, HasSubstr("test.gguf"));
  }
}

// Sets every number of the header to every extreme. The result is an error or a file, without reads outside the bytes.
TEST(Gguf, NoNumberLeadsOutOfTheFile) {
  const std::string bytes = good();
  int refused = 0;
  for (size_t at = 4; at + 8 <= bytes.size() - (32 + 4 * 34); ++at) {
    for (uint64_t value : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 62, (uint64_t{1} << 61) + 1,
                           uint64_t{1} << 32, uint64_t{0x7fffffff}, uint64_t{0}}) {
      std::string changed = bytes;
      std::memcpy(changed.data() + at, &value, sizeof value);
      refused += failure([&] { read(changed); }).has_value();
    }
  }
  EXPECT_GT(refused, 120);
}

struct Bad {
  const char* what;
  std::string bytes;
  ErrorCode code;
  const char* message;
};

std::vector<Bad> bad_headers() {
  using enum ErrorCode;
  return {
      {"empty", "", kCorruptFile, "does not begin"},
      {"another magic", "GGML" + good().substr(4), kCorruptFile, "does not begin"},
      {"git lfs", "version https://git-lfs.github.com/spec/v1\n", kCorruptFile, "Git LFS"},
      {"version 0", Writer().header(0, 0, 0).bytes, kUnsupportedModel, "big-endian"},
      {"version 1", Writer().header(0, 0, 1).bytes, kUnsupportedModel, "version 1"},
      {"version 4", Writer().header(0, 0, 4).bytes, kUnsupportedModel, "version 4"},
      {"big-endian", Writer().header(0, 0, 0x03000000).bytes, kUnsupportedModel, "big-endian"},
      {"tensors beyond the file", Writer().header(1u << 30, 0).bytes, kCorruptFile, "tensor count"},
      {"keys beyond the file", Writer().header(0, 1u << 30).bytes, kCorruptFile, "metadata key count"},
      {"all ones", Writer().header(~uint64_t{0}, ~uint64_t{0}).bytes, kCorruptFile, "tensor count"},
  };
}

std::vector<Bad> bad_metadata() {
  using enum ErrorCode;
  const auto one = [](const std::function<void(Writer&)>& add) {
    Writer w;
    w.header(0, 1);
    add(w);
    w.bytes.append(64, '\0');
    return w.bytes;
  };
  return {
      {"key without name", one([](Writer& w) { w.key_u32("", 1); }), kCorruptFile, "name is empty"},
      {"long key", one([](Writer& w) { w.number<uint64_t>(65536); }), kCorruptFile, "65536 bytes"},
      {"length of a key", one([](Writer& w) { w.number(~uint64_t{0}); }), kCorruptFile, "a key has"},
      {"unknown type", one([](Writer& w) { w.key("k", 13); }), kCorruptFile, "value type 13"},
      {"huge type", one([](Writer& w) { w.key("k", ~0u); }), kCorruptFile, "value type"},
      {"bool of 2", one([](Writer& w) { w.key("k", 7).number<uint8_t>(2); }), kCorruptFile, "bool"},
      {"length of a string", one([](Writer& w) { w.key("k", 8).number<uint64_t>(1000); }), kCorruptFile, "1000 bytes"},
      {"string of 2^63", one([](Writer& w) { w.key("k", 8).number(uint64_t{1} << 63); }), kCorruptFile, "at most"},
      {"array of arrays", one([](Writer& w) { w.key("k", 9).number(9u).number<uint64_t>(1); }), kUnsupportedModel,
       "array of arrays"},
      {"array of an unknown type", one([](Writer& w) { w.key("k", 9).number(99u).number<uint64_t>(1); }), kCorruptFile,
       "value type 99"},
      {"array beyond the file", one([](Writer& w) { w.key("k", 9).number(4u).number<uint64_t>(1000); }), kCorruptFile,
       "1000 elements"},
      {"array whose bytes overflow", one([](Writer& w) { w.key("k", 9).number(10u).number(uint64_t{1} << 61); }),
       kCorruptFile, "elements"},
      {"strings beyond the file", one([](Writer& w) { w.key("k", 9).number(8u).number<uint64_t>(100); }), kCorruptFile,
       "100 elements"},
      {"string in an array", one([](Writer& w) { w.key("k", 9).number(8u).number<uint64_t>(1).number<uint64_t>(999); }),
       kCorruptFile, "999 bytes"},
      {"duplicate key", Writer().header(0, 2).key_u32("k", 1).key_u32("k", 2).bytes + std::string(32, '\0'),
       kCorruptFile, "duplicate key"},
      {"alignment 0", one([](Writer& w) { w.key_u32("general.alignment", 0); }), kCorruptFile, "power of two"},
      {"alignment 3", one([](Writer& w) { w.key_u32("general.alignment", 3); }), kCorruptFile, "power of two"},
      {"alignment 2^31", one([](Writer& w) { w.key_u32("general.alignment", 1u << 31); }), kCorruptFile,
       "power of two"},
      {"alignment as text", one([](Writer& w) { w.key_text("general.alignment", "32"); }), kCorruptFile,
       "expected an integer"},
  };
}

std::vector<Bad> bad_tensors() {
  using enum ErrorCode;
  const auto one = [](const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return Writer().header(1, 0).tensor(name, dims, type, offset).data(256).bytes;
  };
  const auto two = [](uint64_t first, uint64_t second, const char* name) {
    return Writer().header(2, 0).tensor("a", {16}, 0, first).tensor(name, {16}, 0, second).data(256).bytes;
  };
  const uint64_t big = uint64_t{1} << 32;
  return {
      {"no name", one("", {4}, 0, 0), kCorruptFile, "name is empty"},
      {"long name", one(std::string(256, 'n'), {4}, 0, 0), kCorruptFile, "a name has 256"},
      {"no dimensions", one("t", {}, 0, 0), kCorruptFile, "0 dimensions"},
      {"five dimensions", one("t", {1, 1, 1, 1, 1}, 0, 0), kCorruptFile, "5 dimensions"},
      {"dimension 0", one("t", {0}, 0, 0), kCorruptFile, "dimension 0"},
      {"dimension 0 behind", one("t", {4, 0}, 0, 0), kCorruptFile, "dimension 0"},
      {"dimension 2^63", one("t", {uint64_t{1} << 63}, 0, 0), kCorruptFile, "out of range"},
      {"product of 2^64", one("t", {big, big}, 0, 0), kCorruptFile, "overflow"},
      {"product of 2^64 + 4", one("t", {big + 1, big}, 0, 0), kCorruptFile, "overflow"},
      {"bytes of 2^64", one("t", {uint64_t{1} << 62}, 0, 0), kCorruptFile, "overflow"},
      {"bytes of blocks", one("t", {uint64_t{1} << 62}, 15, 0), kCorruptFile, "truncated"},
      {"gone type", one("t", {32}, 4, 0), kUnsupportedModel, "ggml type 4"},
      {"type of the future", one("t", {32}, 1000, 0), kUnsupportedModel, "ggml type 1000"},
      {"type 2^32 - 1", one("t", {32}, ~0u, 0), kUnsupportedModel, "ggml type"},
      {"half a block", one("t", {48}, 8, 0), kCorruptFile, "multiple of 32"},
      {"half a super-block", one("t", {128, 2}, 12, 0), kCorruptFile, "multiple of 256"},
      {"unaligned", one("t", {4}, 0, 4), kCorruptFile, "multiple of the alignment 32"},
      {"offset beyond", one("t", {4}, 0, 1u << 20), kCorruptFile, "truncated"},
      {"offset of 2^64 - 32", one("t", {4}, 0, ~uint64_t{0} - 31), kCorruptFile, "truncated"},
      {"end beyond", one("t", {65}, 0, 0), kCorruptFile, "truncated"},
      {"overlap", two(0, 32, "b"), kCorruptFile, "overlaps"},
      {"the same place", two(64, 64, "b"), kCorruptFile, "overlaps"},
      {"duplicate name", two(0, 64, "a"), kCorruptFile, "duplicate name"},
  };
}

TEST(Gguf, BadFilesAreRefusedByName) {
  for (const auto& table : {bad_headers(), bad_metadata(), bad_tensors()}) {
    for (const Bad& bad : table) {
      SCOPED_TRACE(bad.what);
      const auto found = failure([&] { read(bad.bytes); });
      ASSERT_TRUE(found);
      EXPECT_EQ(found->code, bad.code) << found->message;
      EXPECT_THAT(found->message, HasSubstr(bad.message));
    }
  }
}

TEST(Gguf, GettersKnowTheirTypes) {
  Writer w;
  w.header(0, 7).key_u32("u", 5).key_f32("f", 0.5f).key_text("t", "x").key("b", 7).number<uint8_t>(1);
  w.key("n", 11).number<int64_t>(-3).key("list", 9).number(5u).number<uint64_t>(2).number<int32_t>(1).number<int32_t>(
      -1);
  w.key("big", 10).number(~uint64_t{0});
  const GgufFile file = read_gguf({reinterpret_cast<const std::byte*>(w.bytes.data()), w.bytes.size()}, "test.gguf");
  const GgufMetadata& m = file.metadata;
  EXPECT_EQ(m.integer("u"), 5);
  EXPECT_EQ(m.integer("n"), -3);
  EXPECT_EQ(m.number("u"), 5.0);
  EXPECT_EQ(m.number("f"), 0.5);
  EXPECT_EQ(m.boolean("b"), true);
  EXPECT_EQ(m.integers("list"), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(m.integer("absent"), std::nullopt);
  EXPECT_THROW(m.integer("f"), Error);
  EXPECT_THROW(m.integer("t"), Error);
  EXPECT_THROW(m.integer("big"), Error);
  EXPECT_THROW(m.integer("list"), Error);
  EXPECT_THROW(m.boolean("u"), Error);
  EXPECT_THROW(m.text("u"), Error);
  EXPECT_THROW(m.texts("t"), Error);
  EXPECT_THROW(m.required_text("absent"), Error);
}

}  // namespace
}  // namespace sluice::gguf_test
