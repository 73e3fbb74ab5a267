// Streams keys and values to a warp that decodes: a ring of stages in shared memory, filled continuously across units
// (decode_work.cuh). The copies are TMA tiles (compute capability 9.0) or packs of 16 bytes.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/cache_maps.h"
#include "kernels/cuda/device/decode_work.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda {

inline constexpr int kStages = 3;  // stages of a warp's ring

// What a cache of T holds. The tensor cores multiply 16-bit operands: 8-bit floats become fp16 in registers and int8
// becomes bf16, both exactly. In shared memory a vector is kUnits<T, dim> units of 16 bits, at least 64.
template <class T>
struct Cached {
  using Operand = T;
  static constexpr int kPerUnit = 1;  // elements in a unit of 16 bits
};
template <class T>
requires(sizeof(T) == 1) struct Cached<T> {
  using Operand = typename WideOf<T>::Type;
  static constexpr int kPerUnit = 2;
};
template <class T>
inline constexpr bool kScaled = std::is_same_v<T, int8_t>;
template <class T, int dim>
inline constexpr int kUnits = dim / Cached<T>::kPerUnit < 64 ? 64 : dim / Cached<T>::kPerUnit;

template <class T, int dim>
inline constexpr int kStageKeys = kUnits<T, dim> <= 64 ? 32 : 16;  // keys that a warp takes at a time
template <class T, int dim>
// Bytes of a warp's ring.
inline constexpr int kRingBytes = kStages* kStageKeys<T, dim>* kUnits<T, dim> * 2 * 2;

// Bytes of the scales of a ring's keys and values: for every stage those of the keys, then those of the values.
template <class T, int dim>
inline constexpr int kScaleBytes = kScaled<T> ? kStages* kStageKeys<T, dim> * 2 * 4 : 0;

// `keys` vectors of `units` units of 16 bits in shared memory, in panels of 64 units. Rows have 128 bytes with swizzled
// packs of 16 bytes, so that eight rows of one column lie in eight different groups of banks
// (CU_TENSOR_MAP_SWIZZLE_128B). `base` is a multiple of 1024.
template <int units, int keys>
struct SharedPanels {
  static constexpr int kPanels = units / 64, kPanelBytes = keys * 128, kBytes = kPanels * kPanelBytes;
  uint32_t base;

  __device__ uint32_t pack(int row, int pack) const {
    return base + pack / 8 * kPanelBytes + row * 128 + ((pack ^ row) & 7) * 16;
  }

  // Where a lane finds row `row` of every 16, packs 2 i + `odd`.
  struct Lane {
    uint32_t from;
    __device__ uint32_t pack(int sixteen, int i) const {
      return (from + i / 4 * kPanelBytes + sixteen * (16 * 128)) ^ i % 4 * 32;
    }
  };
  __device__ Lane lane(int row, int odd) const { return {pack(row, odd)}; }
};

// Clears the packs from `own` on of matrices in `bytes` bytes. Nothing is copied there, but the tensor cores read it.
template <int units, int keys>
__device__ inline void clear_beyond(uint4* matrices, int bytes, int own, int threads) {
  const SharedPanels<units, keys> shared{0};
  const int beyond = units / 8 - own;
  for (int i = threadIdx.x; i < bytes / (units * 2) * beyond; i += threads) {
    const int row = i / beyond;
    matrices[(row / keys * shared.kBytes + shared.pack(row % keys, own + i % beyond)) / 16] = {0, 0, 0, 0};
  }
}

// Units that a warp's copies may be ahead of its arithmetic, including the one that marks the end.
inline constexpr int kQueue = 8;
static_assert(kStages < kQueue);

