// The interface that a GGUF architecture (general.architecture) registers: it maps metadata to Hugging Face's
// configuration, and tensors to Hugging Face's names. There is one table per mapping. A TensorForm names what
// llama.cpp's converter did to a tensor; it is undone by reading in another order.
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

// The form of a GGUF tensor, and how the tensor of the Hugging Face checkpoint (HF) differs.
enum class TensorForm {
  kPlain,
  kWholeName,   // the name in Hugging Face's checkpoint is given with its suffix
  kPairedQ,     // rows of a query head in the order 0, d/2, 1, d/2 + 1, ..., to rotate adjacent rows
  kPairedK,     // rows of a key head in the same order
  kPairedOwn,   // the same, for as many heads as the layer has
  kGroupedQkv,  // all queries, all keys, all values; in HF by kv head: its queries, its key, its value
  kSplitQkv,    // all queries, all keys, all values; in HF three tensors, in whose name "qkv" becomes "q", "k" and "v"
  // For each of GgufConfig::groups some rows b and as many rows a; in HF two tensors, "ba" becomes "b" and "a".
  kSplitBa,
  kRepeatKeys,  // queries, keys, values of a delta net; in HF the first two GgufConfig::repeats times, see there
  kRepeatTaps,  // the delta net's convolution [channels, width], with keys repeated; in HF [channels, 1, width]
  kTransposed,  // in HF [inputs, outputs]
  kPlusOne,     // 1 + w for a weight w; a bias is unchanged
  kExperts,     // [experts, rows, columns]; in HF one tensor per expert, whose number replaces "{e}"
  // Gate rows of one HF tensor, before the up rows: a matrix, [experts, rows, columns], or biases [experts, rows].
  kGateRows,
  kUpRows,       // up rows of that tensor
  kHeadNorms,    // [heads, head_dim]; in HF one tensor per head, whose number replaces "{h}"
  kOneRow,       // [n]; in HF [1, n]
  kWholeOneRow,  // [n]; in HF [1, n], and the name in HF is given with its suffix
  kFlat,         // [n, 1] or [groups, n]; in HF a single row
  kDepthwise,    // [channels, width] or [1, channels, 1, width]; in HF [channels, 1, width]
  kDecays,       // -e^a for a; in HF without suffix and without the last dimension, if that is 1
  kHeadDecays,   // -e^a for a; in HF [1, 1, n, 1]
  kRead,         // read as part of the configuration
};

struct TensorRule {
  std::string_view gguf;  // without ".weight" or ".bias"; "{}" stands for the layer
  std::string_view hf{};
  TensorForm form = TensorForm::kPlain;
};

// llama.cpp's numbers for the function that turns expert logits into scores.
enum class Gating : int64_t { kSoftmax = 1, kSigmoid = 2 };

// Whether tokens attend only to earlier tokens.
enum class Causal { kYes, kNo };

// A tensor of one value that GGUF files store as metadata.
struct Scalar {
  std::string name;
  Shape shape;
  float value = 0.0f;
};

// The metadata and tensors of a file, as an architecture's `configure` reads them, and the configuration it builds.
// Keys are given without the architecture's prefix. A key that nobody reads stops the file from loading.
class GgufConfig {
 public:
  GgufConfig(const GgufFile& file, std::string_view architecture);

  Json hf = Json::object();
  std::vector<std::span<const TensorRule>> tensors;  // tried in order; the first matching rule applies
  int64_t groups = 1;                                // see TensorForm::kSplitBa
  // For kRepeatKeys. llama.cpp stores the value heads of a delta net in turns: those of key heads 0, 1, ..., 0, 1, ...;
  // Hugging Face stores them key head by key head. If the key heads are repeated, every value head has its own, and
  // both orders are the same.
  int64_t key_rows = 0, repeats = 1;
  std::vector<Scalar> scalars;

  // Returns the value. Throws an error that names the key when it is absent.
  int64_t integer(std::string_view key);
  double number(std::string_view key);
  // Copies a value into the configuration. If not `required`, an absent key is skipped. A list of equal numbers counts
  // as one number.
  void integer(std::string_view key, const char* hf_key, bool required = true);
  void number(std::string_view key, const char* hf_key, bool required = true);
  double number_or(std::string_view key, double fallback);
  int64_t integer_or(std::string_view key, int64_t fallback);
  bool boolean_or(std::string_view key, bool fallback);
  std::string text_or(std::string_view key, std::string_view fallback);
  // Returns a number per layer, from a list with one number per block or from one number for all.
  std::vector<int64_t> of_layers(std::string_view key);
  std::vector<double> numbers(std::string_view key);                   // empty when absent
  std::vector<double> unprefixed_numbers(std::string_view key) const;  // reads a key without the architecture's prefix
  bool has(std::string_view key) const;
  std::string pooling();  // see Checkpoint::pooling
  bool has_bias() const { return has_tensor("blk.0.attn_q.bias"); }
  void ignore(std::initializer_list<std::string_view> keys);
  [[noreturn]] void refuse(std::string_view key, const std::string& message) const;
  std::vector<std::string> unread() const;  // full names of the keys that nobody has read

