// The GGUF file format, versions 2 and 3 (docs/gguf.md of ggml): a checked reader of metadata and tensor headers. It
// knows nothing about models.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "sluice/error.h"

namespace sluice {

// A metadata value: a view into the mapped file.
struct GgufValue {
  enum class Type : uint32_t {
    kUint8,
    kInt8,
    kUint16,
    kInt16,
    kUint32,
    kInt32,
    kFloat32,
    kBool,
    kString,
    kArray,
    kUint64,
    kInt64,
    kFloat64,
  };
  Type type = Type::kUint8;  // type of the value, or of an array's elements
  bool array = false;
  uint64_t count = 1;                     // number of elements
  const std::byte* data = nullptr;        // a number or bool, or an array of them; unaligned
  std::vector<std::string_view> texts{};  // a string, or an array of strings
};

// Metadata by key. Getters throw Error that names file and key: kCorruptFile when the value has the wrong type or is
// out of range, kUnsupportedModel when it is missing.
class GgufMetadata {
 public:
  std::string file;  // for error messages
  std::map<std::string, GgufValue, std::less<>> values;

  [[noreturn]] void fail(std::string_view key, const std::string& message,
                         ErrorCode code = ErrorCode::kCorruptFile) const;
  const GgufValue* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Returns nullopt when absent. An integer may have any width if it fits. Numbers may be integers; bools must be
  // bools.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  // Returns an empty list when absent.
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;  // bools count as 0 and 1
  const std::vector<std::string_view>& texts(std::string_view key) const;

  std::string_view required_text(std::string_view key) const;
};

struct GgufFile {
  int version = 0;
  GgufMetadata metadata;
  std::vector<TensorEntry> tensors;  // in file order, outermost dimension first; data points into the file
};

// Reads a whole mapped file. The rules are stricter than the format's own. At most 65536 keys of 65535 bytes, 300000
// tensors, strings of 16 MiB, and arrays of 64 Mi elements, not nested. Keys and tensor names are unique. The alignment
// is a power of two from 1 to 1 MiB. Tensors have one to four dimensions and rows of whole blocks; they are aligned,
// inside the file, and do not overlap. Throws Error(kCorruptFile) that names file and key or tensor. Throws
// Error(kUnsupportedModel) for a version, type or nesting that the format allows but Sluice does not.
GgufFile read_gguf(std::span<const std::byte> file, const std::string& name);

}  // namespace sluice
