// The step on the device, and single texts.
#include "engine/runner.h"

#include <algorithm>

namespace sluice {

Tensor Runner::forward(const Batch& batch) {
  for (const BlockCopy& copy : batch.copies) loaded_.kv->copy_block(copy.from, copy.to);
  for (const StateCopy& copy : batch.state_copies) loaded_.states->copy_slot(copy.from, copy.to);
  loaded_.arena->reset();
  return loaded_.model->forward(context_, batch, *loaded_.kv, *loaded_.states);
}

void for_each_logits(Runner& runner, const LoadPlan& plan, int block_size, std::span<const int32_t> tokens, int chunk,
                     const std::function<void(int, std::span<const float>)>& row) {
  const int total = static_cast<int>(tokens.size());
  CHECK(total <= plan.blocks * block_size, "{} tokens in {} blocks of {}", total, plan.blocks, block_size);
  CHECK(chunk >= 1 && chunk <= plan.logit_rows, "chunk {} of at most {} rows", chunk, plan.logit_rows);
  for (int begin = 0; begin < total; begin += chunk) {
    const int count = std::min(chunk, total - begin);
    Batch batch;
    for (int i = 0; i < count; ++i) {
      batch.tokens.push_back(tokens[begin + i]);
      batch.positions.push_back(begin + i);
      batch.slots.push_back(begin + i);  // blocks in order: block * block_size + offset is the position
      batch.sample_rows.push_back(i);
    }
    batch.query_start = {0, count};
    batch.kv_len = {begin + count};
    batch.prompt_len = {total};
    if (plan.state_slots > 0) batch.state_slots = {0};
    batch.block_table_stride = (begin + count + block_size - 1) / block_size;
    for (int b = 0; b < batch.block_table_stride; ++b) batch.block_table.push_back(b);
    const Tensor logits = runner.forward(batch);
    for (int i = 0; i < count; ++i) {
      row(begin + i, {logits.f32() + i * logits.row_stride, static_cast<size_t>(logits.shape[1])});
    }
  }
}

}  // namespace sluice
