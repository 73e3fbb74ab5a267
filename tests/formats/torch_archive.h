// Writes archives like torch.save, with every way to corrupt them: pickles opcode by opcode, ZIP files field by field.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/torch/stored_zip.h"

namespace sluice::testing {

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Pieces of a pickle; a pickle is their concatenation.
namespace pickle {

using namespace std::string_literals;
using namespace std::string_view_literals;

inline const std::string kBegin = "\x80\x02"s;  // PROTO 2
inline const std::string kNone = "N", kTrue = "\x88"s, kFalse = "\x89"s, kMark = "(", kStop = ".";
inline const std::string kReduce = "R", kPersistent = "Q", kTuple = "t", kEmptyTuple = ")", kEmptyDict = "}";
inline const std::string kSetItem = "s", kSetItems = "u", kBuild = "b", kAppend = "a", kEmptyList = "]";
inline const std::string kTuple1 = "\x85"s, kTuple2 = "\x86"s, kTuple3 = "\x87"s, kStackGlobal = "\x93"s;

inline std::string global(std::string_view module, std::string_view name) {
  return fmt::format("c{}\n{}\n", module, name);
}
inline std::string text(std::string_view value) {
  return "X"s + little_endian(static_cast<uint32_t>(value.size())) + std::string(value);
}
// Encodes an integer like Python: the smallest opcode that holds the value.
inline std::string integer(int64_t value) {
  if (value >= 0 && value < 256) return "K"s + little_endian(static_cast<uint8_t>(value));
  if (value >= 0 && value < 65536) return "M"s + little_endian(static_cast<uint16_t>(value));
  if (value >= INT32_MIN && value <= INT32_MAX) return "J"s + little_endian(static_cast<int32_t>(value));
  return "\x8a\x08"s + little_endian(value);
}
inline std::string tuple(const std::vector<int64_t>& values) {
  std::string out = kMark;
  for (const int64_t v : values) out += integer(v);
  return out + kTuple;
}
inline std::string put(uint8_t index) { return "q"s + little_endian(index); }
inline std::string get(uint8_t index) { return "h"s + little_endian(index); }
inline const std::string kOrderedDict = global("collections", "OrderedDict") + kEmptyTuple + kReduce;

inline std::string storage(std::string_view type, std::string_view key, int64_t elements) {
  return kMark + text("storage") + global("torch", type) + text(key) + text("cpu") + integer(elements) + kTuple +
         kPersistent;
}
// torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, OrderedDict())
inline std::string tensor(std::string_view storage, int64_t offset, const std::vector<int64_t>& size,
                          const std::vector<int64_t>& stride) {
  return global("torch._utils", "_rebuild_tensor_v2") + kMark + std::string(storage) + integer(offset) + tuple(size) +
         tuple(stride) + kFalse + kOrderedDict + kTuple + kReduce;
}
// A state dict as torch writes it: an OrderedDict with _metadata as its state.
inline std::string state_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = kBegin + kOrderedDict + kMark;
  for (const auto& [name, value] : items) out += text(name) + value;
  return out + kSetItems + kEmptyDict + text("_metadata") + kOrderedDict + kSetItem + kBuild + kStop;
}

}  // namespace pickle

struct ZipFile {
  std::string name, data;
  uint16_t method = 0, flags = 0;
  int64_t local_shift = 0;   // added to the member's offset in the directory
  int64_t size_shift = 0;    // added to both sizes in the directory
  std::string local_name{};  // a different name in the member's local header
};

inline uint32_t crc32_of(std::string_view data) { return zip_crc32(std::as_bytes(std::span(data))); }

using namespace std::string_literals;

// With `zip64`, sizes and offsets use 64-bit fields, as torch does beyond 4 GiB.
inline std::string zip(const std::vector<ZipFile>& files, bool zip64 = false) {
  std::string out, directory;
  const auto u16 = [](uint64_t v) { return little_endian(static_cast<uint16_t>(v)); };
  const auto u32 = [](uint64_t v) { return little_endian(static_cast<uint32_t>(v)); };
  const auto u64 = [](uint64_t v) { return little_endian(v); };
  for (const ZipFile& file : files) {
    const uint64_t local = out.size() + static_cast<uint64_t>(file.local_shift);
    const uint64_t size = file.data.size() + static_cast<uint64_t>(file.size_shift);
    const std::string common = u16(0) + u16(file.flags) + u16(file.method) + u32(0) + u32(crc32_of(file.data));
    const std::string sizes = zip64 ? u32(UINT32_MAX) + u32(UINT32_MAX) : u32(size) + u32(size);
    const std::string extra = zip64 ? u16(1) + u16(24) + u64(size) + u64(size) + u64(local) : "";
    const std::string& local_name = file.local_name.empty() ? file.name : file.local_name;
    // torch pads the local header so that the data begins at a multiple of 64.
    const size_t begin = out.size() + 30 + local_name.size() + 4;
    const std::string filling = "FB"s + u16((64 - begin % 64) % 64) + std::string((64 - begin % 64) % 64, 'Z');
    out += "PK\3\4"s + u16(0) + common.substr(2) + sizes + u16(local_name.size()) + u16(filling.size()) + local_name +
           filling + file.data;
    directory += "PK\1\2"s + u16(0) + common + sizes + u16(file.name.size()) + u16(extra.size()) + u16(0) + u16(0) +
                 u16(0) + u32(0) + u32(zip64 ? UINT32_MAX : local) + file.name + extra;
  }
  const uint64_t at = out.size();
  out += directory;
  if (zip64) {
    const uint64_t end64 = out.size();
    out += "PK\6\6"s + u64(44) + u16(45) + u16(45) + u32(0) + u32(0) + u64(files.size()) + u64(files.size()) +
           u64(directory.size()) + u64(at);
    out += "PK\6\7"s + u32(0) + u64(end64) + u32(1);
  }
  const uint64_t count = zip64 ? UINT16_MAX : files.size();
  return out + "PK\5\6"s + u32(0) + u16(count) + u16(count) + u32(zip64 ? UINT32_MAX : directory.size()) +
         u32(zip64 ? UINT32_MAX : at) + u16(0);
}

struct TorchStorage {
  std::string key, bytes;
};
inline std::vector<ZipFile> torch_files(const std::string& pickle, const std::vector<TorchStorage>& storages) {
  std::vector<ZipFile> files{{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}};
  for (const auto& [key, bytes] : storages) files.push_back({"archive/data/" + key, bytes});
  files.push_back({"archive/version", "3\n"});
  return files;
}

}  // namespace sluice::testing
