// Reads GGUF headers. Every count is checked against the remaining bytes before anything is allocated for it.
#include "formats/gguf/file.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian and mapped as they are");

using Type = GgufValue::Type;

constexpr uint64_t kMaxKeys = 1u << 16, kMaxKeyBytes = 65535, kMaxGgufTensors = 300'000, kMaxNameBytes = 255;
constexpr uint64_t kMaxTextBytes = 16u << 20, kMaxArray = 64u << 20;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 1u << 20;

// Returns the size of a number or bool in bytes; 0 for strings and arrays.
uint64_t bytes_of(Type type) {
  switch (type) {
    case Type::kUint8:
    case Type::kInt8:
    case Type::kBool:
      return 1;
    case Type::kUint16:
    case Type::kInt16:
      return 2;
    case Type::kUint32:
    case Type::kInt32:
    case Type::kFloat32:
      return 4;
    case Type::kUint64:
    case Type::kInt64:
    case Type::kFloat64:
      return 8;
    case Type::kString:
    case Type::kArray:
      break;
  }
  return 0;
}

// A position in the file, and the item being read there, for error messages.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  [[noreturn]] void fail(std::string_view message, ErrorCode code = ErrorCode::kCorruptFile) const {
    throw Error(code, fmt::format("{}: {}{}{}", name_, place_, place_.empty() ? "" : ": ", message));
  }
  void at(std::string_view kind, std::string_view what) {
    place_ = fmt::format("{} {}", kind, dump_json(std::string(what.substr(0, 128))));
  }
  void at(std::string place) { place_ = std::move(place); }

  uint64_t left() const { return file_.size() - at_; }
  uint64_t position() const { return at_; }

  const std::byte* take(uint64_t bytes, std::string_view what) {
    if (bytes > left()) fail(fmt::format("{} has {} bytes, but the file has only {} left", what, bytes, left()));
    const std::byte* data = file_.data() + at_;
    at_ += bytes;
    return data;
  }
  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }
  std::string_view text(std::string_view what, uint64_t most) {
    const auto length = number<uint64_t>("a length");
    if (length > most) fail(fmt::format("{} has {} bytes (at most {} are allowed)", what, length, most));
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }

 private:
  std::span<const std::byte> file_;
  const std::string& name_;
  uint64_t at_ = 0;
  std::string place_;
};

Type read_type(Cursor& in) {
  const auto type = in.number<uint32_t>("a type");
  if (type > static_cast<uint32_t>(Type::kFloat64)) in.fail(fmt::format("unknown value type {}", type));
  return static_cast<Type>(type);
}

GgufValue read_value(Cursor& in) {
  GgufValue value;
  value.type = read_type(in);
  if (value.type == Type::kArray) {
    value.array = true;
    value.type = read_type(in);
    if (value.type == Type::kArray) in.fail("an array of arrays is not supported", ErrorCode::kUnsupportedModel);
    value.count = in.number<uint64_t>("a count");
    const uint64_t least = value.type == Type::kString ? 8 : bytes_of(value.type);
    if (value.count > kMaxArray) {
      in.fail(fmt::format("array of {} elements (at most {} are allowed)", value.count, kMaxArray));
    }
    if (value.count > in.left() / least) {
      in.fail(fmt::format("array of {} elements, but the file has only {} bytes left", value.count, in.left()));
    }
  }
  if (value.type == Type::kString) {
    value.texts.reserve(value.count);
    for (uint64_t i = 0; i < value.count; ++i) value.texts.push_back(in.text("a string", kMaxTextBytes));
    return value;
  }
  value.data = in.take(value.count * bytes_of(value.type), "a value");
  if (value.type == Type::kBool) {
    for (uint64_t i = 0; i < value.count; ++i) {
      if (std::to_integer<int>(value.data[i]) > 1) in.fail("bool is neither 0 nor 1");
    }
  }
  return value;
}

struct Header {
  uint64_t tensors, keys;
};
Header read_header(Cursor& in, std::span<const std::byte> file, int& version) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with("version https://git-lfs")) {
    in.fail("this is a Git LFS pointer, not the file itself (run git lfs pull)");
  }
  if (!text.starts_with("GGUF")) in.fail("not a GGUF file: it does not begin with \"GGUF\"");
  in.take(4, "the magic");
  const auto number = in.number<uint32_t>("the version");
  if ((number & 0xffff) == 0) in.fail("big-endian GGUF files are not supported", ErrorCode::kUnsupportedModel);
  if (number != 2 && number != 3) {
    in.fail(fmt::format("GGUF version {} is not supported (expected 2 or 3)", number), ErrorCode::kUnsupportedModel);
  }
  version = static_cast<int>(number);
  const auto tensors = in.number<uint64_t>("the number of tensors");
  const auto keys = in.number<uint64_t>("the number of keys");
  constexpr uint64_t kLeastKey = 8 + 4 + 1, kLeastTensor = 8 + 4 + 8 + 4 + 8;
  if (tensors > kMaxGgufTensors || tensors > in.left() / kLeastTensor) {
    in.fail(fmt::format("tensor count {} is too large", tensors));
  }
  if (keys > kMaxKeys || keys > in.left() / kLeastKey) in.fail(fmt::format("metadata key count {} is too large", keys));
  return {tensors, keys};
}

