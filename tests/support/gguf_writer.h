// Files in GGUF for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::testing {

// Writes the bytes of a GGUF file.
class GgufWriter {
 public:
  std::string bytes;

  template <class T>
  GgufWriter& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufWriter& text(const std::string& value) {
    number<uint64_t>(value.size());
    bytes += value;
    return *this;
  }
  GgufWriter& header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    bytes += "GGUF";
    return number(version).number(tensors).number(keys);
  }
  GgufWriter& key(const std::string& name, uint32_t type) { return text(name).number(type); }
  GgufWriter& key_u32(const std::string& name, uint32_t value) { return key(name, 4).number(value); }
  GgufWriter& key_f32(const std::string& name, float value) { return key(name, 6).number(value); }
  GgufWriter& key_text(const std::string& name, const std::string& value) { return key(name, 8).text(value); }
  GgufWriter& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) number(d);
    return number(type).number(offset);
  }
  GgufWriter& data(size_t size, size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(i));
    return *this;
  }
};

}  // namespace sluice::testing
