// The batches of layers that continue the model, and their options.
#include "speculative/prediction.h"

#include <memory>
#include <utility>

namespace sluice {
namespace {

void complete_prediction(SpeculativeOptions& o) {
  o.own_layers = true;
  if (o.tokens == 0) o.tokens = 1;
  check_least_tokens(o);
}

const DraftMethod prediction{.name = "mtp",
                             .keys = {"draft_p_min", "draft_n_min", "draft_tensor_parallel_size"},
                             .complete = complete_prediction,
                             .make =
                                 [](const SpeculativeOptions& options, const DraftModelRunner& model) {
                                   return std::unique_ptr<Drafter>(std::make_unique<Prediction>(options, model));
                                 },
                             .aliases = {"deepseek_mtp", "ernie_mtp", "glm4_moe_lite_mtp", "glm4_moe_mtp", "mimo_mtp"}};
const Registry<DraftMethod> prediction_registered{prediction};

}  // namespace

Prediction::Prediction(const SpeculativeOptions& options, DraftModelRunner model)
    : ModelDrafter(options, std::move(model)) {}

// The token in front of each draft. If a step computes several known tokens of a sequence, their hidden states are not
// there yet: no draft follows then, nor after the first token of a text.
void Prediction::take_known(const DraftStep& step) {
  const Batch& from = step.batch;
  batch_.wants_hidden = true;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    DraftPart& part = step.parts[i];
    const int begin = from.query_start[i], known = from.query_start[i + 1] - part.drafted - begin;
    if (part.drafted == 0) continue;
    if (known != 1 || from.positions[begin] == 0) {
      part.drafted = 0;
      continue;
    }
    add_row(from.tokens[begin], from.from_sample.empty() ? -1 : from.from_sample[begin], from.positions[begin]);
    end_sequence(static_cast<int>(i), from.kv_len[i] - part.drafted, from.prompt_len[i]);
    open(step, i);
  }
  place_rows(from);
}

// Rows of rejected tokens are written over by those of the tokens that take their places.
void Prediction::observe(const Batch& step, const Tensor& sampled) {
  clear_batch();
  batch_.wants_hidden = false;
  for (int i = 0; i < step.sequences(); ++i) {
    const int before = batch_.size();
    for (int row = step.query_start[i]; row < step.query_start[i + 1]; ++row) {
      if (step.positions[row] == 0) continue;
      add_row(step.tokens[row], step.from_sample.empty() ? -1 : step.from_sample[row], step.positions[row]);
    }
    if (batch_.size() > before) end_sequence(i, step.kv_len[i], step.prompt_len[i]);
  }
  if (batch_.empty()) return;
  place_rows(step);
  model_.run(batch_, sampled);
}

}  // namespace sluice
