// The contract of drafters, which guess what follows a text, and the registry of their methods. A method is one file.
//
// A step has a draft in two stages. begin() says, sequence by sequence, which tokens are drafted, or only how many,
// while the scheduler makes the step and finds memory for them. complete() sees the whole step before the model runs
// it: there a drafter computes the tokens of all sequences together, in the memory that the step has for them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/registry.h"
#include "batch/batch.h"
#include "batch/sample_task.h"
#include "ops/ops.h"
#include "sluice/token.h"
#include "speculative/options.h"

namespace sluice {

// A token of a draft that begin() leaves to complete().
inline constexpr TokenId kTokenToCome = -1;

// What of a step belongs to one sequence.
struct DraftPart {
  int drafted = 0;      // the last tokens of the part are a draft
  int first_task = 0;   // task that samples the token in the place of the first drafted one; others follow
  TokenId unseen = -1;  // the token before the part's first one, if no earlier step's complete() has seen it; else -1
};

struct DraftStep {
  Batch& batch;                       // complete() writes batch.tokens where there is kTokenToCome
  std::span<const SampleTask> tasks;  // of the step
  std::span<DraftPart> parts;         // one per sequence of the batch; complete() may lower `drafted`
  Tensor sampled;                     // tokens of the step in flight, for batch.from_sample (ops::SampledRow)
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Appends up to min(most, options.tokens) tokens that may follow `text` to `draft`, which is empty.
  virtual void begin(std::span<const TokenId> text, int most, std::vector<TokenId>& draft) = 0;
  // Called once for every step, in the order of the steps, before the model runs it.
  virtual void complete(DraftStep& /*step*/) {}
  // Whether the drafter's layers continue the model: they read its hidden states, which are kept in the step's blocks.
  virtual bool reads_hidden() const { return false; }
  // Called after the model has run a step, if the drafter reads hidden states. They are in the blocks by then.
  // `sampled`: see DraftStep.
  virtual void observe(const Batch& /*step*/, const Tensor& /*sampled*/) {}
};

// A loaded draft model, or layers that continue the model. Reads and writes its keys and values in the blocks of the
// step's sequences. Hidden states that a batch wants are kept there, too.
struct DraftModelRunner {
  std::function<Tensor(const Batch& batch, const Tensor& sampled)> run;  // logits of batch.sample_rows
  ops::Ctx* context = nullptr;
  int vocab = 0;
  int most_rows = 0;  // of logits, thus of sequences in a step
  int block_size = 0;
  std::vector<BlockGroup> groups;
};

struct DraftMethod {
  std::string_view name;                          // the value of "method"
  std::vector<std::string_view> keys;             // that it reads besides "method" and "num_speculative_tokens"
  void (*complete)(SpeculativeOptions& options);  // fills in defaults; throws Error(kInvalidRequest)
  // `model` is the loaded SpeculativeOptions::model, or the layers of own_layers, for methods that have one.
  std::unique_ptr<Drafter> (*make)(const SpeculativeOptions& options, const DraftModelRunner& model);
  std::vector<std::string_view> aliases{};  // other values of "method"
};

// `options` must come from parse_speculative_config().
std::unique_ptr<Drafter> make_drafter(const SpeculativeOptions& options, const DraftModelRunner& model = {});

}  // namespace sluice
