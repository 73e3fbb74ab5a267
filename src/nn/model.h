// What the engine sees of a model, and the registry of families. A family is one file in src/models (style G9).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.h"
#include "batch/batch.h"
#include "nn/attention/kv_cache.h"
#include "nn/loading/weights.h"
#include "nn/recurrent/state_cache.h"
#include "ops/ops.h"

namespace sluice {

// Facts the engine plans with; known from the configuration alone.
struct ModelShape {
  std::string family;
  int vocab = 0;               // ids below are valid; width of the logits
  int width = 0;               // columns of what forward() returns
  bool token_types = false;    // reads Batch::types
  int max_positions = 0;       // longest sequence the model is made for
  bool capturable = false;     // forward() calls the same ops for all batches of equal sizes (ops::Backend::record)
  std::vector<KvShape> kv;     // per layer that caches keys and values
  std::vector<int64_t> state;  // per recurrent layer: fp32 values per sequence
  // Prompts of different class cache different keys for equal tokens (nn/attention/rope.h): they must not share blocks.
  std::function<int(int prompt_len)> rope_class;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;
  // Bytes of arena that forward() needs for a step of that many tokens and logit rows.
  virtual size_t activation_bytes(int tokens, int rows) const = 0;
  // fp32 in the arena, valid until its next reset: for Task::kGenerate logits [batch.sample_rows, vocab], else what
  // the last layer makes of the sample rows, [batch.sample_rows, hidden], or a vector of each sequence, [sequences,
  // width] (nn/pooled.h). Writes the step's keys, values and states into the caches. Throws nothing; numbers may be NaN
  // when weights are.
  virtual Tensor forward(ops::Ctx& c, const BatchView& batch, KvCache& kv, StateCache& states) = 0;
};

struct ModelFamily {
  std::string_view name;                        // "llama"
  std::vector<std::string_view> architectures;  // config.json's architectures: "LlamaForCausalLM"
  // Builds the model for texts of up to max_len tokens (0: its own limit). Dry or for real, see LoadContext.
  // LoadContext::task says what for; a task that a family does not have is refused.
  std::unique_ptr<Model> (*build)(const Config& config, LoadContext& context, int max_len);
  bool encoder = false;  // does not generate
};

// The family that claims config.json's architectures. One that claims "NameForCausalLM" claims "NameModel" and
// "NameForSequenceClassification", too. Throws Error(kUnsupportedModel) naming them.
const ModelFamily& find_family(const Config& config);
// What a model of that family and those architectures is made for.
Task native_task(const ModelFamily& family, const Config& config);
// The number of labels of a sequence-classification head, as transformers counts them.
int read_labels(const Config& config);

}  // namespace sluice