// The units of a warp, one after another. Where warps share the keys, these are the units of the warp's part. Else they
// are first the unit of the warp's number, then units that no warp has taken yet. `keys` keys of the unit being copied
// are taken at a time.
template <int keys, class Params>
class UnitFeed {
 public:
  __device__ UnitFeed(const Params& p, const Work<Params>& work, int warps, int32_t* tickets, Unit* queue)
      : p_(p),
        work_(work),
        warps_of_all_(static_cast<int>(gridDim.x) * warps),
        tickets_(tickets),
        queue_(queue + threadIdx.x / kWarp * kQueue) {
    // Consecutive units go to different SMs.
    const int warp = static_cast<int>(threadIdx.x / kWarp * gridDim.x + blockIdx.x);
    if (work.shared()) {
      at_ = min(warp * work.part(), work.count()), part_stop_ = min(at_ + work.part(), work.count());
      begin_part();
    } else {
      begin_unit(warp);
    }
  }

  // Called after the last unit: resets the tickets for the next launch. When the last warp has found no more units, no
  // warp takes a ticket any more.
  __device__ void finish() const {
    if (work_.shared()) return;
    if (threadIdx.x % kWarp == 0 && finished_before_ == warps_of_all_ - 1) tickets_[0] = tickets_[1] = 0;
  }

  // The unit whose keys come next.
  __device__ Unit next_unit() {
    __syncwarp();
    return queue_[taken_++ % kQueue];
  }

 protected:
  __device__ bool more() const { return next_ < stop_; }
  // Whether the next keys are those of earlier steps.
  __device__ bool next_are_cached() const { return min(next_ + keys, end_) <= cached_; }
  // Called after the copies of keys [next_, next_ + keys) have begun.
  __device__ void advance() {
    next_ += keys;
    if (next_ != stop_) return;
    if (work_.shared()) {
      begin_part();
    } else {
      begin_unit(__shfl_sync(kFullWarp, ticket_, 0) + warps_of_all_);
    }
  }

  const Params& p_;
  const int32_t* table_ = nullptr;
  int kv_head_ = 0, begin_ = 0, end_ = 0, next_ = 0, stop_ = 0;
  int cached_ = 0;  // the first key of the current step

 private:
  __device__ void begin_unit(int index) {
    const bool first_lane = threadIdx.x % kWarp == 0;
    Unit& place = queue_[begun_++ % kQueue];
    next_ = stop_ = 0;
    if (index >= work_.count()) {
      if (first_lane) place.index = -1, finished_before_ = atomicAdd(tickets_ + 1, 1);
      return;
    }
    if (first_lane) ticket_ = atomicAdd(tickets_, 1);
    begin_with(work_.unit(index), place);
  }

  // Begins the next unit of the warp's part.
  __device__ void begin_part() {
    Unit& place = queue_[begun_++ % kQueue];
    next_ = stop_ = 0;
    const Unit unit = work_.next_unit_of_grains(at_, part_stop_);
    if (unit.index >= 0) return begin_with(unit, place);
    if (threadIdx.x % kWarp == 0) place.index = -1;
  }

  __device__ void begin_with(const Unit& unit, Unit& place) {
    if (threadIdx.x % kWarp == 0) place = unit;
    table_ = p_.block_table + int64_t{unit.sequence} * p_.block_table_stride;
    kv_head_ = unit.kv_head, begin_ = unit.begin, end_ = unit.end;
    cached_ = count_keys(p_, unit.kv_len - unit.rows);
    next_ = unit.template first_stage<keys>();
    stop_ = next_ + (max(unit.end - next_, 1) + keys - 1) / keys * keys;
  }

  const Work<Params>& work_;
  const int warps_of_all_;
  int32_t* const tickets_;
  Unit* const queue_;
  int ticket_ = 0, finished_before_ = 0, begun_ = 0, taken_ = 0;
  int at_ = 0, part_stop_ = 0;  // position in grains, and the end of the warp's part
};

// What both kinds of copies have in common.
template <class T, int dim, class Params>
class StageRing : public UnitFeed<kStageKeys<T, dim>, Params> {
 public:
  static constexpr int kKeys = kStageKeys<T, dim>;
  using Rows = SharedPanels<kUnits<T, dim>, kKeys>;

