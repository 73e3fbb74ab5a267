// The metadata that a GGUF file of a model in another format would have, as far as the names of its tensors and the
// order of their rows depend on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "formats/gguf/file.h"

namespace sluice {

class GgufOutline {
 public:
  // `config` has Hugging Face's keys. Keys that it lacks are absent here, too.
  GgufOutline(const Config& config, std::string_view architecture);
  GgufOutline(const GgufOutline&) = delete;
  GgufOutline& operator=(const GgufOutline&) = delete;

  const GgufFile& file() const { return file_; }

 private:
  void set(std::string_view key, int64_t value);
  void set(std::string_view key, double value);
  template <class T>
  void add(std::string_view key, GgufValue::Type type, T value);
  void add_tensor(std::string name, const Shape& shape);

  const std::string prefix_;
  GgufFile file_;
  std::deque<std::array<std::byte, 8>> values_;  // the file's numbers
};

}  // namespace sluice