  bool has_tensor(std::string_view name) const { return tensor(name) != nullptr; }
  const TensorEntry* tensor(std::string_view name) const;
  std::vector<double> values(std::string_view tensor_name) const;  // empty when there is no such tensor

  // Reads the sizes that all transformers have: hidden_size, num_hidden_layers, vocab_size, ... under Hugging Face's
  // usual keys, and tie_word_embeddings. The last blocks of a file may be layers that predict further tokens for
  // speculative decoding. They do not change the results, so they are not counted as layers and their tensors are
  // skipped.
  void sizes(Causal wanted = Causal::kYes);
  void all_blocks_are_layers();  // after sizes(), for files that count such layers and do not store them
  void heads();                  // num_attention_heads, num_key_value_heads, head_dim
  // The same where layers have kv heads of their own, and values a width of their own, which are not read. Returns the
  // kv heads of each layer; 0: it has no attention.
  std::vector<int64_t> heads_by_layer();
  std::vector<bool> attends();      // per layer: whether it has kv heads; valid after heads()
  void rope() { rope(head_dim_); }  // rope_theta, partial_rotary_factor, rope_scaling
  void rope(int64_t head_dim);
  void yarn_scales(double mscale, double mscale_all_dim);  // replaces the factor of cosines and sines
  void rms_norm() { number("attention.layer_norm_rms_epsilon", "rms_norm_eps"); }
  void layer_norm(const char* hf_key) { number("attention.layer_norm_epsilon", hf_key); }
  // Sets sliding_window and layer_types from the file's pattern, or with one full layer per `period` (0: all layers
  // slide).
  void windows(int period);
  // Reads num_experts_per_tok, the number of experts and their width, under the given keys.
  void experts(const char* count_key, const char* inner_key);
  Gating gating();  // softmax if the file does not specify it
  void require_gating(Gating wanted);
  void rename(const char* from, const char* to);  // renames a key in hf and keeps the value; "" removes it
  void architecture(const char* name, const char* model_type);  // sets the architecture in the configuration

  int64_t hidden() const { return hidden_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t layers() const { return layers_; }
  bool predicts(int64_t block) const { return block >= layers_ && block < blocks_; }
  // Keeps the blocks that predict further tokens, as far as there are rules. Otherwise they are left out.
  void keep_predicting_blocks(std::span<const TensorRule> rules);
  bool keeps_predicting_blocks() const { return keeps_predicting_blocks_; }

 private:
  std::string full(std::string_view key) const;
  void rope_scaling(int64_t rotary);

  const GgufFile& file_;
  std::string prefix_;
  bool keeps_predicting_blocks_ = false;
  std::set<std::string, std::less<>> read_;
  int64_t hidden_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0, layers_ = 0, blocks_ = 0, context_ = 0;

  friend class GgufTensors;
};

struct GgufArchitecture {
  std::string_view name;
  void (*configure)(GgufConfig& config);  // fills hf and tensors
};

struct RegisterArchitectures {
  explicit RegisterArchitectures(std::span<const GgufArchitecture> all) {
    for (const GgufArchitecture& one : all) Registry<GgufArchitecture> added(one);
  }
};

// Embedding, final norm, head and layers with the names of Llama and its many relatives.
extern const std::span<const TensorRule> kLlamaTensors;
// Rows of queries and keys that the converter paired.
extern const std::span<const TensorRule> kPairedTensors;
// Experts and router under "mlp", as in Qwen, OLMoE and others.
extern const std::span<const TensorRule> kExpertTensors;
// Experts and router under "block_sparse_moe", as in Mixtral and Granite.
extern const std::span<const TensorRule> kMixtralTensors, kGraniteExpertTensors;

// Reads DeepSeek's experts: their number and width, shared experts, dense first layers, and the routing of version 3.
void read_expert_sizes(GgufConfig& c);
void read_deepseek_experts(GgufConfig& c);
// Reads Granite's factors of embeddings, residuals, scores and logits.
void read_granite_scales(GgufConfig& c);

// Reads Llama's configuration (sizes, heads, rope, rms_norm_eps, intermediate_size), and adds its tensors.
void configure_llama_like(GgufConfig& c, const char* architecture, const char* model_type);

}  // namespace sluice
