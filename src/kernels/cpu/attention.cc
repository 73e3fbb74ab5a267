// Attention over the paged cache. A task is one sequence, one kv head, up to kMaxRows query rows that share it (the
// heads of its group, of consecutive positions): K and V are read once per task.
//
// Keys run in tiles of kTile at absolute positions: K is widened and transposed, scores = Q K^T, online softmax, then
// O = O * correction + P V; where the cache is paired (attention_tile.h), without widening. Tiles add up inside splits
// of kSplit absolute positions, and splits are merged in order, whether one thread runs them all or several share them.
// A row touches only tiles, keys and splits it can see, each in ascending order: its bits depend neither on the other
// rows nor on chunks, blocks or threads.
#include "base/thread_pool.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kSplit = 512;               // keys one thread of several takes
constexpr int64_t kMaxRows = 48;              // rows of a task
constexpr int64_t kMaxSplitBytes = 64 << 20;  // of results kept until splits are merged
constexpr float kMinusInfinity = -__builtin_inff();

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// How the batch falls into tasks.
struct Plan {
  int64_t head_dim, value_dim;       // of the cache
  int64_t key_stride, value_stride;  // floats per row in scratch: whole vectors
  int64_t group;                     // query heads per kv head
  int64_t piece;                     // of these, heads per task
  int64_t pieces;                    // per group
  int64_t positions;                 // per task
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
  int64_t first_row, rows_per_head;  // in the batch
  int64_t first_position;
  int64_t keys;  // of the sequence
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

// The cache whose rows begin with the values.
const Tensor& values_of(const ops::AttentionArgs& args) {
  return args.v_cache.data != nullptr ? args.v_cache : args.k_cache;
}

int64_t first_key(const ops::AttentionArgs& args, int64_t position) {
  if (args.chunk > 0) return position / args.chunk * args.chunk;
  return args.window > 0 ? max_of(0, position - args.window + 1) : 0;
}
int64_t last_key(const ops::AttentionArgs& args, const Task& task, int64_t position) {
  if (args.causal) return position;
  return args.window > 0 ? min_of(task.keys, position + args.window) - 1 : task.keys - 1;
}
// Of all that the task's rows see.
int64_t last_key(const ops::AttentionArgs& args, const Task& task) {
  return last_key(args, task, task.last_position());
}

// Softmax state of a task's rows: running maximum, sums of exponentials lane by lane, weighted sum of values.
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

// Memory of one worker.
struct Work {
  float* queries;     // [kMaxRows][key_stride]; where the cache is paired, as pairs
  float* keys;        // [key_stride][kTile], transposed; or pairs
  float* values;      // [kTile][value_stride]
  float* scores;      // [kMaxRows][kTile], then their exponentials
  float* pairs;       // of values, [kTile / 2][value_stride], where the cache is paired
  float* weights;     // pairs of exponentials, [kMaxRows][kTile / 2]
  float* correction;  // [kMaxRows] of what was summed before this tile
  State split, total;

