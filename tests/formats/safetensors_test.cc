// Tests the safetensors reader with hostile files, and the writer.
#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "base/mmap.h"
#include "sluice/error.h"
#include "support/cpu_time.h"
#include "support/process_memory.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace sluice::safetensors_test {
namespace {

using ::testing::HasSubstr;

std::string file_of(std::string_view header, size_t data_bytes, std::optional<uint64_t> length = std::nullopt) {
  const uint64_t stated = length.value_or(header.size());
  std::string file(reinterpret_cast<const char*>(&stated), 8);
  return file.append(header).append(data_bytes, '\x01');
}

std::vector<TensorEntry> read(std::string_view file, std::map<std::string, std::string>* metadata = nullptr) {
  return read_safetensors(std::as_bytes(std::span(file)), "f.safetensors", metadata);
}

// Returns the error message, "" when the file is read.
std::string error_of(std::string_view file, ErrorCode code = ErrorCode::kCorruptFile) {
  try {
    read(file);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.what();
    EXPECT_THAT(e.what(), HasSubstr("f.safetensors"));
    return e.what();
  }
  return "";
}

TEST(Safetensors, ReadsEntriesInTheOrderOfTheFile) {
  const std::string file = file_of(
      R"({"b":{"dtype":"F32","shape":[2,1],"data_offsets":[2,10]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"e":{"dtype":"I64","shape":[0,3],"data_offsets":[10,10]}}  )",
      10);
  std::map<std::string, std::string> metadata;
  const auto entries = read(file, &metadata);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, &kBFloat16);
  EXPECT_EQ(entries[0].shape.rank(), 0);
  EXPECT_EQ(entries[0].bytes, 2u);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].shape, (Shape{2, 1}));
  EXPECT_EQ(reinterpret_cast<const char*>(entries[1].data), file.data() + file.size() - 8);
  EXPECT_EQ(entries[2].name, "e");
  EXPECT_EQ(entries[2].bytes, 0u);
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

// Qwen's encoders of videos have convolutions in space and time.
TEST(Safetensors, AFifthDimensionIsPartOfTheFourth) {
  const auto entries =
      read(file_of(R"({"patch_embed":{"dtype":"F32","shape":[2,3,2,1,2],"data_offsets":[0,96]}})", 96));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].shape, (Shape{2, 3, 2, 2}));
  EXPECT_EQ(entries[0].bytes, 96u);
}

TEST(Safetensors, AnEmptyFileOfTheFormatHasNoTensors) { EXPECT_TRUE(read(file_of("{}", 0)).empty()); }

TEST(Safetensors, EveryTypeWithADescriptorIsRead) {
  for (DType type : plain_dtypes()) {
    const std::string header = fmt::format(R"({{"t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})",
                                           type->safetensors, 3 * type->block_bytes);
    const auto entries = read(file_of(header, 3 * type->block_bytes));
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_EQ(entries[0].dtype, type);
  }
}

struct Hostile {
  const char* what;
  std::string file;
  const char* message;
  ErrorCode code = ErrorCode::kCorruptFile;
};

std::string one(std::string_view fields, size_t data_bytes = 4) {
  return file_of(fmt::format(R"({{"t":{{{}}}}})", fields), data_bytes);
}

