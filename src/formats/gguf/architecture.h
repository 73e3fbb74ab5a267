// What a GGUF architecture (general.architecture) registers: how its metadata become Hugging Face's configuration, and
// its tensors Hugging Face's names. One table per mapping; what llama.cpp's converter did to a tensor is named by a
// form and undone by reading in another order.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/registry.h"
#include "formats/gguf/file.h"

namespace sluice {

enum class TensorForm {
  kPlain,
  kWholeName,   // the name there is given with its ending
  kPairedQ,     // rows of a head in the order 0, d/2, 1, d/2 + 1, ...: made for rotating neighbours; the same of keys
  kPairedK,     //
  kGroupedQkv,  // all queries, all keys, all values; there by kv head: its queries, its key, its value
  kSplitQkv,    // the same; there three tensors, in whose name "qkv" becomes "q", "k" and "v"
  kSplitBa,     // for each of GgufConfig::groups some rows b and as many a; there two tensors, "ba" becomes "b" and "a"
  kRepeatKeys,  // queries, keys, values of a delta net; there the first two GgufConfig::repeats times, see there
  kRepeatTaps,  // the same of the convolution's [channels, width]; there [channels, 1, width]
  kTransposed,  // there [inputs, outputs]
  kPlusOne,     // 1 + w for w (a bias stays)
  kExperts,     // [experts, rows, columns]; there a tensor each, number for "{e}"
  kGateRows,    // two such that are there one, with the gate's rows before the others: matrices, [experts, rows,
  kUpRows,      // columns] and biases [experts, rows]
  kHeadNorms,   // [heads, head_dim]; there a tensor each, number for "{h}"
  kOneRow,      // [n]; there [1, n]
  kWholeOneRow,  // the same, and the name there is given with its ending
  kFlat,         // [n, 1] or [groups, n]; there one row of all
  kDepthwise,    // [channels, width] or [1, channels, 1, width]; there [channels, 1, width]
  kDecays,       // -e^a for a, there without a name's ending; the last dimension may be 1 and is none there
  kHeadDecays,   // the same; there [1, 1, n, 1]
  kRead,         // part of the configuration
};

struct TensorRule {
  std::string_view gguf;  // without ".weight" or ".bias"; "{}" stands for the layer
  std::string_view hf{};
  TensorForm form = TensorForm::kPlain;
};

// llama.cpp's numbers of what makes scores of the experts' logits.
enum class Gating : int64_t { kSoftmax = 1, kSigmoid = 2 };

// Whether tokens see only those before them.
enum class Causal { kYes, kNo };

// A tensor of one value, whose place in files is among the metadata.
struct Scalar {
  std::string name;
  Shape shape;
  float value = 0.0f;
};

// Metadata and tensors of a file, as an architecture's `configure` reads them, and the configuration it makes of them.
// Keys are given without the architecture's name in front. What nobody reads stops the file from loading.
class GgufConfig {
 public:
  GgufConfig(const GgufFile& file, std::string_view architecture);

  Json hf = Json::object();
  std::vector<std::span<const TensorRule>> tensors;  // tried one after the other; the first rule of a name counts
  int64_t groups = 1;                                // see TensorForm::kSplitBa
  // kRepeatKeys: llama.cpp has the value heads of a delta net in turn, those of key head 0, 1, ..., 0, 1, ...; there
  // they come key head by key head. With the key heads repeated, every value head has one of its own, and both orders
  // are one.
  int64_t key_rows = 0, repeats = 1;
  std::vector<Scalar> scalars;

