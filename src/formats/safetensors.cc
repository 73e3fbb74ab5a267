// Reads safetensors headers with a streaming parser that stores only the entries. Every number is checked in 64 bits
// before it is used.
#include "formats/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian and mapped as they are");

constexpr size_t kPrefix = 8;  // the length of the header as u64
constexpr uint64_t kMaxHeader = 32u << 20;
constexpr size_t kMaxTensors = 300'000;
// Types of the format (its `Dtype`) without a descriptor in Sluice.
constexpr std::array<std::string_view, 6> kUnsupportedTypes = {"F4",  "F6_E2M3",     "F6_E3M2",
                                                               "C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};

struct Declared {
  TensorEntry entry;
  uint64_t begin = 0, end = 0;  // in bytes from the end of the header
};

// Receives the JSON events of the header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  [[noreturn]] void fail(std::string_view message, ErrorCode code = ErrorCode::kCorruptFile) const {
    if (place_ < Place::kEntry) throw Error(code, fmt::format("{}: safetensors header: {}", file_, message));
    fail_at(current_.entry.name, message, code);
  }
  [[noreturn]] void fail_at(std::string_view tensor, std::string_view message,
                            ErrorCode code = ErrorCode::kCorruptFile) const {
    throw Error(code, fmt::format("{}: tensor {}: {}", file_, dump_json(tensor.substr(0, 128)), message));
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kEntry) {
      place_ = current_.entry.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
    } else {
      fail("unexpected object");
    }
    return true;
  }

  bool key(string_t& key) override {
    if (place_ == Place::kRoot) {
      current_ = {};
      current_.entry.name = std::move(key);
      numbers_ = -1;
      has_shape_ = has_offsets_ = false;
      place_ = Place::kEntry;
    } else if (place_ == Place::kTensor) {
      field_ = std::move(key);
    } else {
      metadata_key_ = std::move(key);
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (!metadata_.emplace(metadata_key_, value).second) {
        fail(fmt::format("__metadata__: duplicate key \"{}\"", metadata_key_.substr(0, 64)));
      }
    } else if (place_ == Place::kTensor && field_ == "dtype") {
      if (current_.entry.dtype != nullptr) fail("duplicate key \"dtype\"");
      current_.entry.dtype = find_safetensors_dtype(value);
      if (current_.entry.dtype == nullptr) fail_type(value);
    } else {
      fail("unexpected string");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || (field_ != "shape" && field_ != "data_offsets")) {
      fail("unexpected array");
    }
    bool& seen = field_ == "shape" ? has_shape_ : has_offsets_;
    if (seen) fail(fmt::format("duplicate key \"{}\"", field_));
    seen = true;
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    numbers_ = 0;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      constexpr int kMost = 8;
      if (numbers_ == kMost) fail(fmt::format("more than {} dimensions", kMost), ErrorCode::kUnsupportedModel);
      if (value > INT64_MAX) fail(fmt::format("dimension {} is out of range", value));
      add_dimension(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets && numbers_ < 2) {
      (numbers_ == 0 ? current_.begin : current_.end) = value;
    } else {
      fail("unexpected number");
    }
    ++numbers_;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && numbers_ != 2) fail("data_offsets must have two numbers");
    place_ = Place::kTensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (current_.entry.dtype == nullptr || !has_shape_ || !has_offsets_) {
        fail("dtype, shape or data_offsets is missing");
      }
      check_size();
      place_ = Place::kRoot;
      if (tensors_.size() == kMaxTensors) fail(fmt::format("more than {} tensors", kMaxTensors));
      tensors_.push_back(std::move(current_));
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kRoot;
      if (std::exchange(has_metadata_, true)) fail("duplicate key \"__metadata__\"");
    }
    return true;
  }

  bool null() override { fail("unexpected null"); }
  bool boolean(bool) override { fail("unexpected boolean"); }
  bool number_integer(number_integer_t value) override { fail(fmt::format("{} is negative", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    fail(fmt::format("{} is not an unsigned 64-bit integer", text.substr(0, 64)));
  }
  bool binary(binary_t&) override { fail("not JSON"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    place_ = Place::kRoot;
    fail(fmt::format("not JSON (byte {})", position));
  }

  std::vector<Declared>& tensors() { return tensors_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

 private:
  // Errors up to kMetadata concern no tensor. From kEntry on, they concern the tensor whose key came last.
  enum class Place { kStart, kRoot, kMetadata, kEntry, kTensor, kShape, kOffsets };

  [[noreturn]] void fail_type(std::string_view type) const {
    const bool known = std::find(kUnsupportedTypes.begin(), kUnsupportedTypes.end(), type) != kUnsupportedTypes.end();
    if (known) fail(fmt::format("dtype {} is not supported", type), ErrorCode::kUnsupportedModel);
    fail(fmt::format("unknown dtype \"{}\"", type.substr(0, 64)));
  }

  // Dimensions that a shape has no room for become part of its last one. Only encoders of images and videos have such
  // tensors (convolutions in space and time), and nothing here reads them.
  void add_dimension(int64_t size) {
    Shape& shape = current_.entry.shape;
    if (shape.rank() < Shape::kMaxRank) return shape.append(size);
    int64_t last = 0;
    if (__builtin_mul_overflow(shape[-1], size, &last)) {
      fail(fmt::format("the size of shape {} overflows", shape.str()));
    }
    shape = {shape[0], shape[1], shape[2], last};
  }

  // Checks dtype x shape = data_offsets. A dimension of 0 makes the size 0, but the other dimensions must not overflow.
  void check_size() {
    TensorEntry& entry = current_.entry;
    uint64_t bytes = static_cast<uint64_t>(entry.dtype->block_bytes);
    bool empty = false, overflow = false;
    for (int i = 0; i < entry.shape.rank(); ++i) {
      if (entry.shape[i] == 0)
        empty = true;
      else
        overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(entry.shape[i]), &bytes);
    }
    if (overflow || bytes > INT64_MAX) fail(fmt::format("the size of shape {} overflows", entry.shape.str()));
    if (empty) bytes = 0;
    if (current_.begin > current_.end) {
      fail(fmt::format("data_offsets [{}, {}] are in descending order", current_.begin, current_.end));
    }
    if (current_.end - current_.begin != bytes) {
      fail(fmt::format("{} {} has {} bytes, but data_offsets [{}, {}] span {}", entry.dtype->safetensors,
                       entry.shape.str(), bytes, current_.begin, current_.end, current_.end - current_.begin));
    }
    entry.bytes = bytes;
  }

  const std::string& file_;
  Place place_ = Place::kStart;
  Declared current_;
  std::string field_, metadata_key_;
  int numbers_ = 0;  // numbers read in the current array
  bool has_shape_ = false, has_offsets_ = false, has_metadata_ = false;
  std::vector<Declared> tensors_;
  std::map<std::string, std::string> metadata_;
};

std::string_view header_of(std::span<const std::byte> file, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto fail = [&](const std::string& message) { throw Error(ErrorCode::kCorruptFile, name + ": " + message); };
  if (text.starts_with("version https://git-lfs")) {
    fail("this is a Git LFS pointer, not the file itself (run git lfs pull)");
  }
  if (file.size() < kPrefix) fail(fmt::format("{} bytes are too short for a safetensors file", file.size()));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kPrefix);
  if (length > kMaxHeader) {
    fail(fmt::format("safetensors header of {} bytes (at most {} are allowed)", length, kMaxHeader));
  }
  if (length > file.size() - kPrefix) {
    fail(fmt::format("safetensors header of {} bytes in a file of {} bytes", length, file.size()));
  }
  if (length < 2 || text[kPrefix] != '{') fail("safetensors header is not a JSON object");
  return text.substr(kPrefix, length);
}

void check_unique(const std::vector<Declared>& tensors, const HeaderReader& reader) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const Declared& t : tensors) names.push_back(t.entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) reader.fail_at(*twice, "duplicate key");
}

}  // namespace

