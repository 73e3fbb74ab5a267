// Attention over the paged cache. A task is one sequence, one kv head, and up to kMaxRows query rows that share it: the
// heads of its group at consecutive positions. Each task reads K and V once.
//
// Keys are processed in tiles at absolute positions, as pairs of bf16 (attention_pairs.h) or in fp32
// (attention_fp32.h). Tiles accumulate inside splits of kSplit absolute positions. Splits are merged in order, whether
// one thread runs them all or several share them. If the caches have a part of the positions (KeyShare), tiles and
// splits count the keys of the caches. A row touches only the tiles, keys and splits it can see, each in
// ascending order. So its bits do not depend on other rows, chunks, blocks or threads.
#include "base/thread_pool.h"
#include "kernels/cpu/attention_fp32.h"
#include "kernels/cpu/attention_pairs.h"
#include "kernels/cpu/dispatch/selected_attention.h"

namespace sluice::SLUICE_ISA {
namespace {

// Merges `part` into total, for the rows that saw any key of the split.
void merge(const ops::AttentionArgs& args, const Plan& plan, const Task& task, int64_t split, const State& part,
           const State& total) {
  for (int64_t row = 0; row < task.rows(); ++row) {
    const int64_t position = task.first_position + row / task.heads;
    const int64_t first = max_of(first_key(args, position), split * kSplit);
    if (first > min_of(last_key(args, task, position), (split + 1) * kSplit - 1)) continue;
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
    const int64_t head = task.first_head + row % task.heads, position = task.first_position + row / task.heads;
    const bool any = first_key(args, position) <= last_key(args, task, position);
    Vec scale = broadcast(1.0f), sum = broadcast(reduce_add(load(total.sums + row * kLanes, All{})));
    if (args.sinks != nullptr) {
      const float top = args.sinks[head] > total.top[row] ? args.sinks[head] : total.top[row];
      scale = exp(broadcast(total.top[row]) - broadcast(top));
      sum = sum * scale + exp(broadcast(args.sinks[head]) - broadcast(top));
    }
    if (args.log_sums.data != nullptr) {
      float* to = reinterpret_cast<float*>(args.log_sums.data) +
                  (task.first_row + row / task.heads) * args.log_sums.row_stride + head;
      *to = any ? total.top[row] + first_lane(log(sum)) : kMinusInfinity;
    }
    scale = any ? scale / sum : zero();  // mixed values are zero without any key
    float* out = reinterpret_cast<float*>(args.out.data) + (task.first_row + row / task.heads) * args.out.row_stride +
                 head * plan.value_dim;
    const float* mixed = total.mixed + row * plan.value_stride;
    each_vec(plan.value_dim, [&](int64_t d, auto n) { store(out + d, load(mixed + d, All{}) * scale, n); });
  }
}

int64_t first_split(const ops::AttentionArgs& args, const Task& task) {
  return first_key(args, task.first_position) / kSplit;
}
int64_t last_split(const ops::AttentionArgs& args, const Task& task) { return last_key(args, task) / kSplit; }

// Runs the whole batch: finds a task's sequence, and distributes tasks, or (task, split) pairs when there are few
// tasks.
template <class Tiles>
class Attention {
 public:
  Attention(ops::Queue& queue, const ops::AttentionArgs& args)
      : threads_(queue.threads()), args_(args), plan_(plan_for(args)) {}

  // Scratch: tiles and two States per thread. In split mode also one State per task and split, at most kMaxSplitBytes.
  void run() {
    const auto sequences = static_cast<int64_t>(args_.kv_len.size());
    for (int64_t s = 0; s < sequences; ++s) {
      tasks_ += tasks_of_sequence(args_, plan_, s);
      const int64_t splits = (count_keys(args_.share, args_.kv_len.data()[s]) + kSplit - 1) / kSplit;
      max_splits_ = max_of(max_splits_, splits);
    }
    const int64_t states = tasks_ * max_splits_ * State::floats(plan_);
    const bool few = tasks_ < 2 * threads_.threads() && max_splits_ > 1 && threads_.threads() > 1;
    const bool split = few && states * static_cast<int64_t>(sizeof(float)) <= kMaxSplitBytes;
    tile_floats_ = round_up(Tiles::floats(plan_), kLanes);
    worker_floats_ = round_up(tile_floats_ + 2 * State::floats(plan_), kLanes);
    const int64_t work = threads_.threads() * worker_floats_;
    memory_ =
        reinterpret_cast<float*>(threads_.scratch(static_cast<size_t>(work + (split ? states : 0)) * sizeof(float)));
    states_ = memory_ + work;
    if (split) return run_splits();
    threads_.parallel_for(tasks_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) whole_task(task(tasks_ - 1 - i), worker);  // longest rows first
    });
  }