const std::vector<Hostile>& hostile_files() {
  constexpr auto kUnsupported = ErrorCode::kUnsupportedModel;
  static const std::vector<Hostile> files = {
      {"no bytes", "", "0 bytes"},
      {"seven bytes", "1234567", "7 bytes"},
      {"header length 0", file_of("{}", 0, 0), "not a JSON object"},
      {"header length 7", file_of(R"({"a": {}})", 0, 7), "not JSON"},
      {"header length 2^63", file_of("{}", 0, uint64_t{1} << 63), "at most"},
      {"header length 2^64-1", file_of("{}", 0, ~uint64_t{0}), "at most"},
      {"header length 2^64-8", file_of("{}", 0, ~uint64_t{7}), "at most"},
      {"header that is all of the file and no JSON", file_of("{}", 100, 102), "not JSON"},
      {"header of the file's whole length", file_of("{}", 100, 110), "header of 110 bytes"},
      {"header longer than the file", file_of("{}", 0, 3), "header of 3 bytes"},
      {"header is an array", file_of("[]", 0), "not a JSON object"},
      {"header with a leading space", file_of(" {}", 0), "not a JSON object"},
      {"two objects", file_of("{}{}", 0), "not JSON"},
      {"cut off", file_of(R"({"t":{"dtype":"F32")", 0), "not JSON"},
      {"not UTF-8", file_of("{\"\xff\":1}", 0), "not JSON"},
      {"LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"},
      {"entry is a number", file_of(R"({"t":5})", 0), "\"t\""},
      {"entry is null", file_of(R"({"t":null})", 0), "\"t\""},
      {"entry is an array", file_of(R"({"t":[]})", 0), "\"t\""},
      {"entry is nested", one(R"("dtype":{"a":1})"), "unexpected object"},
      {"unknown field", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"y")"), "unexpected string"},
      {"no dtype", one(R"("shape":[1],"data_offsets":[0,4])"), "missing"},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,4])"), "missing"},
      {"no offsets", one(R"("dtype":"F32","shape":[1])"), "missing"},
      {"empty entry", one(""), "missing"},
      {"dtype twice", one(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), "duplicate"},
      {"shape twice", one(R"("dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4])"), "duplicate"},
      {"offsets twice", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"data_offsets":[0,4])"), "duplicate"},
      {"unknown dtype", one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), "unknown dtype \"F31\""},
      {"empty dtype", one(R"("dtype":"","shape":[1],"data_offsets":[0,4])"), "unknown dtype"},
      {"dtype is a number", one(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), "unexpected number"},
      {"complex", one(R"("dtype":"C64","shape":[1],"data_offsets":[0,8])", 8), "C64 is not supported", kUnsupported},
      {"4 bits", one(R"("dtype":"F4","shape":[8],"data_offsets":[0,4])"), "F4 is not supported", kUnsupported},
      {"nine dimensions", one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])"), "8 dimensions",
       kUnsupported},
      {"product of many", one(R"("dtype":"U8","shape":[1,1,1,4294967296,4294967296],"data_offsets":[0,4])"),
       "overflows"},
      {"shape is a number", one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), "unexpected number"},
      {"shape is nested", one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), "unexpected array"},
      {"negative dimension", one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "negative"},
      {"fractional dimension", one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), "unsigned"},
      {"dimension true", one(R"("dtype":"F32","shape":[true],"data_offsets":[0,4])"), "unexpected boolean"},
      {"dimension 2^63", one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])"), "out of range"},
      {"dimension 2^64", one(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4])"), "unsigned"},
      {"product 2^64", one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0), "overflows"},
      {"product wraps to 4", one(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"), "overflows"},
      {"product 2^63", one(R"("dtype":"U8","shape":[2147483648,4294967296],"data_offsets":[0,4])"), "overflows"},
      {"overflow beside a 0", one(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0),
       "overflows"},
      {"one offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), "must have two numbers"},
      {"three offsets", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), "unexpected number"},
      {"no offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[])"), "must have two numbers"},
      {"negative offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), "negative"},
      {"offsets run backwards", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "descending"},
      {"offsets of 2^64",
       one(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551616])"), "unsigned"},
      {"offsets near 2^64",
       one(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615])"), "gap"},
      {"longer than its shape", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,5])", 5), "has 4 bytes"},
      {"shorter than its shape", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "has 8 bytes"},
      {"file cut by one byte", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 3), "truncated"},
      {"one byte too many", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 5), "after the last tensor"},
      {"bytes of no tensor", file_of("{}", 1), "after the last tensor"},
      {"begins late", one(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "gap"},
      {"gap",
       file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           3),
       "\"b\": begins at byte 2"},
      {"overlap",
       file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3),
       "overlap"},
      {"same bytes twice",
       file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           2),
       "overlap"},
      {"empty tensor inside another",
       file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
           2),
       "overlap"},
      {"duplicate key",
       file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       "\"a\": duplicate key"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "duplicate"},
      {"metadata key twice", file_of(R"({"__metadata__":{"a":"b","a":"c"}})", 0), "duplicate"},
      {"metadata not strings", file_of(R"({"__metadata__":{"a":1}})", 0), "unexpected number"},
      {"metadata nested", file_of(R"({"__metadata__":{"a":{}}})", 0), "unexpected object"},
      {"metadata is a string", file_of(R"({"__metadata__":"x"})", 0), "unexpected string"},
      {"nested a million deep", file_of(R"({"t":)" + std::string(1'000'000, '['), 0), "unexpected array"},
  };
  return files;
}

