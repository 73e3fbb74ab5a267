// Reads the tensors of a torch.save archive, in the layout of torch/serialization.py and torch/_utils.py.
#include "formats/torch/torch_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"
#include "formats/torch/pickle.h"
#include "formats/torch/stored_zip.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kRebuildV2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildV3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kUntypedStorage = "torch.storage.UntypedStorage";

struct TorchType {
  std::string_view name;  // name of a storage class or of a dtype
  DType dtype;
};
constexpr auto kTypes = std::to_array<TorchType>({{"torch.FloatStorage", &kFloat32},
                                                  {"torch.BFloat16Storage", &kBFloat16},
                                                  {"torch.HalfStorage", &kFloat16},
                                                  {"torch.DoubleStorage", &kFloat64},
                                                  {"torch.LongStorage", &kInt64},
                                                  {"torch.IntStorage", &kInt32},
                                                  {"torch.ShortStorage", &kInt16},
                                                  {"torch.CharStorage", &kInt8},
                                                  {"torch.ByteStorage", &kUInt8},
                                                  {"torch.BoolStorage", &kBool},
                                                  {kUntypedStorage, &kUInt8},
                                                  {"torch.float8_e4m3fn", &kFloat8E4M3},
                                                  {"torch.float8_e5m2", &kFloat8E5M2},
                                                  {"torch.float8_e8m0fnu", &kFloat8E8M0},
                                                  {"torch.uint16", &kUInt16},
                                                  {"torch.uint32", &kUInt32},
                                                  {"torch.uint64", &kUInt64}});

// All globals that a pickle may name.
constexpr auto kGlobals = [] {
  std::array<std::string_view, kTypes.size() + 3> names{kRebuildV2, kRebuildV3, kRebuildParameter};
  for (size_t i = 0; i < kTypes.size(); ++i) names[i + 3] = kTypes[i].name;
  return names;
}();

bool starts_with(std::span<const std::byte> file, std::string_view prefix, size_t at = 0) {
  return file.size() >= at + prefix.size() && std::memcmp(file.data() + at, prefix.data(), prefix.size()) == 0;
}

// Throws an error that says what a file without the first bytes of an archive is, if it is recognized.
[[noreturn]] void refuse_other_format(std::span<const std::byte> file, const std::string& name) {
  using namespace std::string_view_literals;
  constexpr auto kLegacyMagic = "\x8a\x0al\xfc\x9c"sv;  // pickle of torch's magic number
  const auto old = [&](std::string_view what) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: {} is not supported; load and save the file with torch 1.6 or later", name, what));
  };
  if (starts_with(file, "version https://git-lfs")) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: this is a Git LFS pointer, not the file itself (run git lfs pull)", name));
  }
  if (starts_with(file, "ustar", 257)) old("the tar format of torch before 0.1.10");
  if (starts_with(file, "\x80\x02") && starts_with(file, kLegacyMagic, 2)) {
    old("the pickle format of torch before 1.6 (or of _use_new_zipfile_serialization=False)");
  }
  if (starts_with(file, "\x80")) old("a bare pickle");
  throw Error(ErrorCode::kCorruptFile, fmt::format("{}: not a torch.save file (expected a ZIP archive)", name));
}

