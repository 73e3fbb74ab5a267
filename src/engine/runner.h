// Runs batches on a loaded model: copies in the cache first, then the forward pass. With several ranks, rank 0 calls
// it, and the others follow(). It also computes the logits of one text without scheduler or sampler, for verification
// tools and tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/graph_runner.h"
#include "engine/load.h"
#include "engine/metrics.h"
#include "engine/rank_adapters.h"
#include "engine/rank_rows.h"
#include "engine/step_inputs.h"

namespace sluice {

class Runner {
 public:
  enum class Role { kModel, kDraftModel };
  explicit Runner(LoadedModel& loaded, Role role = Role::kModel);

  // Returns the output of the model's forward() for the batch, in device memory, valid until the next call. `sampled`
  // is the output of the previous step's sample, for a batch with from_sample. Throws Error(kCorruptFile) if a file of
  // weights became shorter. In a pipeline, batches of many rows are cut into parts, so that the stages compute at the
  // same time. Hidden states that the batch wants are kept for layers that continue the model, if it has any.
  StepOutput run(const Batch& batch, const Tensor& sampled = {});
  // Makes a batch's copies now and removes them, for one that another model computes before run().
  void make_copies(Batch& batch);
  // Tells the other ranks about an adapter that was read and checked. It need not be prepared yet.
  void add_adapter(const std::shared_ptr<const Adapter>& adapter);
  // Puts an adapter that was added into a slot (lora/adapter.h), on all ranks.
  void place_adapter(const Adapter& adapter, int slot, float scale = 1);
  // Sends a message to the other ranks' rows (engine/rank_rows.h).
  void tell_about_rows(std::vector<std::byte> message) { tell(Message::kRows, std::move(message)); }
  // Does what rank 0 does, until its model is unloaded. `make_rows` is called if rank 0 keeps rows of the prefix cache.
  // Throws Error if a rank is lost.
  void follow(const std::function<std::unique_ptr<RankRows>()>& make_rows = {});
  // Like run(), but returns the logits, or the vectors of another task, in host memory.
  Tensor forward(const Batch& batch) { return to_host(run(batch).of_task(loaded_.plan.task)); }
  // Captures the graphs of decode steps of few sequences, if the backend can. Call it once before many decode steps.
  void prepare();
  // Captures the next larger graph, unless there is none: then it returns false.
  bool prepare_more();
  ops::Ctx& context() { return context_; }
  std::optional<ExpertBalance> expert_balance() const;  // nullopt: experts are not balanced

 private:
  // What a message from rank 0 is about: its last byte, with kOfDraftModel if that is what the message is for. The
  // empty message ends the other ranks.
  enum class Message : uint8_t { kBatch, kCopies, kPrepare, kPrepareMore, kAdapter, kRows };
  static constexpr uint8_t kOfDraftModel = 0x80;
  void tell(Message about, std::vector<std::byte> message);
  void follow_step(Message about, std::span<const std::byte> message);
  void tell_about_adapters(std::vector<std::byte> message);
  void copy(const Batch& batch);
  StepOutput run_here(const Batch& batch, const Tensor& sampled);
  StepOutput run_stage(const Batch& batch, const Tensor& sampled);
  StepOutput forward_here(const Batch& batch, const Tensor& sampled);
  Tensor to_host(const Tensor& result);

  LoadedModel& loaded_;
  const Role role_;
  ops::Ctx context_;
  StepInputs inputs_;
  GraphRunner graph_runner_;
  Buffer results_;                  // host copy of a device's results
  std::vector<std::byte> message_;  // what went to the other ranks last
  SentAdapters sent_adapters_;
};

// Computes the logits of every position of one text, in steps of at most `chunk` tokens. It uses the first blocks of
// the cache, as many as the scheduler would for one sequence: the cache must be unused and have peak_blocks() of the
// text. Calls row(position, logits [vocab]) in order.
// `adapter`: the place of the adapter that changes the model, from the position `adapter_from` on; -1: none.
void for_each_logits(Runner& runner, const LoadPlan& plan, int block_size, std::span<const int32_t> tokens, int chunk,
                     const std::function<void(int position, std::span<const float> logits)>& row, int adapter = -1,
                     int adapter_from = 0);

}  // namespace sluice