  __device__ StageRing(const Params& p, const Work<Params>& work, uint32_t base, float* scales, int warps,
                       int32_t* tickets, Unit* queue)
      : UnitFeed<kKeys, Params>(p, work, warps, tickets, queue),
        base_(base + threadIdx.x / kWarp * kRingBytes<T, dim>),
        scales_(scales + threadIdx.x / kWarp * (kScaleBytes<T, dim> / 4)) {}

  __device__ Rows keys(int stage) const { return {base_ + stage * 2 * Rows::kBytes}; }
  __device__ Rows values(int stage) const { return {base_ + (stage * 2 + 1) * Rows::kBytes}; }
  __device__ float* scales(int stage) const { return scales_ + stage * 2 * kKeys; }

 private:
  const uint32_t base_;
  float* const scales_;
};

// Copies packs of 16 bytes, with zeros for keys that no row of the unit sees.
template <class T, int dim, class Params>
class PackStream : public StageRing<T, dim, Params> {
  using Base = StageRing<T, dim, Params>;
  static constexpr int kVector = kUnits<T, dim>, per_unit = Cached<T>::kPerUnit;

 public:
  using Base::kKeys;
  using Rows = typename Base::Rows;

  __device__ PackStream(const Params& p, const Work<Params>& work, uint32_t base, float* scales, int warps,
                        int32_t* tickets, Unit* queue)
      : Base(p, work, base, scales, warps, tickets, queue),
        keys_(p.k, p.head_dim / per_unit, p.head_dim / per_unit),
        values_(p.v, p.value_stride / per_unit, p.value_dim / per_unit) {
    look_up();
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
  }

  // Starts to copy the next keys as one group of copies, which is empty at the end.
  __device__ void fetch(int stage) {
    if (this->more()) {
      using Lane = CopyLane<kVector>;
      const int vector = place_.vector(this->p_, this->kv_head_);
      const uint32_t to = this->keys(stage).pack(Lane::key(), Lane::pack());
      copy_groups<kVector, kKeys / 8, 128>(to, keys_, vector, this->next_, this->begin_, this->end_);
      copy_groups<kVector, kKeys / 8, 128>(to + Rows::kBytes, values_, vector, this->next_, this->begin_, this->end_);
      if constexpr (kScaled<T>) copy_scales(stage, vector);
      this->advance();
      look_up();
    }
    commit_copies();
  }

  // Waits until the keys of the stage that was fetched first have arrived.
  __device__ void wait(int, int, const Unit&, int) const {
    wait_for_copies<kStages - 2>();
    __syncwarp();
  }

 private:
  // Each lane copies the scales of one key.
  __device__ void copy_scales(int stage, int vector) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, key = this->next_ + lane;
    const int at = __shfl_sync(kFullWarp, vector, lane / 8) + lane % 8;
    if (lane >= kKeys) return;
    const bool valid = key >= this->begin_ && key < this->end_;
    const uint32_t to = shared_address(this->scales(stage)) + lane * 4;
    copy_async_word(to, this->p_.k_scales + (valid ? at : 0), valid);
    copy_async_word(to + kKeys * 4, this->p_.v_scales + (valid ? at : 0), valid);
  }

  // Lane i looks up group i of the next stage.
  __device__ void look_up() {
    if (!this->more()) return;
    const int group = static_cast<int>(threadIdx.x) % (kKeys / 8);
    place_.look_up(this->p_, this->table_, this->next_ + group * 8, this->begin_, this->end_);
  }

  const CopyLane<kVector> keys_, values_;
  GroupPlace place_;
};

// Copies TMA tiles, one per lane. `barriers` has one barrier per stage and warp.
template <class T, int dim, class Params>
class TmaStream : public StageRing<T, dim, Params> {
  using Base = StageRing<T, dim, Params>;