void read_metadata(Cursor& in, uint64_t keys, GgufMetadata& metadata) {
  for (uint64_t i = 0; i < keys; ++i) {
    in.at(fmt::format("metadata key {} of {}", i + 1, keys));
    const std::string_view key = in.text("a key", kMaxKeyBytes);
    if (key.empty()) in.fail("name is empty");
    in.at("metadata", key);
    if (!metadata.values.emplace(key, read_value(in)).second) in.fail("duplicate key");
  }
}

uint64_t alignment_of(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  const int64_t alignment = metadata.integer(kKey).value_or(kDefaultAlignment);
  if (alignment < 1 || alignment > static_cast<int64_t>(kMaxAlignment) ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    metadata.fail(kKey, fmt::format("{} is not a power of two from 1 to {}", alignment, kMaxAlignment));
  }
  return static_cast<uint64_t>(alignment);
}

struct DeclaredTensor {
  TensorEntry entry;
  uint64_t offset = 0;  // from the start of the tensor data
};

// Reads type, dimensions and size of one tensor. Products are checked for overflow before they are used.
DeclaredTensor read_tensor(Cursor& in, uint64_t index) {
  in.at(fmt::format("tensor {}", index + 1));
  DeclaredTensor out;
  out.entry.name = in.text("a name", kMaxNameBytes);
  if (out.entry.name.empty()) in.fail("name is empty");
  in.at("tensor", out.entry.name);
  const auto rank = in.number<uint32_t>("the number of dimensions");
  if (rank < 1 || rank > Shape::kMaxRank) {
    in.fail(fmt::format("{} dimensions (expected 1 to {})", rank, Shape::kMaxRank));
  }
  uint64_t dims[Shape::kMaxRank], elements = 1;
  bool overflow = false;
  for (uint32_t i = 0; i < rank; ++i) {
    dims[i] = in.number<uint64_t>("a dimension");
    if (dims[i] < 1 || dims[i] > INT64_MAX) in.fail(fmt::format("dimension {} is out of range", dims[i]));
    overflow |= __builtin_mul_overflow(elements, dims[i], &elements);
  }
  const auto type = in.number<uint32_t>("the type");
  out.offset = in.number<uint64_t>("the offset");
  const DType dtype = type <= INT32_MAX ? find_gguf_dtype(static_cast<int>(type)) : nullptr;
  if (dtype == nullptr) in.fail(fmt::format("ggml type {} is not supported", type), ErrorCode::kUnsupportedModel);
  if (dims[0] % static_cast<uint64_t>(dtype->block_size) != 0) {
    in.fail(fmt::format("rows of {} elements are not a multiple of {}, the block size of {}", dims[0],
                        dtype->block_size, dtype->name));
  }
  uint64_t bytes = 0;
  overflow |= __builtin_mul_overflow(elements / dtype->block_size, uint64_t(dtype->block_bytes), &bytes);
  if (overflow || elements > INT64_MAX || bytes > INT64_MAX) in.fail("the product of its dimensions overflows");
  for (uint32_t i = rank; i > 0; --i) out.entry.shape.append(static_cast<int64_t>(dims[i - 1]));
  out.entry.dtype = dtype;
  out.entry.bytes = bytes;
  return out;
}

// Sets the tensors' data pointers. The data begins at the next aligned byte.
void place_tensors(Cursor& in, std::span<const std::byte> file, uint64_t alignment,
                   std::vector<DeclaredTensor>& tensors) {
  const uint64_t begin = (in.position() + alignment - 1) / alignment * alignment;
  const uint64_t size = begin < file.size() ? file.size() - begin : 0;
  std::vector<const DeclaredTensor*> order;
  for (DeclaredTensor& t : tensors) {
    in.at("tensor", t.entry.name);
    if (t.offset % alignment != 0) {
      in.fail(fmt::format("offset {} is not a multiple of the alignment {}", t.offset, alignment));
    }
    if (t.offset > size || t.entry.bytes > size - t.offset) {
      in.fail(fmt::format("{} bytes at offset {} exceed the {} bytes of data: the file is truncated", t.entry.bytes,
                          t.offset, size));
    }
    t.entry.data = file.data() + begin + t.offset;
    order.push_back(&t);
  }
  std::ranges::sort(order, {}, [](const DeclaredTensor* t) { return t->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->entry.bytes <= order[i]->offset) continue;
    in.at("tensor", order[i]->entry.name);
    in.fail(fmt::format("overlaps tensor {}", dump_json(order[i - 1]->entry.name)));
  }
}

}  // namespace

GgufFile read_gguf(std::span<const std::byte> file, const std::string& name) {
  GgufFile out;
  out.metadata.file = name;
  Cursor in(file, name);
  const Header header = read_header(in, file, out.version);
  read_metadata(in, header.keys, out.metadata);
  std::vector<DeclaredTensor> tensors;
  std::set<std::string_view> names;
  tensors.reserve(header.tensors);
  for (uint64_t i = 0; i < header.tensors; ++i) {
    tensors.push_back(read_tensor(in, i));
    if (!names.insert(tensors.back().entry.name).second) in.fail("duplicate name");
  }
  place_tensors(in, file, alignment_of(out.metadata), tensors);
  for (DeclaredTensor& t : tensors) out.tensors.push_back(std::move(t.entry));
  return out;
}

}  // namespace sluice
