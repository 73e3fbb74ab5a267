// The engine's view of a model, and the registry of model families. A family is one file in src/models.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.h"
#include "batch/batch.h"
#include "nn/attention/kv_cache.h"
#include "nn/layers.h"
#include "nn/loading/ignored_config_keys.h"
#include "nn/loading/weights.h"
#include "nn/recurrent/state_cache.h"
#include "ops/ops.h"

namespace sluice {

// Facts that the engine plans with. They follow from the configuration alone.
struct ModelShape {
  std::string family;
  int vocab = 0;             // valid ids are below this; width of the logits
  int width = 0;             // columns of the logits or, of a model for another task than kGenerate, of its vectors
  int hidden = 0;            // columns of StepOutput::hidden where a batch may want it; 0: none may
  int input_width = 0;       // columns of the vectors of Batch::given; 0: the model reads ids elsewhere, too
  bool token_types = false;  // the model reads Batch::types
  int max_positions = 0;     // longest sequence that the model supports
  int selected = 0;          // > 0: tokens that a layer sees at most of a longer text (nn/attention/token_indexer.h)
  // forward() calls the same ops for all batches of equal sizes, so a CUDA graph of it can be replayed
  bool capturable = false;
  std::vector<KvShape> kv;     // one per layer that caches keys and values
  int kept_hidden = -1;        // index in `kv` of the hidden states that the model continues (nn/hidden_input.h)
  std::vector<int64_t> state;  // one per recurrent layer: fp32 values per sequence
  // Prompts of different classes cache different keys for equal tokens (nn/attention/rope.h), so they must not share
  // blocks.
  std::function<int(int prompt_len)> rope_class;
  // Why prompts may have no modules (Request::modules): the keys of a token must lie at the place of its position.
  // Empty: they need not.
  std::string no_modules = "it is no decoder";
};

// What a step gives: fp32 in the arena, valid until the arena's next reset. Both are empty if a later stage of the
// pipeline has the result (nn/loading/stage.h).
struct StepOutput {
  Tensor logits{};  // for Task::kGenerate: [batch.sample_rows, vocab]
  // The last layer's output, after the final norm (before it, of a model that continues another). For kGenerate: of
  // all rows [tokens, hidden], if the batch wants it. Else: of the sample rows [batch.sample_rows, hidden], or one
  // vector per sequence [sequences, width] (nn/pooled.h).
  Tensor hidden{};

  const Tensor& of_task(Task task) const { return task == Task::kGenerate ? logits : hidden; }
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;
  // The embedding and the head, for layers that continue the model. Only of families with build_predictor.
  virtual TokenTables tables() const { return {}; }
  // Bytes of arena that forward() needs for a step of `tokens` tokens and `rows` logit rows.
  virtual size_t activation_bytes(int tokens, int rows) const = 0;
  // Runs a step. Writes its keys, values and states into the caches. Does not throw; results may be NaN if weights are.
  virtual StepOutput forward(ops::Ctx& c, const BatchView& batch, KvCache& kv, StateCache& states) = 0;
};

struct ModelFamily {
  std::string_view name;                        // e.g. "llama"
  std::vector<std::string_view> architectures;  // values of "architectures" in config.json, e.g. "LlamaForCausalLM"
  // Builds the model for texts of up to max_len tokens (0: the model's own limit), dry or for real (see LoadContext).
  // LoadContext::task says what the model is for; a task that the family does not support is refused.
  std::unique_ptr<Model> (*build)(const Config& config, LoadContext& context, int max_len);
  bool encoder = false;               // does not generate text
  std::vector<IgnoredKey> ignored{};  // keys of this family's published configurations that build() does not read
  // Builds the layers that predict further tokens from the model's hidden states (docs/speculative.md). They are in the
  // model's checkpoint, but no part of the model. Null: this family's are not supported.
  std::unique_ptr<Model> (*build_predictor)(const Config& config, LoadContext& context, const Model& model,
                                            int max_len) = nullptr;
};

// Finds the family that claims config.json's architectures. A family that claims "NameForCausalLM" also claims
// "NameModel" and "NameForSequenceClassification", with "NameText" in place of "Name" as well, unless another family
// names them. Throws Error(kUnsupportedModel) that lists the supported architectures.
const ModelFamily& find_family(const Config& config);
// The task that a model of this family with this configuration is made for.
Task native_task(const ModelFamily& family, const Config& config);
// The number of labels of a sequence-classification head, counted as in transformers.
int read_labels(const Config& config);

}  // namespace sluice
