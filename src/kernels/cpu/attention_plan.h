// Divides attention over the paged cache into tasks, defines which keys a row sees, and holds the softmax state.
// Included by attention.cc and its tiles only.
#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/key_tiles.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kSplit = 512;               // keys that one thread takes when several share a task
constexpr int64_t kMaxRows = 48;              // most rows of a task
constexpr int64_t kMaxSplitBytes = 64 << 20;  // most bytes of results kept until splits are merged
constexpr float kMinusInfinity = -__builtin_inff();

// Describes how the batch is divided into tasks.
struct Plan {
  int64_t head_dim, value_dim;       // dimensions of the cache's vectors
  int64_t key_stride, value_stride;  // floats per row in scratch: a multiple of kLanes
  int64_t group;                     // query heads per kv head
  int64_t piece;                     // query heads of a group per task
  int64_t pieces;                    // tasks per group
  int64_t positions;                 // positions per task
};

Plan plan_for(const ops::AttentionArgs& args) {
  Plan plan;
  plan.head_dim = args.k_cache.shape[3];
  plan.value_dim = args.v_cache.data != nullptr ? args.v_cache.shape[3] : args.value_dim;
  plan.key_stride = round_up(plan.head_dim, 16);
  plan.value_stride = round_up(plan.value_dim, 16);
  plan.group = args.heads / args.k_cache.shape[1];
  plan.pieces = (plan.group + kMaxRows - 1) / kMaxRows;
  plan.piece = (plan.group + plan.pieces - 1) / plan.pieces;
  plan.positions = kMaxRows / plan.piece;
  return plan;
}

// Rows are ordered by position, then head: row = (position - first_position) * heads + (head - first_head).
struct Task {
  int64_t sequence, kv_head;
  int64_t first_head, heads;
  int64_t first_row, rows_per_head;  // first_row is a row of the batch
  int64_t first_position;
  int64_t keys;  // tokens of the sequence
  int64_t rows() const { return heads * rows_per_head; }
  int64_t last_position() const { return first_position + rows_per_head - 1; }
};

int64_t tasks_of_sequence(const ops::AttentionArgs& args, const Plan& plan, int64_t sequence) {
  const int64_t rows = args.query_start.data()[sequence + 1] - args.query_start.data()[sequence];
  return (rows + plan.positions - 1) / plan.positions * args.k_cache.shape[1] * plan.pieces;
}

Task task_at(const ops::AttentionArgs& args, const Plan& plan, int64_t sequence, int64_t index) {
  const int32_t* start = args.query_start.data() + sequence;
  const int64_t rows = start[1] - start[0], kv_heads = args.k_cache.shape[1];
  const int64_t piece = index % plan.pieces, kv_head = index / plan.pieces % kv_heads;
  const int64_t position = index / plan.pieces / kv_heads * plan.positions;
  const int64_t head = piece * plan.piece;
  return {.sequence = sequence,
          .kv_head = kv_head,
          .first_head = kv_head * plan.group + head,
          .heads = min_of(plan.piece, plan.group - head),
          .first_row = start[0] + position,
          .rows_per_head = min_of(plan.positions, rows - position),
          .first_position = args.kv_len.data()[sequence] - rows + position,
          .keys = args.kv_len.data()[sequence]};
}

// Returns the cache whose rows begin with the values.
const ops::CacheTensor& values_of(const ops::AttentionArgs& args) {
  return args.v_cache.data != nullptr ? args.v_cache : args.k_cache;
}

// KeyShare::count, because instruction sets share no inline functions, and the position of a key, which inverts it.
int64_t count_keys(const ops::KeyShare& share, int64_t positions) {
  if (share.parts == 1) return positions;
  const int64_t run = share.run, round = run * share.parts;
  return positions / round * run + max_of(0, min_of(run, positions % round - run * share.part));
}
int64_t position_of_key(const ops::KeyShare& share, int64_t key) {
  if (share.parts == 1) return key;
  return (key / share.run * share.parts + share.part) * share.run + key % share.run;
}

// The first and the last key of the cache that a row sees. If the caches have a part of the positions, the first may be
// behind the last: the row sees none then.
int64_t first_key(const ops::AttentionArgs& args, int64_t position) {
  if (args.chunk > 0) return count_keys(args.share, max_of(args.first, position / args.chunk * args.chunk));
  return count_keys(args.share, args.window > 0 ? max_of(args.first, position - args.window + 1) : args.first);
}
int64_t last_key(const ops::AttentionArgs& args, const Task& task, int64_t position) {
  if (args.causal) return count_keys(args.share, position + 1) - 1;
  return count_keys(args.share, args.window > 0 ? min_of(task.keys, position + args.window) : task.keys) - 1;
}
// Returns the last key that any row of the task sees.
int64_t last_key(const ops::AttentionArgs& args, const Task& task) {
  return last_key(args, task, task.last_position());
}

// Softmax state of a task's rows: running maximum, per-lane sums of exponentials, weighted sum of values.
struct State {
  float* top;    // [kMaxRows]
  float* sums;   // [kMaxRows][kLanes]
  float* mixed;  // [kMaxRows][value_stride]

  static int64_t floats(const Plan& plan) { return kMaxRows * (1 + kLanes + plan.value_stride); }
  static State at(float* memory) { return {memory, memory + kMaxRows, memory + kMaxRows * (1 + kLanes)}; }
  void clear(int64_t rows, const Plan& plan) const {
    for (int64_t r = 0; r < rows; ++r) top[r] = kMinusInfinity;
    for (int64_t i = 0; i < rows * kLanes; i += kLanes) store(sums + i, zero(), All{});
    for (int64_t i = 0; i < rows * plan.value_stride; i += kLanes) store(mixed + i, zero(), All{});
  }
};

// Returns the query of one row of a task.
const float* query_of(const ops::AttentionArgs& args, const Plan& plan, const Task& task, int64_t row) {
  return reinterpret_cast<const float*>(args.q.data) + (task.first_row + row / task.heads) * args.q.row_stride +
         (task.first_head + row % task.heads) * plan.head_dim;
}

// Returns the index of a key's vector in the cache. The next keys of the same block follow it.
int64_t vector_of(const ops::AttentionArgs& args, const Tensor& cache, const Task& task, int64_t key) {
  const int64_t kv_heads = cache.shape[1], block_size = cache.shape[2];
  const int32_t block = args.block_table.data()[task.sequence * args.block_table_stride + key / block_size];
  return (block * kv_heads + task.kv_head) * block_size + key % block_size;
}

template <class T>
const T* cached(const ops::AttentionArgs& args, const Tensor& cache, const Task& task, int64_t key) {
  return reinterpret_cast<const T*>(cache.data) + vector_of(args, cache, task, key) * cache.shape[3];
}

}  // namespace
}  // namespace sluice::SLUICE_ISA