  static int64_t floats(const Plan& plan) {
    return kMaxRows * plan.key_stride + kTile * (plan.key_stride + plan.value_stride) + kMaxRows * kTile +
           kTile / 2 * (plan.value_stride + kMaxRows) + kMaxRows + 2 * State::floats(plan);
  }
  static Work at(float* memory, const Plan& plan) {
    Work work;
    work.queries = memory;
    work.keys = work.queries + kMaxRows * plan.key_stride;
    work.values = work.keys + kTile * plan.key_stride;
    work.scores = work.values + kTile * plan.value_stride;
    work.pairs = work.scores + kMaxRows * kTile;
    work.weights = work.pairs + kTile / 2 * plan.value_stride;
    work.correction = work.weights + kTile / 2 * kMaxRows;
    work.split = State::at(work.correction + kMaxRows);
    work.total = State::at(work.correction + kMaxRows + State::floats(plan));
    return work;
  }
};

// Addresses of the vectors of the kTile keys from `tile` on; null outside [first, last], which need not be in the
// cache.
template <class T>
void locate(const ops::AttentionArgs& args, const Tensor& cache, const Task& task, int64_t tile, int64_t first,
            int64_t last, const T* (&rows)[kTile]) {
  const int64_t kv_heads = cache.shape[1], block_size = cache.shape[2], dim = cache.shape[3];
  const int32_t* table = args.block_table.data() + task.sequence * args.block_table_stride;
  const int64_t begin = max_of(first - tile, 0), end = min_of(last - tile + 1, kTile);
  for (int64_t i = 0; i < begin; ++i) rows[i] = nullptr;
  for (int64_t i = begin; i < end;) {
    const int64_t block = (tile + i) / block_size, offset = (tile + i) % block_size;
    const T* row =
        reinterpret_cast<const T*>(cache.data) + ((table[block] * kv_heads + task.kv_head) * block_size + offset) * dim;
    for (const int64_t stop = min_of(end, i + block_size - offset); i < stop; ++i, row += dim) rows[i] = row;
  }
  for (int64_t i = max_of(end, 0); i < kTile; ++i) rows[i] = nullptr;
}

// Adds the keys [first, last) to the rows' mixed values. `paired`: all keys of the tile, as pairs.
template <bool paired, class T>
void mix_values(const Work& work, const Plan& plan, int64_t row, int64_t rows, int64_t first, int64_t last,
                const Ahead<T>& ahead) {
  constexpr int kVecs = kRegisters == 32 ? 4 : 2, kRows = 4;  // sixteen or eight accumulators
  each_rows<kRows>(rows, [&]<int R>(int64_t r) {
    const auto columns = [&]<int V>(int64_t d) {
      const auto run = [&](auto next) {
        multiply_values<paired, R, V>(
            {.mixed = work.split.mixed + (row + r) * plan.value_stride + d,
             .correction = work.correction + row + r,
             .weights = paired ? work.weights + (row + r) * (kTile / 2) : work.scores + (row + r) * kTile,
             .values = (paired ? work.pairs : work.values) + d,
             .first = first,
             .last = last,
             .stride = plan.value_stride,
             .column = d},
            next);
      };
      if (r == 0) return run(ahead.values);
      run(nullptr);
    };
    int64_t d = 0;
    for (; d + kVecs * kLanes <= plan.value_stride; d += kVecs * kLanes) columns.template operator()<kVecs>(d);
    for (; d < plan.value_stride; d += kLanes) columns.template operator()<1>(d);
  });
}

// Biases of a head's keys, at consecutive distances from `distance` on.
Vec relative_bias(const ops::AttentionArgs& args, int64_t head, int64_t distance) {
  const int64_t reach = args.relative_reach;
  const float* bias = args.relative_bias + head * (2 * reach + 1) + reach;
  if (distance >= -reach && distance + kLanes - 1 <= reach) return load(bias + distance, All{});
  float values[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) values[i] = bias[max_of(-reach, min_of(reach, distance + i))];
  return load(values, All{});
}

// Turns one row's scores of the keys [first, last) of a tile into exponentials, and updates its maximum and sums.
template <bool paired>
void soften(const ops::AttentionArgs& args, const Work& work, int64_t row, int64_t head, int64_t distance,
            int64_t first, int64_t last) {
  constexpr int kVecs = kTile / kLanes;
  float* scores = work.scores + row * kTile;
  Vec x[kVecs];
  SLUICE_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    x[v] = load(scores + v * kLanes, All{}) * broadcast(args.scale);
    if (args.soft_cap > 0.0f) x[v] = broadcast(args.soft_cap) * tanh(x[v] / broadcast(args.soft_cap));
    if (args.alibi_slopes != nullptr) {  // `distance`: position of the tile's first key from the row's own
      const Vec away = lane_numbers() + broadcast(static_cast<float>(v * kLanes + distance));
      x[v] = fma(broadcast(args.alibi_slopes[head]), away, x[v]);
    }
    if (args.relative_bias != nullptr) x[v] = x[v] + relative_bias(args, head, distance + v * kLanes);
  }
  if (first > 0 || last < kTile) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const Vec lane = lane_numbers() + broadcast(static_cast<float>(v * kLanes));
      const Mask visible = operator_and(less(lane, broadcast(static_cast<float>(last))),
                                        less(broadcast(static_cast<float>(first) - 0.5f), lane));
      x[v] = select(visible, x[v], broadcast(kMinusInfinity));
    }
  }
  Vec top = x[0];
  SLUICE_UNROLL
  for (int v = 1; v < kVecs; ++v) top = max(x[v], top);
  const float before = work.split.top[row], highest = reduce_max(top), after = highest > before ? highest : before;
  const float correction = after == before ? 1.0f : first_lane(exp(broadcast(before - after)));
  Vec sum = load(work.split.sums + row * kLanes, All{}) * broadcast(correction);
  SLUICE_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    x[v] = exp(x[v] - broadcast(after));
    sum = sum + x[v];
    store(scores + v * kLanes, x[v], All{});
  }