TEST(Safetensors, HostileFilesAreRefusedWithAReason) {
  for (const Hostile& h : hostile_files()) {
    EXPECT_THAT(error_of(h.file, h.code), HasSubstr(h.message)) << h.what;
  }
}

TEST(Safetensors, ThreeHundredThousandTensorsAreReadQuickly) {
  const auto header_of = [](int tensors) {
    std::string header = "{";
    for (int i = 0; i < tensors; ++i) {
      fmt::format_to(
          std::back_inserter(header),
          R"({}"model.layers.{}.some.quite.long.name.weight":{{"dtype":"BF16","shape":[1],"data_offsets":[{},{}]}})",
          i ? "," : "", i, 2 * i, 2 * i + 2);
    }
    return header + "}";
  };
  const std::string file = file_of(header_of(300'000), 600'000);
  const testing::PeakMemory memory;
  const double seconds = cpu_seconds([&] { EXPECT_EQ(read(file).size(), 300'000u); });
  if (!kSanitized) {
    EXPECT_LT(seconds, 2);
    EXPECT_LT(memory.growth_bytes(), size_t{256} << 20);
  }
  EXPECT_THAT(error_of(file_of(header_of(300'001), 600'002)), HasSubstr("more than 300000 tensors"));
  EXPECT_THAT(error_of(file_of("{}" + std::string(32 << 20, ' '), 0)), HasSubstr("at most"));
}

TEST(SafetensorsWriter, WhatIsWrittenIsReadBack) {
  const testing::TempFolder folder;
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<uint8_t> b = {7, 8, 9};
  std::vector<int64_t> c = {-1};
  const std::vector<NamedTensor> tensors = {{"b \"quoted\"", Tensor(b.data(), &kUInt8, {3})},
                                            {"a", Tensor(a.data(), &kFloat32, {2, 3})},
                                            {"scalar", Tensor(c.data(), &kInt64, {})},
                                            {"empty", Tensor(nullptr, &kFloat32, {0, 5})}};
  write_safetensors(folder / "x.safetensors", tensors);
  write_safetensors(folder / "x.safetensors", tensors);  // replaces

  const MappedFile file(folder / "x.safetensors");
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorEntry> read_back;
  for (const TensorEntry& e : read_safetensors(file.bytes(), file.path(), &metadata)) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(e.data) % e.dtype->block_bytes, 0u) << e.name;
    read_back[e.name] = e;
  }
  EXPECT_EQ(metadata.at("format"), "pt");
  ASSERT_EQ(read_back.size(), tensors.size());
  for (const NamedTensor& t : tensors) {
    const TensorEntry& e = read_back.at(t.name);
    EXPECT_EQ(e.dtype, t.tensor.dtype);
    EXPECT_EQ(e.shape, t.tensor.shape);
    ASSERT_EQ(e.bytes, t.tensor.bytes());
    EXPECT_TRUE(std::equal(e.data, e.data + e.bytes, t.tensor.data)) << t.name;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "a temporary file remains";
}

TEST(SafetensorsWriter, AFullDiskLeavesTheOldFile) {
  const testing::TempFolder folder;
  std::vector<uint8_t> data(100'000);
  folder.write("x.safetensors", "old");
  rlimit old_limit{};
  ::getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit limit{50'000, old_limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    write_safetensors(folder / "x.safetensors",
                      std::vector<NamedTensor>{{"a", Tensor(data.data(), &kUInt8, {100'000})}});
  } catch (const Error& e) {
    message = e.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message, HasSubstr("cannot write"));
  EXPECT_EQ(std::filesystem::file_size(folder / "x.safetensors"), 3u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "a temporary file remains";
}

TEST(SafetensorsWriter, AFolderThatIsNotThereIsNamed) {
  try {
    write_safetensors("/nonexistent/folder/x.safetensors", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("/nonexistent/folder/x.safetensors"));
  }
}

}  // namespace
}  // namespace sluice::safetensors_test
