// Translates a GGUF file's tensors to Hugging Face's names and order.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/gguf/architecture.h"

namespace sluice {

class GgufTensors {
 public:
  // Throws Error(kUnsupportedModel) for a tensor without a rule in the architecture, or with an unexpected shape.
  // Throws Error(kCorruptFile) when two tensors get the same name.
  GgufTensors(const GgufFile& file, const GgufConfig& config);

  TensorMap take() { return std::move(tensors_); }
  // Returns the memory of computed tensors. Entries point into it.
  std::vector<std::vector<float>> take_owned() { return std::move(owned_); }

  struct Name {
    std::string base, suffix;  // "blk.{}.attn_q", ".weight"
    std::string layer;         // "12", or empty
  };
  static Name parse(std::string_view name);
  // Returns the rule of a tensor of that base name; null: the architecture has no such tensor.
  static const TensorRule* rule_of(const GgufConfig& config, std::string_view base);

 private:
  [[noreturn]] void refuse(const TensorEntry& entry, const std::string& message) const;
  void add(TensorEntry entry, std::string name);
  void apply(const TensorRule& rule, const Name& name, TensorEntry entry);
  // One tensor per index of the first dimension.
  void add_each(TensorEntry entry, const std::string& name, std::string_view number);
  void add_split(const TensorEntry& entry, const std::string& name);
  void add_split_ba(const TensorEntry& entry, const std::string& name);
  void add_computed(TensorEntry entry, const std::string& name, float (*value)(float));
  void add_stacked(TensorEntry entry, const std::string& name, bool up, bool bias);
  std::vector<Tensor> paired(const TensorEntry& entry, int64_t heads) const;
  std::vector<Tensor> grouped(const TensorEntry& entry) const;
  std::vector<Tensor> repeated_keys(const TensorEntry& entry) const;

  const GgufFile& file_;
  int64_t heads_, kv_heads_, head_dim_, groups_, key_rows_, repeats_;
  TensorMap tensors_;
  // KGateRows and kUpRows tensors that wait for their counterpart.
  TensorMap halves_;
  std::vector<std::vector<float>> owned_;
};

}  // namespace sluice
