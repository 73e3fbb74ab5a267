// Spreads block numbers over groups, for callers without a block pool.
#include "batch/batch.h"

#include <utility>

namespace sluice {

void spread_over(Batch& batch, std::span<const BlockGroup> groups, int block_size) {
  const std::vector<int32_t> slots = std::exchange(batch.slots, {});
  const std::vector<int32_t> table = std::exchange(batch.block_table, {});
  const auto count = static_cast<int32_t>(groups.size());
  for (int32_t group = 0; group < count; ++group) {
    const auto number = [&](int32_t block) { return (block * count + group) * groups[group].ids_per_block; };
    for (const int32_t slot : slots) {
      batch.slots.push_back(number(slot / block_size) * block_size + slot % block_size);
    }
    for (const int32_t block : table) batch.block_table.push_back(block < 0 ? block : number(block));
  }
}

}  // namespace sluice