std::vector<TensorEntry> read_safetensors(std::span<const std::byte> file, const std::string& name,
                                          std::map<std::string, std::string>* metadata) {
  const std::string_view header = header_of(file, name);
  const std::span<const std::byte> data = file.subspan(kPrefix + header.size());
  HeaderReader reader(name);
  Json::sax_parse(header, &reader, Json::input_format_t::json, /*strict=*/true);
  std::vector<Declared>& tensors = reader.tensors();
  check_unique(tensors, reader);

  std::sort(tensors.begin(), tensors.end(),
            [](const Declared& a, const Declared& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  uint64_t at = 0;
  for (Declared& t : tensors) {
    if (t.begin != at) {
      reader.fail_at(t.entry.name, fmt::format("begins at byte {}, but the previous tensor ends at {} ({})", t.begin,
                                               at, t.begin > at ? "gap" : "overlap"));
    }
    if (t.end > data.size()) {
      reader.fail_at(t.entry.name, fmt::format("ends at byte {} of {}: the file is truncated", t.end, data.size()));
    }
    t.entry.data = data.data() + t.begin;
    at = t.end;
    entries.push_back(std::move(t.entry));
  }
  if (at != data.size()) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: {} unexpected bytes after the last tensor", name, data.size() - at));
  }
  if (metadata != nullptr) *metadata = std::move(reader.metadata());
  return entries;
}

}  // namespace sluice