 public:
  using Base::kKeys;
  using Rows = typename Base::Rows;

  // `begins_early`: whether the copies begin before the kernels have ended that write the step's own keys and values.
  __device__ TmaStream(const Params& p, const CacheMaps& maps, const Work<Params>& work, uint32_t base, float* scales,
                       uint32_t barriers, int warps, int32_t* tickets, Unit* queue, bool begins_early)
      : Base(p, work, base, scales, warps, tickets, queue),
        maps_(maps),
        policy_(l2_evict_first()),
        barriers_(barriers + threadIdx.x / kWarp * (kStages * 8)) {
    look_up();
    for (int i = 0; i < kStages - 1; ++i) {
      if (begins_early && !this->next_are_cached()) wait_for_earlier();
      fetch(i);
    }
  }

  __device__ void fetch(int stage) {
    if (!this->more()) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, rows = maps_.rows;
    const int vector = place_.vector(this->p_, this->kv_head_);
    const unsigned copying = __ballot_sync(kFullWarp, vector >= 0);
    const uint32_t full = barriers_ + stage * 8;
    if (lane == 0) {
      const int of_vector = 2 * Rows::kPanels * 128 + (kScaled<T> ? 2 * 4 : 0);
      expect_bytes(full, static_cast<uint32_t>(__popc(copying) * rows * of_vector));
    }
    if (vector >= 0) {
      const uint32_t keys = this->keys(stage).base + lane * rows * 128, values = keys + Rows::kBytes;
#pragma unroll
      for (int panel = 0; panel < Rows::kPanels; ++panel) {
        copy_tma_tile(keys + panel * Rows::kPanelBytes, maps_.keys, panel * 128, vector, full, policy_);
        copy_tma_tile(values + panel * Rows::kPanelBytes, maps_.values, panel * 128, vector, full, policy_);
      }
      if constexpr (kScaled<T>) {
        const uint32_t scales = shared_address(this->scales(stage)) + lane * rows * 4;
        copy_bulk(scales, this->p_.k_scales + vector, static_cast<uint32_t>(rows) * 4, full, policy_);
        copy_bulk(scales + kKeys * 4, this->p_.v_scales + vector, static_cast<uint32_t>(rows) * 4, full, policy_);
      }
    }
    this->advance();
    look_up();
  }

  // Waits until the stage's keys have arrived, which are those from `first_key` on of the unit that is decoded. Clears
  // the values that no row of the unit sees, as they are multiplied by weights of zero.
  __device__ void wait(int stage, int round, const Unit& unit, int first_key) const {
    wait_barrier(barriers_ + stage * 8, round & 1);
    __syncwarp();
    if (first_key >= unit.begin && first_key + kKeys <= unit.end) return;
    const int key = static_cast<int>(threadIdx.x) % kWarp;
    if (key < kKeys && (first_key + key < unit.begin || first_key + key >= unit.end)) {
      const Rows values = this->values(stage);
#pragma unroll 1
      for (int pack = 0; pack < Rows::kPanels * 8; ++pack) store_shared(values.pack(key, pack), uint4{0, 0, 0, 0});
      if constexpr (kScaled<T>) this->scales(stage)[kKeys + key] = 0.0f;
    }
    fence_proxy_async();  // orders these stores before the next TMA copy to this stage
    __syncwarp();
  }

 private:
  // Lane i looks up tile i of the next stage.
  __device__ void look_up() {
    const int at = static_cast<int>(threadIdx.x) % kWarp * maps_.rows;
    if (this->more() && at < kKeys) {
      place_.look_up(this->p_, this->table_, this->next_ + at, this->begin_, this->end_, maps_.rows);
    } else {
      place_.none();
    }
  }

  const CacheMaps& maps_;
  const uint64_t policy_;
  const uint32_t barriers_;
  GroupPlace place_;
};

}  // namespace sluice::cuda