 private:
  float* tiles_of(int worker) const { return memory_ + worker * worker_floats_; }
  State split_of(int worker) const { return State::at(tiles_of(worker) + tile_floats_); }
  State total_of(int worker) const { return State::at(tiles_of(worker) + tile_floats_ + State::floats(plan_)); }

  Task task(int64_t index) const {
    int64_t sequence = 0;
    for (int64_t count; index >= (count = tasks_of_sequence(args_, plan_, sequence)); ++sequence) index -= count;
    return task_at(args_, plan_, sequence, index);
  }

  void whole_task(const Task& task, int worker) const {
    Tiles tiles(args_, plan_, task, tiles_of(worker));
    const State part = split_of(worker), total = total_of(worker);
    total.clear(task.rows(), plan_);
    for (int64_t split = first_split(args_, task); split <= last_split(args_, task); ++split) {
      tiles.attend_split(split, part);
      merge(args_, plan_, task, split, part, total);
    }
    finish(args_, plan_, task, total);
  }

  void run_splits() {
    const auto state = [&](int64_t task, int64_t split) {
      return State::at(states_ + (task * max_splits_ + split) * State::floats(plan_));
    };
    threads_.parallel_for(tasks_ * max_splits_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        const Task t = task(i / max_splits_);
        const int64_t split = i % max_splits_;
        if (split < first_split(args_, t) || split > last_split(args_, t)) continue;
        Tiles(args_, plan_, t, tiles_of(worker)).attend_split(split, state(i / max_splits_, split));
      }
    });
    threads_.parallel_for(tasks_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        const Task t = task(i);
        const State total = total_of(worker);
        total.clear(t.rows(), plan_);
        for (int64_t split = first_split(args_, t); split <= last_split(args_, t); ++split) {
          merge(args_, plan_, t, split, state(i, split), total);
        }
        finish(args_, plan_, t, total);
      }
    });
  }

  ThreadPool& threads_;
  const ops::AttentionArgs& args_;
  Plan plan_;
  int64_t tasks_ = 0, max_splits_ = 0;
  int64_t tile_floats_ = 0, worker_floats_ = 0;
  float* memory_ = nullptr;
  float* states_ = nullptr;
};

}  // namespace

void attention(ops::Queue& queue, const ops::AttentionArgs& args) {
  if (args.selected.data != nullptr) return kernels::attend_to_selected(queue, args, attention);
#ifdef __AVX512BF16__
  if (args.k_cache.dtype == &kBFloat16) return Attention<PairTiles<Bf16>>(queue, args).run();
  if (args.k_cache.dtype == &kFloat8E4M3) return Attention<PairTiles<Fp8>>(queue, args).run();
  if (args.k_cache.dtype == &kFloat8E5M2) return Attention<PairTiles<Fp8E5M2>>(queue, args).run();
  if (args.k_cache.dtype == &kInt8) return Attention<PairTiles<Int8>>(queue, args).run();
#else
  if (args.k_cache.dtype == &kBFloat16) return Attention<Fp32Tiles<Bf16>>(queue, args).run();
  if (args.k_cache.dtype == &kFloat8E4M3) return Attention<Fp32Tiles<Fp8>>(queue, args).run();
  if (args.k_cache.dtype == &kFloat8E5M2) return Attention<Fp32Tiles<Fp8E5M2>>(queue, args).run();
  if (args.k_cache.dtype == &kInt8) return Attention<Fp32Tiles<Int8>>(queue, args).run();
#endif
  if (args.k_cache.dtype == &kFloat16) return Attention<Fp32Tiles<Fp16>>(queue, args).run();
  Attention<Fp32Tiles<float>>(queue, args).run();
}

}  // namespace sluice::SLUICE_ISA
