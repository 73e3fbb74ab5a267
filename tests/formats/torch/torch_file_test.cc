// Tests torch.save files: valid ones are read, and nothing in a hostile one is ever run, followed or trusted.
#include "formats/torch/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "formats/checkpoint.h"
#include "formats/torch_archive.h"
#include "sluice/error.h"
#include "support/process_memory.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace sluice::torch_file_test {
namespace {

using namespace testing;
using namespace testing::pickle;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TorchFile read(const std::string& file) { return read_torch_file(std::as_bytes(std::span(file)), "model.bin"); }

std::vector<float> values(const TensorEntry& entry) {
  std::vector<float> out(static_cast<size_t>(entry.shape.elements()));
  to_float(entry.dtype, entry.data, out.data(), out.size());
  return out;
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string counting(int n) {
  std::vector<float> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0.0f);
  return floats(all);
}

// Returns a file with one tensor "w" over a storage of six floats, 0 to 5.
std::string one_tensor(int64_t offset, const std::vector<int64_t>& size, const std::vector<int64_t>& stride) {
  return zip(torch_files(state_dict({{"w", tensor(storage("FloatStorage", "0", 6), offset, size, stride)}}),
                         {{"0", counting(6)}}));
}

TEST(TorchFile, StateDict) {
  const std::string pickle = state_dict({
      {"a", tensor(storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1})},
      {"b", tensor(storage("BFloat16Storage", "1", 2), 0, {2}, {1})},
      {"c", tensor(storage("LongStorage", "2", 1), 0, {}, {})},
  });
  for (const bool zip64 : {false, true}) {
    const std::string file =
        zip(torch_files(pickle, {{"0", counting(6)}, {"1", "\x80\x3f\0\xc0"s}, {"2", "\7\0\0\0\0\0\0\0"s}}), zip64);
    const TorchFile read_back = read(file);
    ASSERT_EQ(read_back.entries.size(), 3u);
    const TensorEntry& a = read_back.entries[0];
    EXPECT_EQ(a.name, "a");
    EXPECT_EQ(a.dtype, &kFloat32);
    EXPECT_EQ(a.shape, (Shape{2, 3}));
    EXPECT_EQ(a.bytes, 24u);
    EXPECT_THAT(values(a), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_GE(a.data, static_cast<const void*>(file.data())) << "read in place";
    EXPECT_LT(a.data, static_cast<const void*>(file.data() + file.size()));
    EXPECT_THAT(values(read_back.entries[1]), ElementsAre(1, -2));
    EXPECT_EQ(read_back.entries[2].dtype, &kInt64);
    EXPECT_EQ(read_back.entries[2].shape.rank(), 0);
    EXPECT_EQ(std::to_integer<int>(*read_back.entries[2].data), 7);
  }
}

TEST(TorchFile, OneTensor) {
  const auto file = [](const std::string& value) {
    return zip(torch_files(kBegin + value + kStop, {{"0", counting(6)}}));
  };
  const auto read_one = [](const std::string& bytes) {
    return read_torch_tensor(std::as_bytes(std::span(bytes)), "a file");
  };
  const std::string bytes = file(tensor(storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1}));
  const TorchFile whole = read_one(bytes);
  ASSERT_EQ(whole.entries.size(), 1u);
  EXPECT_EQ(whole.entries[0].name, "");
  EXPECT_EQ(values(whole.entries[0]), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  const std::string turned = file(tensor(storage("FloatStorage", "0", 6), 0, {3, 2}, {1, 3}));
  EXPECT_EQ(values(read_one(turned).entries[0]), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  const auto error = [&](const std::string& bad) {
    try {
      read_one(bad);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(file(tensor(storage("FloatStorage", "0", 6), 0, {3, 3}, {3, 1}))),
              AllOf(HasSubstr("a file: the tensor: "), HasSubstr("exceeds its storage")));
  EXPECT_THAT(error(file(kEmptyDict)), HasSubstr("expected a tensor"));
  EXPECT_THAT(error(file(integer(7))), HasSubstr("expected a tensor"));
  EXPECT_THAT(error(one_tensor(0, {2, 3}, {3, 1})), HasSubstr("expected a tensor"));
}

TEST(TorchFile, ViewsOfOneStorage) {
  const std::string shared = storage("FloatStorage", "0", 6);
  const std::string file = zip(torch_files(state_dict({{"all", tensor(shared, 0, {6}, {1})},
                                                       {"tail", tensor(shared, 4, {2}, {1})},
                                                       {"transposed", tensor(shared, 0, {3, 2}, {1, 3})},
                                                       {"column", tensor(shared, 1, {2, 1}, {3, 99})},
                                                       {"empty", tensor(shared, 6, {0, 5}, {5, 1})}}),
                                           {{"0", counting(6)}}));
  const TorchFile read_back = read(file);
  EXPECT_THAT(values(read_back.entries[1]), ElementsAre(4, 5));
  EXPECT_EQ(read_back.entries[1].data, read_back.entries[0].data + 16);
  EXPECT_THAT(values(read_back.entries[2]), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(values(read_back.entries[3]), ElementsAre(1, 4));
  EXPECT_EQ(read_back.entries[4].bytes, 0u);
  EXPECT_EQ(read_back.dense.size(), 2u);
}

TEST(TorchFile, ParametersMemoAndNewTypes) {
  const std::string parameter = global("torch._utils", "_rebuild_parameter") + kMark +
                                tensor(storage("HalfStorage", "0", 1), 0, {1}, {1}) + kTrue + kOrderedDict + kTuple +
                                kReduce;
  const std::string float8 = global("torch._utils", "_rebuild_tensor_v3") + kMark + kMark + text("storage") +
                             global("torch.storage", "UntypedStorage") + text("1") + text("cpu") + integer(2) + kTuple +
                             kPersistent + integer(0) + tuple({2}) + tuple({1}) + kFalse + kOrderedDict +
                             global("torch", "float8_e4m3fn") + kTuple + kReduce;
  const std::string memoized = tensor(storage("FloatStorage", "2", 1), 0, {1}, {1}) + put(5);
  const std::string file =
      zip(torch_files(state_dict({{"p", parameter}, {"f8", float8}, {"m", memoized}, {"again", get(5)}}),
                      {{"0", "\0\x3c"s}, {"1", "\1\2"}, {"2", floats({2.5f})}}));
  const TorchFile read_back = read(file);
  EXPECT_THAT(values(read_back.entries[0]), ElementsAre(1));
  EXPECT_EQ(read_back.entries[1].dtype, &kFloat8E4M3);
  EXPECT_EQ(read_back.entries[1].bytes, 2u);
  EXPECT_EQ(read_back.entries[3].data, read_back.entries[2].data);
}

class TorchFolder : public ::testing::Test {
 protected:
  void SetUp() override { folder_.write("config.json", R"({"model_type": "llama"})"); }
  void write(const std::string& name, const std::string& tensor_name) {
    folder_.write(name,
                  zip(torch_files(state_dict({{tensor_name, tensor(storage("FloatStorage", "0", 1), 0, {1}, {1})}}),
                                  {{"0", floats({1})}})));
  }
  std::string error_of(const OpenOptions& options) {
    try {
      open_checkpoint(folder_.path().string(), options);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  TempFolder folder_;
};

TEST_F(TorchFolder, IsReadOnlyWhenAllowed) {
  write("pytorch_model.bin", "a");
  EXPECT_THAT(error_of({}), AllOf(HasSubstr("--allow-bin"), HasSubstr(folder_.path().string())));
  EXPECT_NE(open_checkpoint(folder_.path().string(), {.allow_bin = true})->find("a"), nullptr);
  EXPECT_NE(open_checkpoint(folder_ / "pytorch_model.bin", {.allow_bin = true})->find("a"), nullptr);
}

TEST_F(TorchFolder, Shards) {
  write("pytorch_model-00001-of-00002.bin", "a");
  write("pytorch_model-00002-of-00002.bin", "b");
  folder_.write(
      "pytorch_model.bin.index.json",
      R"({"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}})");
  const auto checkpoint = open_checkpoint(folder_.path().string(), {.allow_bin = true});
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  folder_.write("pytorch_model.bin.index.json", R"({"weight_map": {"a": "../pytorch_model-00001-of-00002.bin"}})");
  EXPECT_THAT(error_of({.allow_bin = true}), HasSubstr("in this folder"));
}

TEST_F(TorchFolder, SafetensorsComeFirst) {
  write("pytorch_model.bin", "a");
  folder_.write("model.safetensors", little_endian(uint64_t{2}) + "{}");
  EXPECT_EQ(open_checkpoint(folder_.path().string())->tensors().size(), 0u);
}

struct Hostile {
  std::string name, file, message;
};

std::string with_pickle(const std::string& pickle) { return zip(torch_files(pickle, {{"0", counting(6)}})); }
std::string with_value(const std::string& value) { return with_pickle(state_dict({{"w", value}})); }
const std::string kFloats = storage("FloatStorage", "0", 6);
const std::string kGood = tensor(kFloats, 0, {6}, {1});

std::string called(std::string_view module, std::string_view name, const std::string& arguments) {
  return kBegin + global(module, name) + arguments + kReduce + kStop;
}

void add_calls(std::vector<Hostile>& all) {
  const std::string command = text("touch /tmp/sluice-was-here") + kTuple1;
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"builtins", "exec"},
                                                        {"builtins", "__import__"},
                                                        {"builtins", "getattr"},
                                                        {"__builtin__", "eval"},
                                                        {"subprocess", "Popen"},
                                                        {"subprocess", "check_output"},
                                                        {"runpy", "_run_code"},
                                                        {"importlib", "import_module"},
                                                        {"pickle", "loads"},
                                                        {"torch", "load"},
                                                        {"torch.serialization", "load"},
                                                        {"torch.hub", "load"},
                                                        {"torch._utils", "_rebuild_tensor"},
                                                        {"torch._utils", "_rebuild_sparse_tensor"},
                                                        {"torch._tensor", "_rebuild_from_type_v2"},
                                                        {"torch.storage", "_load_from_bytes"},
                                                        {"numpy.core.multiarray", "_reconstruct"},
                                                        {"shutil", "rmtree"},
                                                        {"webbrowser", "open"},
                                                        {"socket", "socket"},
                                                        {"codecs", "decode"},
                                                        {"operator", "attrgetter"},
                                                        {"collections", "Counter"},
                                                        {"torch", "FloatStorage.__reduce__"},
                                                        {"", ""}}) {
    all.push_back(
        {module + "." + name, with_pickle(called(module, name, command)), fmt::format("'{}.{}'", module, name)});
  }
  all.push_back({"stack global",
                 with_pickle(kBegin + text("os") + text("system") + kStackGlobal + command + kReduce + kStop),
                 "STACK_GLOBAL"});
  all.push_back({"dotted through an allowed name",
                 with_pickle(called("torch._utils", "_rebuild_tensor_v2.__globals__", command)), "GLOBAL"});
  all.push_back({"module and name cut elsewhere",
                 with_pickle(kBegin + text("torch._utils._rebuild") + text("tensor_v2") + kStackGlobal + kStop),
                 "STACK_GLOBAL"});
  all.push_back({"name with a newline", with_pickle(kBegin + text("torch\nos") + text("system") + kStackGlobal + kStop),
                 "STACK_GLOBAL"});
  all.push_back({"call of a text", with_pickle(kBegin + text("os.system") + command + kReduce + kStop), "REDUCE"});
  all.push_back({"call of a call", with_value(kGood + kEmptyTuple + kReduce), "REDUCE"});
  all.push_back({"call without a tuple",
                 with_pickle(kBegin + global("torch._utils", "_rebuild_tensor_v2") + kNone + kReduce + kStop),
                 "REDUCE"});
  all.push_back({"OrderedDict of arguments", with_pickle(called("collections", "OrderedDict", command)), "REDUCE"});
  all.push_back({"state on a tensor",
                 with_value(kGood + kEmptyDict + text("__setstate__") + text("x") + kSetItem + kBuild), "BUILD"});
  all.push_back({"state that is no dict", with_pickle(kBegin + kOrderedDict + text("x") + kBuild + kStop), "BUILD"});
  all.push_back({"state on a plain dict", with_pickle(kBegin + kEmptyDict + kEmptyDict + kBuild + kStop), "BUILD"});
}

void add_opcodes(std::vector<Hostile>& all) {
  const auto refused = [&](const std::string& name, const std::string& code) {
    all.push_back({name, with_pickle(kBegin + code + kStop), fmt::format("opcode {}", name)});
  };
  refused("INST", "(ios\nsystem\n");
  refused("OBJ", kMark + global("collections", "OrderedDict") + "o");
  refused("NEWOBJ", global("collections", "OrderedDict") + kEmptyTuple + "\x81"s);
  refused("NEWOBJ_EX", global("collections", "OrderedDict") + kEmptyTuple + kEmptyDict + "\x92"s);
  refused("EXT1", "\x82\x01");
  refused("EXT4", "\x84\x01\0\0\0"s);
  refused("PERSID", "Pfile:///etc/passwd\n");
  refused("NEXT_BUFFER", "\x97");
  refused("LONG4", "\x8b\xff\xff\xff\x7f"s);
  refused("LONG1", "\x8a\xff"s + std::string(255, '\x7f'));
  refused("LONG", "L99999999999999999999L\n");
  refused("UNICODE", "Vx\n");
  refused("BINBYTES8", "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"s);
  refused("BYTEARRAY8", "\x96\xff\xff\xff\xff\xff\xff\xff\x7f"s);
  refused("BINUNICODE8", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s);
  refused("BINUNICODE", "X\xff\xff\xff\xff");
  refused("FRAME", "\x95\xff\xff\xff\xff\xff\xff\xff\xff"s);
  refused("LONG_BINPUT", kNone + "r\xff\xff\xff\xff");
  refused("LONG_BINGET", "j\xff\xff\xff\xff");
  refused("BINGET", get(3));
  refused("BINPUT", put(0));
  refused("TUPLE2", kNone + kTuple2);
  refused("TUPLE", kTuple);
  refused("SETITEMS", kEmptyDict + kMark + text("odd") + kSetItems);
  refused("SETITEM", kEmptyList + text("k") + kNone + kSetItem);
  refused("APPEND", kEmptyDict + kNone + kAppend);
  refused("POP", "0");
  refused("PROTO", "\x80\x06"s);
  refused("0xff", "\xff");
  all.push_back({"protocol 0", with_pickle("(dp0\n."), "PROTO"});
  all.push_back({"no end", with_pickle(kBegin + kNone), "unexpected end of file"});
  all.push_back({"nothing", with_pickle(""), "PROTO"});
  all.push_back({"bytes behind the end", with_pickle(state_dict({}) + "cos\nsystem\n"), "after the end"});
  all.push_back({"two values", with_pickle(kBegin + kNone + kEmptyDict + kStop), "unused values"});
  all.push_back({"marks left", with_pickle(kBegin + kMark + kEmptyDict + kStop), "unused values"});
}

void add_bombs(std::vector<Hostile>& all) {
  const auto repeated = [](const std::string& what, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += what;
    return out;
  };
  std::string doubling = kBegin + kEmptyList + put(0);
  for (int i = 0; i < 60; ++i) doubling += get(0) + get(0) + kTuple2 + put(0);
  all.push_back({"memo doubling 60 times", with_pickle(doubling + kStop), "unused values"});
  all.push_back({"three million values", with_pickle(kBegin + repeated(kNone, 3'000'000) + kStop), "more than"});
  all.push_back({"three million marks", with_pickle(kBegin + repeated(kMark, 3'000'000) + kStop), "marks"});
  all.push_back(
      {"five million references", with_pickle(kBegin + kNone + put(0) + repeated(get(0), 5'000'000) + kStop), "stack"});
  all.push_back({"a large pickle", with_pickle(kBegin + std::string(33u << 20, 'N') + kStop), "at most"});
  all.push_back({"tuples a million deep", with_pickle(kBegin + kNone + repeated(kTuple1, 1'000'000) + kStop),
                 "contains a tuple"});
  all.push_back(
      {"a list in itself", with_pickle(kBegin + kEmptyList + put(0) + get(0) + kAppend + kStop), "contains a list"});
  all.push_back({"a dictionary in itself",
                 with_pickle(kBegin + kOrderedDict + put(0) + text("w") + get(0) + kSetItem + kStop),
                 "expected a tensor"});
}

void add_tensors(std::vector<Hostile>& all) {
  const auto shaped = [&](const std::string& name, int64_t offset, const std::vector<int64_t>& size,
                          const std::vector<int64_t>& stride, const std::string& message) {
    all.push_back({name, one_tensor(offset, size, stride), message});
  };
  shaped("beyond the storage", 1, {6}, {1}, "exceeds its storage");
  shaped("negative offset", -1, {1}, {1}, "exceeds its storage");
  shaped("negative size", 0, {-1}, {1}, "negative");
  shaped("negative stride", 5, {6}, {-1}, "negative");
  shaped("stride beyond", 0, {2}, {6}, "exceeds its storage");
  shaped("overflowing size", 0, {INT64_MAX, 2}, {0, 0}, "exceeds its storage");
  shaped("overflowing stride", 0, {3}, {INT64_MAX}, "exceeds its storage");
  shaped("overflowing offset", INT64_MAX, {2}, {1}, "exceeds its storage");
  shaped("expanded to a terabyte", 0, {1 << 20, 1 << 20}, {0, 0}, "repeats elements");
  shaped("five dimensions", 0, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, "dimensions");
  shaped("strides of another rank", 0, {2, 3}, {1}, "strides");
  shaped("empty beyond the storage", 7, {0}, {1}, "exceeds its storage");
  const auto value = [&](const std::string& name, const std::string& code, const std::string& message) {
    all.push_back({name, with_value(code), message});
  };
  value("more elements than the storage has", tensor(storage("FloatStorage", "0", 7), 0, {1}, {1}), "has 6 elements");
  value("negative elements", tensor(storage("FloatStorage", "0", -1), 0, {1}, {1}), "elements");
  value("wider elements", tensor(storage("DoubleStorage", "0", 6), 0, {6}, {1}), "has 3 elements");
  value("storage that is not there", tensor(storage("FloatStorage", "1", 6), 0, {6}, {1}),
        "data/1 is not in the archive");
  value("storage by a path", tensor(storage("FloatStorage", "../data.pkl", 6), 0, {6}, {1}), "is not in the archive");
  value("class that is none", tensor(storage("float8_e4m3fn", "0", 6), 0, {6}, {1}), "is not a storage class");
  value("complex numbers", tensor(storage("ComplexFloatStorage", "0", 3), 0, {3}, {1}), "'torch.ComplexFloatStorage'");
  value("a persistent id that is no storage", tensor(text("file:///etc/passwd") + kPersistent, 0, {6}, {1}),
        "invalid storage");
  value("no storage", tensor(kNone, 0, {6}, {1}), "the storage is None");
  value("too few arguments", global("torch._utils", "_rebuild_tensor_v2") + kEmptyTuple + kReduce, "missing");
  value("parameter of a parameter",
        global("torch._utils", "_rebuild_parameter") + global("torch._utils", "_rebuild_parameter") + kGood + kTuple1 +
            kReduce + kTuple1 + kReduce,
        "expected a tensor");
  value("metadata",
        global("torch._utils", "_rebuild_tensor_v2") + kMark + kFloats + integer(0) + tuple({6}) + tuple({1}) + kFalse +
            kOrderedDict + kEmptyDict + text("neg") + kTrue + kSetItem + kTuple + kReduce,
        "metadata");
  value("an integer", integer(3), "expected a tensor");
  value("a nested dictionary", kOrderedDict, "expected a tensor");
  all.push_back(
      {"a key that is no text", with_pickle(kBegin + kEmptyDict + integer(1) + kGood + kSetItem + kStop), "as a key"});
  all.push_back({"a tensor twice", with_pickle(state_dict({{"w", kGood}, {"w", kGood}})), "twice"});
  all.push_back({"a list of tensors", with_pickle(kBegin + kEmptyList + kGood + kAppend + kStop), "contains a list"});
  std::vector<std::pair<std::string, std::string>> views;
  for (int i = 0; i < 2000; ++i)
    views.push_back({fmt::format("v{}", i), tensor(storage("FloatStorage", "0", 65536), 0, {256, 256}, {1, 256})});
  all.push_back({"gigabytes of transposed views", zip(torch_files(state_dict(views), {{"0", counting(65536)}})),
                 "exceed the size of the file"});
}

void add_archives(std::vector<Hostile>& all) {
  const std::string pickle = state_dict({{"w", kGood}});
  const auto files = torch_files(pickle, {{"0", counting(6)}});
  const std::string good = zip(files);
  const auto changed = [&](const std::string& name, const std::string& message, auto&& change, bool zip64 = false) {
    auto copy = files;
    change(copy);
    all.push_back({name, zip(copy, zip64), message});
  };
  changed("a name that leads out", "inside the archive", [](auto& f) { f[2].name = "archive/../../etc/cron.d/x"; });
  changed("an absolute name", "inside the archive", [](auto& f) { f[2].name = "/etc/passwd"; });
  changed("a name with NUL", "inside the archive", [](auto& f) { f[2].name = "archive/data/0\0x"s; });
  changed("a name with a backslash", "inside the archive", [](auto& f) { f[2].name = "archive\\data\\0"; });
  changed("a compressed member", "compressed (method 8)", [](auto& f) { f[2].method = 8; });
  changed("an encrypted member", "encrypted", [](auto& f) { f[2].flags = 1; });
  changed("a member twice", "appears twice", [](auto& f) { f.push_back(f[2]); });
  changed("overlapping members", "", [&](auto& f) { f[2].size_shift = 200; });
  changed("a member beyond the file", "exceed the end of the file", [](auto& f) { f[2].size_shift = 1 << 30; });
  changed("a member that begins elsewhere", "does not begin", [](auto& f) { f[2].local_shift = 1; });
  changed("a member that begins beyond", "does not begin", [](auto& f) { f[2].local_shift = 1 << 30; });
  changed(
      "64-bit sizes that overflow", "exceed the end of the file", [](auto& f) { f[2].size_shift = -25; }, true);
  changed(
      "64-bit offsets that overflow", "does not begin", [](auto& f) { f[2].local_shift = INT64_MIN; }, true);
  changed("another name inside", "a different name", [](auto& f) { f[2].local_name = "archive/data/1"; });
  changed("no pickle", "no data.pkl", [](auto& f) { f[0].name = "archive/data.txt"; });
  changed("a TorchScript program", "TorchScript", [](auto& f) { f.push_back({"archive/constants.pkl", "x"}); });
  changed("the other byte order", "byteorder 'big'", [](auto& f) { f[1].data = "big"; });
  all.push_back({"cut in half", good.substr(0, good.size() / 2), "truncated"});
  all.push_back({"one byte short", good.substr(0, good.size() - 1), "truncated"});
  all.push_back({"empty", "", "not a torch.save file"});
  all.push_back({"only a signature", "PK\3\4", "too short"});
  std::string counted = good;
  counted[counted.size() - 12] = '\xff';
  all.push_back({"more members than the directory has", counted, "ZIP archive"});
  std::string flipped = good;
  flipped[good.find("FloatStorage")] ^= 1;
  all.push_back({"a flipped bit in the pickle", flipped, "wrong checksum"});
  all.push_back(
      {"the legacy format", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."s, "before 1.6"});
  all.push_back({"the tar format", std::string(257, '\0') + "ustar" + std::string(250, '\0'), "tar format"});
  all.push_back({"a bare pickle", state_dict({}), "bare pickle"});
  all.push_back({"a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"});
}

std::vector<Hostile> hostile_files() {
  std::vector<Hostile> all;
  add_calls(all);
  add_opcodes(all);
  add_bombs(all);
  add_tensors(all);
  add_archives(all);
  return all;
}

TEST(TorchFile, HostileFilesAreRefusedByName) {
  const std::vector<Hostile> all = hostile_files();
  EXPECT_GE(all.size(), 100u);
  for (const Hostile& hostile : all) {
    SCOPED_TRACE(hostile.name);
    const PeakMemory memory;
    try {
      read(hostile.file);
      ADD_FAILURE() << "was read";
    } catch (const Error& e) {
      EXPECT_TRUE(e.code == ErrorCode::kCorruptFile || e.code == ErrorCode::kUnsupportedModel);
      EXPECT_THAT(e.what(), AllOf(HasSubstr("model.bin: "), HasSubstr(hostile.message)));
    }
    if (!kSanitized) {
      EXPECT_LT(memory.growth_bytes(), 300u << 20);
    }
  }
}

// A file that is cut or changed anywhere gives an error or a tensor inside the file, never a read outside it.
TEST(TorchFile, EveryByteMayBeWrong) {
  const std::string good = one_tensor(0, {2, 3}, {3, 1});
  for (size_t size = 0; size < good.size(); ++size) EXPECT_THROW(read(good.substr(0, size)), Error) << size;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[at] ^= static_cast<char>(1 << bit);
      try {
        for (const TensorEntry& entry : read(bad).entries) values(entry);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace sluice::torch_file_test