#ifdef __AVX512BF16__
  if constexpr (paired) store(work.weights + row * (kTile / 2), narrow_pairs(x[0], x[1]), All{});
#endif
  store(work.split.sums + row * kLanes, sum, All{});
  work.correction[row] = correction;
  work.split.top[row] = after;
}

// Where the tile at `tile` lies. What the task does not need of it points at memory that is in the cache anyway.
template <class T>
void look_ahead(const ops::AttentionArgs& args, const Task& task, const Work& work, int64_t tile, Ahead<T>& ahead) {
  locate(args, args.k_cache, task, tile, tile, last_key(args, task), ahead.keys);
  locate(args, values_of(args), task, tile, tile, last_key(args, task), ahead.values);
  for (int64_t i = 0; i < kTile; ++i) {
    if (ahead.keys[i] != nullptr) continue;
    ahead.keys[i] = ahead.values[i] = reinterpret_cast<const T*>(work.scores);
  }
}

// Adds the tile of keys at `tile` to the split's state.
template <class T>
void attend_tile(const ops::AttentionArgs& args, const Plan& plan, const Task& task, const Work& work, int64_t tile) {
  const int64_t end = min_of(tile + kTile - 1, last_key(args, task));
  // Positions that see any key of the tile: as far as the window reaches, if causal from the tile's first key on.
  const int64_t behind = args.causal ? tile : args.window > 0 ? tile - args.window + 1 : 0;
  const int64_t from = max_of(task.first_position, behind);
  int64_t to = task.last_position();
  if (args.window > 0) to = min_of(to, tile + kTile - 1 + args.window - 1);
  if (args.chunk > 0) to = min_of(to, ((tile + kTile - 1) / args.chunk + 1) * args.chunk - 1);
  if (from > to) return;
  const int64_t first = (from - task.first_position) * task.heads, last = (to + 1 - task.first_position) * task.heads;

  Ahead<T> ahead;
  look_ahead(args, task, work, tile + kTile, ahead);
  const T* vectors[kTile];
  const int64_t seen = first_key(args, from);
  locate(args, args.k_cache, task, tile, seen, end, vectors);
  if constexpr (kPaired<T>) {
    load_key_pairs(vectors, plan.head_dim, work.keys);
  } else {
    load_keys(vectors, plan.head_dim, work.keys);
  }
  each_rows<kRegisters == 32 ? 8 : 2>(last - first, [&]<int R>(int64_t r) {
    const auto run = [&](auto next) {
      multiply_keys<kPaired<T>, R>({.queries = work.queries + (first + r) * plan.key_stride,
                                    .keys = work.keys,
                                    .scores = work.scores + (first + r) * kTile,
                                    .head_dim = plan.head_dim,
                                    .stride = plan.key_stride},
                                   next);
    };
    if (r == 0) return run(ahead.keys);
    run(nullptr);
  });

  if (args.v_cache.data != nullptr) locate(args, args.v_cache, task, tile, seen, end, vectors);
  // Rows that see all keys of the tile may take them in pairs; what others do not see must not reach them.
  bool widened = false;
  const auto widen = [&] {
    if (!widened) load_values(vectors, plan.value_dim, plan.value_stride, work.values);
    widened = true;
  };
  if constexpr (kPaired<T>) {
    load_value_pairs(vectors, plan.value_dim, plan.value_stride, work.pairs);
  } else {
    widen();
  }
  int64_t whole = -1;  // first of the rows, not yet multiplied, that see all keys of the tile
  for (int64_t position = from; position <= to; ++position) {
    const int64_t row = (position - task.first_position) * task.heads;
    const int64_t low = max_of(first_key(args, position) - tile, 0);
    const int64_t high = min_of(last_key(args, task, position) - tile + 1, kTile);
    for (int64_t h = 0; h < task.heads; ++h) {
      soften<kPaired<T>>(args, work, row + h, task.first_head + h, tile - position, low, high);
    }
    const bool all = low == 0 && high == kTile;
    if (all && whole < 0) whole = row;
    if (all && position < to) continue;
    if (whole >= 0) {
      mix_values<kPaired<T>>(work, plan, whole, (all ? row + task.heads : row) - whole, 0, kTile, ahead);
    }
    whole = -1;
    if (all) continue;
    widen();
    mix_values<false>(work, plan, row, task.heads, low, high, ahead);
  }
}

