// The draft model's first batch of a step, and its options.
#include "speculative/draft_model.h"

#include <fmt/core.h>

#include <memory>
#include <utility>

namespace sluice {
namespace {

constexpr int kUsualTokens = 4;

void complete_draft_model(SpeculativeOptions& o) {
  if (o.model.empty()) refuse_speculative_config("model is missing (expected the draft model's folder, file or name)");
  if (o.tokens == 0) o.tokens = kUsualTokens;
  check_least_tokens(o);
}

const DraftMethod draft_model{.name = "draft_model",
                              .keys = {"model", "draft_p_min", "draft_n_min", "draft_tensor_parallel_size"},
                              .complete = complete_draft_model,
                              .make = [](const SpeculativeOptions& options, const DraftModelRunner& model) {
                                return std::unique_ptr<Drafter>(std::make_unique<DraftModel>(options, model));
                              }};
const Registry<DraftMethod> draft_model_registered{draft_model};

}  // namespace

DraftModel::DraftModel(const SpeculativeOptions& options, DraftModelRunner model)
    : ModelDrafter(options, std::move(model)) {}

// All tokens of the step that are known, and those that the draft model missed before. Adapters are left out: they
// change the model only.
void DraftModel::take_known(const DraftStep& step) {
  const Batch& from = step.batch;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const DraftPart& part = step.parts[i];
    const int begin = from.query_start[i], end = from.query_start[i + 1] - part.drafted;
    if (part.unseen >= 0) add_row(part.unseen, -1, from.positions[begin] - 1);
    for (int row = begin; row < end; ++row) {
      add_row(from.tokens[row], from.from_sample.empty() ? -1 : from.from_sample[row], from.positions[row]);
    }
    end_sequence(static_cast<int>(i), from.kv_len[i] - part.drafted, from.prompt_len[i]);
    if (part.drafted > 0) open(step, i);
  }
  place_rows(from);
}

}  // namespace sluice