  // The value; absent is an error that names the key.
  int64_t integer(std::string_view key);
  double number(std::string_view key);
  // Copies into the configuration; without `required` only what is there. A list is one number if all are equal.
  void integer(std::string_view key, const char* hf_key, bool required = true);
  void number(std::string_view key, const char* hf_key, bool required = true);
  double number_or(std::string_view key, double fallback);
  int64_t integer_or(std::string_view key, int64_t fallback);
  bool boolean_or(std::string_view key, bool fallback);
  std::string text_or(std::string_view key, std::string_view fallback);
  // A number for each layer, of a list with one for each block; one number is that of all.
  std::vector<int64_t> of_layers(std::string_view key);
  std::vector<double> numbers(std::string_view key);                   // empty when absent
  std::vector<double> unprefixed_numbers(std::string_view key) const;  // of a key without the architecture's name
  bool has(std::string_view key) const;
  std::string pooling();  // see Checkpoint::pooling
  bool has_bias() const { return has_tensor("blk.0.attn_q.bias"); }
  void ignore(std::initializer_list<std::string_view> keys);
  [[noreturn]] void refuse(std::string_view key, const std::string& message) const;
  std::vector<std::string> unread() const;  // full names

  bool has_tensor(std::string_view name) const { return tensor(name) != nullptr; }
  const TensorEntry* tensor(std::string_view name) const;
  std::vector<double> values(std::string_view tensor_name) const;  // empty when there is no such tensor

  // Sizes that all transformers have: hidden_size, num_hidden_layers, vocab_size, ... under Hugging Face's usual keys,
  // and tie_word_embeddings. The last blocks of a file may be layers that predict further tokens: a means of
  // speculation, without which results are the same. They count as no layers, and their tensors are left out.
  void sizes(Causal wanted = Causal::kYes);
  void heads();                     // num_attention_heads, num_key_value_heads, head_dim
  std::vector<bool> attends();      // the layers with kv heads, once heads() has read how many these are
  void rope() { rope(head_dim_); }  // rope_theta, partial_rotary_factor, rope_scaling
  void rope(int64_t head_dim);
  void yarn_scales(double mscale, double mscale_all_dim);  // in place of a factor of cosines and sines
  void rms_norm() { number("attention.layer_norm_rms_epsilon", "rms_norm_eps"); }
  void layer_norm(const char* hf_key) { number("attention.layer_norm_epsilon", hf_key); }
  // sliding_window and layer_types, from the file's pattern or one full layer in `period` (0: all slide).
  void windows(int period);
  // num_experts_per_tok, the number of experts and their width; under the keys given.
  void experts(const char* count_key, const char* inner_key);
  Gating gating();  // softmax, if the file does not say
  void require_gating(Gating wanted);
  void rename(const char* from, const char* to);                // in hf, keeping the value; "" removes it
  void architecture(const char* name, const char* model_type);  // of the configuration

  int64_t hidden() const { return hidden_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t layers() const { return layers_; }
  bool predicts(int64_t block) const { return block >= layers_ && block < blocks_; }

 private:
  std::string full(std::string_view key) const;
  void rope_scaling(int64_t rotary);

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
  int64_t hidden_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0, layers_ = 0, blocks_ = 0, context_ = 0;

  friend class GgufTensors;
};

struct GgufArchitecture {
  std::string_view name;
  void (*configure)(GgufConfig& config);  // fills in hf and tensors
};

struct RegisterArchitectures {
  explicit RegisterArchitectures(std::span<const GgufArchitecture> all) {
    for (const GgufArchitecture& one : all) Registry<GgufArchitecture> added(one);
  }
};

// Embedding, final norm, head and layers as Llama and its many relatives name them.
extern const std::span<const TensorRule> kLlamaTensors;
// The rows of queries and keys where the converter paired them.
extern const std::span<const TensorRule> kPairedTensors;
// Experts and router under "mlp", as Qwen, OLMoE and others name them.
extern const std::span<const TensorRule> kExpertTensors;
// And under "block_sparse_moe", as Mixtral and Granite do.
extern const std::span<const TensorRule> kMixtralTensors, kGraniteExpertTensors;

// DeepSeek's experts: how many, how wide, shared ones, dense first layers; and the routing of its third version.
void read_expert_sizes(GgufConfig& c);
void read_deepseek_experts(GgufConfig& c);
// Granite's factors of embeddings, residuals, scores and logits.
void read_granite_scales(GgufConfig& c);

// What Llama's configuration has: sizes, heads, rope, rms_norm_eps, intermediate_size; its tensors.
void configure_llama_like(GgufConfig& c, const char* architecture, const char* model_type);

}  // namespace sluice