template <class T>
void attend_split(const ops::AttentionArgs& args, const Plan& plan, const Task& task, const Work& work, int64_t split) {
  work.split.clear(task.rows(), plan);
  const int64_t first = max_of(split * kSplit, first_key(args, task.first_position) / kTile * kTile);
  const int64_t last = min_of((split + 1) * kSplit - 1, last_key(args, task));
  for (int64_t tile = first; tile <= last; tile += kTile) attend_tile<T>(args, plan, task, work, tile);
}

// total += part, for the rows that saw any key of the split.
void merge(const ops::AttentionArgs& args, const Plan& plan, const Task& task, int64_t split, const State& part,
           const State& total) {
  for (int64_t row = 0; row < task.rows(); ++row) {
    const int64_t position = task.first_position + row / task.heads;
    if (last_key(args, task, position) < split * kSplit || first_key(args, position) >= (split + 1) * kSplit) continue;
    const float top = part.top[row] > total.top[row] ? part.top[row] : total.top[row];
    const Vec a = exp(broadcast(total.top[row]) - broadcast(top)), b = exp(broadcast(part.top[row]) - broadcast(top));
    total.top[row] = top;
    float* sums = total.sums + row * kLanes;
    store(sums, load(sums, All{}) * a + load(part.sums + row * kLanes, All{}) * b, All{});
    float* to = total.mixed + row * plan.value_stride;
    const float* from = part.mixed + row * plan.value_stride;
    for (int64_t d = 0; d < plan.value_stride; d += kLanes) {
      store(to + d, load(to + d, All{}) * a + load(from + d, All{}) * b, All{});
    }
  }
}

void finish(const ops::AttentionArgs& args, const Plan& plan, const Task& task, const State& total) {
  for (int64_t row = 0; row < task.rows(); ++row) {
    const int64_t head = task.first_head + row % task.heads;
    Vec scale = broadcast(1.0f), sum = broadcast(reduce_add(load(total.sums + row * kLanes, All{})));
    if (args.sinks != nullptr) {
      const float top = args.sinks[head] > total.top[row] ? args.sinks[head] : total.top[row];
      scale = exp(broadcast(total.top[row]) - broadcast(top));
      sum = sum * scale + exp(broadcast(args.sinks[head]) - broadcast(top));
    }
    scale = scale / sum;
    float* out = reinterpret_cast<float*>(args.out.data) + (task.first_row + row / task.heads) * args.out.row_stride +
                 head * plan.value_dim;
    const float* mixed = total.mixed + row * plan.value_stride;
    each_vec(plan.value_dim, [&](int64_t d, auto n) { store(out + d, load(mixed + d, All{}) * scale, n); });
  }
}

template <class T>
void load_queries(const ops::AttentionArgs& args, const Plan& plan, const Task& task, const Work& work) {
  for (int64_t row = 0; row < task.rows(); ++row) {
    const float* q = reinterpret_cast<const float*>(args.q.data) +
                     (task.first_row + row / task.heads) * args.q.row_stride +
                     (task.first_head + row % task.heads) * plan.head_dim;
    float* to = work.queries + row * plan.key_stride;
    if constexpr (kPaired<T>) {
      auto* narrow = reinterpret_cast<Bf16*>(to);
      narrow[plan.head_dim] = {};  // the other half of an odd last one
      each_vec(plan.head_dim, [&](int64_t d, auto n) { store(narrow + d, load(q + d, n), n); });
    } else {
      each_vec(plan.head_dim, [&](int64_t d, auto n) { store(to + d, load(q + d, n), n); });
    }
  }
}

