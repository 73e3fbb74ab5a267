// The GGUF file format, versions 2 and 3 (docs/gguf.md of ggml): checked reader of metadata and tensor headers. Knows
// nothing about models.
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
  Type type = Type::kUint8;  // of the value, or of the elements of an array
  bool array = false;
  uint64_t count = 1;                     // elements
  const std::byte* data = nullptr;        // of a number or bool, or of an array of them; unaligned
  std::vector<std::string_view> texts{};  // of a string, or of an array of strings
};

// Metadata by key. Getters throw Error that names file and key: kCorruptFile for a value of the wrong type or out of
// its range, kUnsupportedModel for a missing one.
class GgufMetadata {
 public:
  std::string file;  // for messages
  std::map<std::string, GgufValue, std::less<>> values;

  [[noreturn]] void fail(std::string_view key, const std::string& message,
                         ErrorCode code = ErrorCode::kCorruptFile) const;
  const GgufValue* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Absent: nullopt. An integer of any width that fits; numbers may be integers too; a bool is only a bool.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  // Absent: empty.
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

// Reads a whole mapped file. Rules, stricter than the format's own: at most 65536 keys of 65535 bytes and 300000
// tensors, strings of 16 MiB, arrays of 64 Mi elements that are no arrays themselves; keys and tensor names unique;
// alignment a power of two from 1 to 1 MiB; one to four dimensions, rows of whole blocks; tensors aligned, within the
// file and without overlap. Throws Error(kCorruptFile) that names file and key or tensor; Error(kUnsupportedModel) for
// a version, type or nesting that the format has and Sluice has not.
GgufFile read_gguf(std::span<const std::byte> file, const std::string& name);

}  // namespace sluice