class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& name) : name_(name), file_bytes_(file.size()) {
    if (!looks_like_zip(file)) refuse_other_format(file, name);
    for (const ZipMember& member : read_stored_zip(file, name)) {
      members_.emplace(member.name, member);
      if (member.name.ends_with("/data.pkl") && std::ranges::count(member.name, '/') == 1) {
        root_ = member.name.substr(0, member.name.find('/') + 1);
      }
    }
    if (root_.empty()) fail("the archive has no data.pkl");
    if (find("constants.pkl") != nullptr) unsupported("TorchScript programs are not supported (expected a state dict)");
    if (const ZipMember* order = find("byteorder"); order != nullptr && text_of(*order) != "little") {
      unsupported(fmt::format("byteorder '{}' is not supported (expected little)", text_of(*order).substr(0, 16)));
    }
  }

  TorchFile read_state_dict() {
    const Pickle pickle = read_pickle();
    const PickleValue& dict = pickle.root();
    if (!dict.is(Kind::kDict)) unsupported(fmt::format("contains {} (expected a state dict)", dict.kind_name()));
    std::unordered_set<std::string_view> seen;
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      const PickleValue& key = *dict.items[i];
      if (!key.is(Kind::kText)) {
        unsupported(fmt::format("the state dict has {} as a key (expected a string)", key.kind_name()));
      }
      tensor_ = key.text;
      if (!seen.insert(key.text).second) fail_tensor("appears twice");
      add(*dict.items[i + 1]);
    }
    return std::move(out_);
  }

  TorchFile read_tensor() {
    const Pickle pickle = read_pickle();
    if (!is_tensor(pickle.root()))
      unsupported(fmt::format("contains {} (expected a tensor)", pickle.root().kind_name()));
    add(pickle.root());
    return std::move(out_);
  }

 private:
  struct Storage {
    DType dtype = nullptr;
    std::span<const std::byte> bytes;  // bytes of all its elements
  };
  // A tensor as torch stores it: a window into a storage, with sizes and strides in elements.
  struct Window {
    Storage storage;
    int64_t offset = 0;
    Shape shape;
    std::array<int64_t, Shape::kMaxRank> strides{};
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", name_, what));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: {}", name_, what));
  }
  [[noreturn]] void fail_tensor(const std::string& what) const { fail(fmt::format("{}: {}", subject(), what)); }
  [[noreturn]] void unsupported_tensor(const std::string& what) const {
    unsupported(fmt::format("{}: {}", subject(), what));
  }
  std::string subject() const {
    return tensor_.empty() ? "the tensor" : fmt::format("tensor {}", dump_json(tensor_.substr(0, 128)));
  }

  Pickle read_pickle() const {
    const ZipMember& data = *find("data.pkl");
    if (zip_crc32(data.data) != data.crc32) fail("data.pkl: wrong checksum");
    return Pickle(data.data, kGlobals, name_);
  }

  static std::string_view text_of(const ZipMember& member) {
    return {reinterpret_cast<const char*>(member.data.data()), member.data.size()};
  }
  const ZipMember* find(std::string_view name) const {
    const auto found = members_.find(fmt::format("{}{}", root_, name));
    return found == members_.end() ? nullptr : &found->second;
  }

  static bool is_call(const PickleValue& value, std::string_view global) {
    return value.is(Kind::kCall) && value.items[0]->text == global;
  }

  // Whether a value is a tensor, or a parameter of one.
  static bool is_tensor(const PickleValue& value) {
    return is_call(value, kRebuildV2) || is_call(value, kRebuildV3) || is_call(value, kRebuildParameter);
  }

  const PickleValue& argument(const PickleValue& call, size_t index, Kind kind, std::string_view what) const {
    const auto& arguments = call.items[1]->items;
    if (index >= arguments.size()) fail_tensor(fmt::format("{} is missing", what));
    const PickleValue& value = *arguments[index];
    if (value.kind != kind) fail_tensor(fmt::format("{} is {}", what, value.kind_name()));
    return value;
  }

  void add(const PickleValue& value) {
    const PickleValue* call = &value;
    if (is_call(*call, kRebuildParameter)) call = &argument(*call, 0, Kind::kCall, "the parameter's tensor");
    if (!is_call(*call, kRebuildV2) && !is_call(*call, kRebuildV3)) {
      unsupported(fmt::format("the state dict has {} under {} (expected a tensor)", value.kind_name(),
                              dump_json(tensor_.substr(0, 128))));
    }
    const Window window = read_window(*call);
    TensorEntry entry;
    entry.name = std::string(tensor_);
    entry.dtype = window.storage.dtype;
    entry.shape = window.shape;
    entry.bytes = static_cast<size_t>(window.shape.elements()) * entry.dtype->block_bytes;
    entry.data =
        dense(window) ? window.storage.bytes.data() + window.offset * entry.dtype->block_bytes : gather(window);
    out_.entries.push_back(std::move(entry));
  }

  // Arguments: (storage, offset, size, stride, requires_grad, hooks, [dtype,] [metadata])
  Window read_window(const PickleValue& call) const {
    const bool v3 = call.items[0]->text == kRebuildV3;
    Window window{.storage = read_storage(argument(call, 0, Kind::kPersistent, "the storage")), .shape = {}};
    if (v3) {
      window.storage.dtype = find_type(argument(call, 6, Kind::kGlobal, "the type").text);
      if (window.storage.dtype == nullptr) unsupported_tensor("unknown type");
    }
    if (const size_t at = v3 ? 7 : 6; call.items[1]->items.size() > at) {
      const PickleValue& metadata = *call.items[1]->items[at];
      if (!metadata.is(Kind::kNone) && !(metadata.is(Kind::kDict) && metadata.items.empty())) {
        unsupported_tensor("metadata is not supported (possibly a conjugated or negated view)");
      }
    }
    window.offset = argument(call, 1, Kind::kInt, "the offset").integer;
    const auto& sizes = argument(call, 2, Kind::kTuple, "the shape").items;
    const auto& strides = argument(call, 3, Kind::kTuple, "the strides").items;
    if (sizes.size() != strides.size()) fail_tensor(fmt::format("{} sizes, {} strides", sizes.size(), strides.size()));
    if (sizes.size() > Shape::kMaxRank) unsupported_tensor(fmt::format("more than {} dimensions", Shape::kMaxRank));
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!sizes[i]->is(Kind::kInt) || !strides[i]->is(Kind::kInt)) fail_tensor("sizes and strides must be integers");
      window.shape.append(sizes[i]->integer);
      window.strides[i] = strides[i]->integer;
    }
    check_bounds(window);
    return window;
  }

  // Checks that every element is inside the storage, and that there are no more elements than the storage has. torch's
  // expand() can make a tensor of any size from a few bytes.
  void check_bounds(const Window& window) const {
    const int64_t available = static_cast<int64_t>(window.storage.bytes.size()) / window.storage.dtype->block_bytes;
    int64_t last = window.offset, elements = 1;
    bool empty = false, overflow = window.offset < 0;
    for (int i = 0; i < window.shape.rank(); ++i) {
      const int64_t size = window.shape[i];
      int64_t step = 0;
      if (size < 0 || window.strides[i] < 0) fail_tensor(fmt::format("negative size or stride ({})", describe(window)));
      if (size == 0) {
        empty = true;
        continue;
      }
      if (size == 1) continue;  // the stride does not matter
      overflow |= __builtin_mul_overflow(elements, size, &elements);
      overflow |= __builtin_mul_overflow(size - 1, window.strides[i], &step);
      overflow |= __builtin_add_overflow(last, step, &last);
    }
    if (overflow || (empty ? window.offset > available : last >= available)) {
      fail_tensor(fmt::format("{} exceeds its storage of {} elements", describe(window), available));
    }
    if (!empty && elements > available) {
      unsupported_tensor(fmt::format("{} repeats elements of its storage of {} elements", describe(window), available));
    }
  }

  static std::string describe(const Window& window) {
    std::string strides;
    for (int i = 0; i < window.shape.rank(); ++i) strides += fmt::format("{}{}", i > 0 ? ", " : "", window.strides[i]);
    return fmt::format("shape {}, strides [{}], offset {}", window.shape.str(), strides, window.offset);
  }

  static bool dense(const Window& window) {
    int64_t expected = 1;
    for (int i = window.shape.rank() - 1; i >= 0; --i) {
      if (window.shape[i] == 0) return true;
      if (window.shape[i] != 1 && window.strides[i] != expected) return false;
      expected *= window.shape[i];
    }
    return true;
  }

  // Copies a tensor whose elements are not contiguous. All copies together are at most as large as the file, so views
  // of one storage cannot request more memory than a checkpoint of that size.
  const std::byte* gather(const Window& window) {
    const size_t width = window.storage.dtype->block_bytes;
    const size_t bytes = static_cast<size_t>(window.shape.elements()) * width;
    gathered_ += bytes;
    if (gathered_ > file_bytes_) unsupported_tensor("views of shared storages exceed the size of the file");
    std::vector<std::byte>& copy = out_.dense.emplace_back(bytes);
    std::array<int64_t, Shape::kMaxRank> index{};
    int64_t from = window.offset;
    for (size_t to = 0; to < bytes; to += width) {
      std::memcpy(copy.data() + to, window.storage.bytes.data() + from * width, width);
      for (int d = window.shape.rank() - 1; d >= 0; --d) {
        if (++index[d] < window.shape[d]) {
          from += window.strides[d];
          break;
        }
        if (window.shape[d] > 1) from -= (window.shape[d] - 1) * window.strides[d];
        index[d] = 0;
      }
    }
    return copy.data();
  }

  // Persistent ID: ("storage", class of the storage, key, device, number of elements)
  Storage read_storage(const PickleValue& persistent) const {
    const PickleValue& id = *persistent.items[0];
    if (!id.is(Kind::kTuple) || id.items.size() != 5 || !id.items[0]->is(Kind::kText) ||
        id.items[0]->text != "storage" || !id.items[1]->is(Kind::kGlobal) || !id.items[2]->is(Kind::kText) ||
        !id.items[4]->is(Kind::kInt)) {
      fail_tensor("invalid storage (expected (\"storage\", class, key, device, elements))");
    }
    Storage storage{.dtype = find_type(id.items[1]->text), .bytes = {}};
    if (storage.dtype == nullptr || !id.items[1]->text.ends_with("Storage")) {
      fail_tensor(fmt::format("'{}' is not a storage class", id.items[1]->text));
    }
    const std::string_view key = id.items[2]->text;
    const ZipMember* member = find(fmt::format("data/{}", key));
    if (member == nullptr) fail_tensor(fmt::format("its storage data/{} is not in the archive", key.substr(0, 64)));
    const int64_t elements = id.items[4]->integer;
    const auto available = static_cast<int64_t>(member->data.size() / storage.dtype->block_bytes);
    if (elements < 0 || elements > available) {
      fail_tensor(
          fmt::format("its storage data/{} has {} elements, expected {}", key.substr(0, 64), available, elements));
    }
    storage.bytes = member->data.first(static_cast<size_t>(elements) * storage.dtype->block_bytes);
    return storage;
  }

  static DType find_type(std::string_view name) {
    const auto found = std::ranges::find(kTypes, name, &TorchType::name);
    return found == kTypes.end() ? nullptr : found->dtype;
  }

  const std::string& name_;
  const size_t file_bytes_;
  std::unordered_map<std::string_view, ZipMember> members_;  // keyed by full name
  std::string_view root_;                                    // "archive/"
  std::string_view tensor_;                                  // name of the tensor being read
  size_t gathered_ = 0;                                      // bytes in out_.dense
  TorchFile out_;
};

}  // namespace

TorchFile read_torch_file(std::span<const std::byte> file, const std::string& name) {
  return Reader(file, name).read_state_dict();
}

TorchFile read_torch_tensor(std::span<const std::byte> file, const std::string& name) {
  return Reader(file, name).read_tensor();
}

}  // namespace sluice