int64_t first_split(const ops::AttentionArgs& args, const Task& task) {
  return first_key(args, task.first_position) / kSplit;
}
int64_t last_split(const ops::AttentionArgs& args, const Task& task) { return last_key(args, task) / kSplit; }

// The whole batch: finds a task's sequence, and shares out tasks, or (task, split) pairs when tasks are few.
template <class T>
class Attention {
 public:
  Attention(ThreadPool& pool, const ops::AttentionArgs& args) : pool_(pool), args_(args), plan_(plan_for(args)) {}

  // Scratch: a Work per thread, and in split mode one State per task and split, at most kMaxSplitBytes.
  void run() {
    const auto sequences = static_cast<int64_t>(args_.kv_len.size());
    for (int64_t s = 0; s < sequences; ++s) {
      tasks_ += tasks_of_sequence(args_, plan_, s);
      const int64_t splits = (args_.kv_len.data()[s] + kSplit - 1) / kSplit;
      max_splits_ = max_of(max_splits_, splits);
    }
    const int64_t states = tasks_ * max_splits_ * State::floats(plan_);
    const bool few = tasks_ < 2 * pool_.threads() && max_splits_ > 1 && pool_.threads() > 1;
    const bool split = few && states * static_cast<int64_t>(sizeof(float)) <= kMaxSplitBytes;
    const int64_t work = pool_.threads() * Work::floats(plan_);
    memory_ = reinterpret_cast<float*>(pool_.scratch(static_cast<size_t>(work + (split ? states : 0)) * sizeof(float)));
    states_ = memory_ + work;
    if (split) return run_splits();
    pool_.parallel_for(tasks_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) whole_task(task(tasks_ - 1 - i), work_of(worker));  // longest rows first
    });
  }

 private:
  Work work_of(int worker) const { return Work::at(memory_ + worker * Work::floats(plan_), plan_); }

  Task task(int64_t index) const {
    int64_t sequence = 0;
    for (int64_t count; index >= (count = tasks_of_sequence(args_, plan_, sequence)); ++sequence) index -= count;
    return task_at(args_, plan_, sequence, index);
  }

  void whole_task(const Task& task, const Work& work) const {
    load_queries<T>(args_, plan_, task, work);
    work.total.clear(task.rows(), plan_);
    for (int64_t split = first_split(args_, task); split <= last_split(args_, task); ++split) {
      attend_split<T>(args_, plan_, task, work, split);
      merge(args_, plan_, task, split, work.split, work.total);
    }
    finish(args_, plan_, task, work.total);
  }

  void run_splits() {
    const auto state = [&](int64_t task, int64_t split) {
      return State::at(states_ + (task * max_splits_ + split) * State::floats(plan_));
    };
    pool_.parallel_for(tasks_ * max_splits_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        const Task t = task(i / max_splits_);
        const int64_t split = i % max_splits_;
        if (split < first_split(args_, t) || split > last_split(args_, t)) continue;
        Work work = work_of(worker);
        load_queries<T>(args_, plan_, t, work);
        work.split = state(i / max_splits_, split);
        attend_split<T>(args_, plan_, t, work, split);
      }
    });
    pool_.parallel_for(tasks_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        const Task t = task(i);
        const State total = work_of(worker).total;
        total.clear(t.rows(), plan_);
        for (int64_t split = first_split(args_, t); split <= last_split(args_, t); ++split) {
          merge(args_, plan_, t, split, state(i, split), total);
        }
        finish(args_, plan_, t, total);
      }
    });
  }

  ThreadPool& pool_;
  const ops::AttentionArgs& args_;
  Plan plan_;
  int64_t tasks_ = 0, max_splits_ = 0;
  float* memory_ = nullptr;
  float* states_ = nullptr;
};

}  // namespace

void attention(ThreadPool& pool, const ops::AttentionArgs& args) {
  if (args.k_cache.dtype == &kBFloat16) return Attention<Bf16>(pool, args).run();
  if (args.k_cache.dtype == &kFloat16) return Attention<Fp16>(pool, args).run();
  Attention<float>(pool, args).run();
}

}  // namespace sluice::SLUICE_ISA
