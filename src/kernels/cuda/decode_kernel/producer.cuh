// The producer warps of the persistent decode kernel: they copy weights, keys and values into the ring.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/decode_kernel/block.cuh"
#include "kernels/cuda/decode_kernel/choice.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda::persistent {

// A producer warp: fills its stages of the ring. It keeps no more stages in flight than keep memory busy, because
// everything else that the block reads waits behind them.
class Producer {
 public:
  __device__ Producer(const DecodeKernelLaunch& l, std::byte* ring, const RingPlace& own, int index)
      : ring_(shared_address(ring)),
        policy_(l2_evict_first()),
        most_(l.ahead),
        next_(index),
        place_(own),
        arriving_(own) {}

  template <class Weights>
  __device__ void feed(const MatmulInstruction& p) {
    const Units units(p);
    const typename Weights::Source from(p);
    const int stages = (p.slices + Weights::kSlices - 1) / Weights::kSlices, grid = static_cast<int>(gridDim.x);
    for (int unit = units.first; unit < units.count; unit += grid) {
      for (int i = 0; i < units.panels; ++i) {
        for (; next_ < stages; next_ += kProducerWarps) {
          wait_for_room();
          Weights::fill(from, unit + i * units.of_matrix, next_ * Weights::kSlices, ring_ + place_.offset(),
                        place_.full(), policy_);
          place_.next();
        }
        next_ -= stages;
      }
    }
  }

  // The same for a matmul of experts.
  template <class Weights>
  __device__ void feed_experts(const MatmulInstruction& p, const Choice* choices) {
    const Units units(p);
    const typename Weights::Source from(p);
    const bool of_all = p.experts.part == ExpertPart::kOut;
    const int stages = (p.slices + Weights::kSlices - 1) / Weights::kSlices, grid = static_cast<int>(gridDim.x);
    const int panels = p.experts.panels, top_k = p.experts.choice.top_k;
    const int stages_of_choice = of_all ? p.experts.stages : stages;
    for (int unit = units.first; unit < units.count; unit += grid) {
      const int choice_of_unit = of_all ? 0 : unit / units.of_matrix, own = unit - choice_of_unit * units.of_matrix;
      for (int i = 0; i < units.panels; ++i) {
        const int first_choice = of_all ? i * top_k : choice_of_unit,
                  of_half = of_all ? own : own + i * units.of_matrix;
        for (; next_ < stages; next_ += kProducerWarps) {
          const int further = next_ / stages_of_choice, stage = next_ - further * stages_of_choice;
          const int panel = choices[first_choice + further].expert * panels + of_half;
          wait_for_room();
          Weights::fill(from, panel, stage * Weights::kSlices, ring_ + place_.offset(), place_.full(), policy_);
          place_.next();
        }
        next_ -= stages;
      }
    }
  }

  // Copies keys and values of the block's unit. Called by the whole warp; the first lane copies.
  __device__ void feed(const AttentionInstruction& a, const UnitPlace& place) {
    if (place.chunks == 0) return;
    const AttentionParams& p = a.params;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, begin = place.begin, end = place.end;
    const int block_size = p.block_size, kv_heads = p.kv_heads, kv_head = place.kv_head, tile_keys = a.tile_keys;
    const int key_tiles = (p.head_dim + 63) / 64, value_tiles = (p.value_dim + 63) / 64;
    const TensorMaps* const maps = a.maps;
    const uint32_t per_block = p.per_block;
    const int32_t* table = p.block_table + place.table + place.first_block;
    const int blocks = place.blocks;
    const auto ids_from = [&](int block) { return block + lane < blocks ? __ldg(table + block + lane) : 0; };
    int window = 0, ids = place.ids[lane], later = ids_from(kWarp);
    const int stages = (end - begin + kDecodeKeys - 1) / kDecodeKeys;
    next_ = __shfl_sync(kFullWarp, next_, 0);
    for (; next_ < stages; next_ += kProducerWarps) {
      const int key = begin + next_ * kDecodeKeys;
      // All keys of the stage lie in one cache block or in two consecutive ones.
      const int block = static_cast<int>(__umulhi(static_cast<unsigned>(key), per_block));
      if (block - place.first_block >= window + kWarp) {
        window += kWarp;
        ids = later, later = ids_from(window + kWarp);
      }
      const int at = block - place.first_block - window;
      const int id[2] = {__shfl_sync(kFullWarp, ids, at),
                         __shfl_sync(kFullWarp, at + 1 < kWarp ? ids : later, (at + 1) % kWarp)};
      if (lane != 0) continue;
      wait_for_room();
      const uint32_t to = ring_ + place_.offset(), full = place_.full();
      const int copied = min((end - key + tile_keys - 1) / tile_keys * tile_keys, kDecodeKeys);
      expect_bytes(full, copied * 128 * (key_tiles + value_tiles));
      for (int i = 0; i < copied; i += tile_keys) {
        const int in_block = key + i - block * block_size;
        const bool same = in_block < block_size;
        const int vector =
            ((same ? id[0] : id[1]) * kv_heads + kv_head) * block_size + (same ? in_block : in_block - block_size);
        for (int tile = 0; tile < key_tiles + value_tiles; ++tile) {
          const bool is_key = tile < key_tiles;
          copy_tma_tile(to + (tile * kDecodeKeys + i) * 128, is_key ? maps->weights_or_keys : maps->scales_or_values,
                        (is_key ? tile : tile - key_tiles) * 128, vector, full, policy_);
        }
      }
      place_.next();
    }
    next_ -= stages;
  }

 private:
  __device__ void wait_for_room() {
    place_.wait_empty();
    if (ahead_ < most_) {
      ++ahead_;
      return;
    }
    arriving_.wait_full();
    arriving_.next();
  }

  const uint32_t ring_;
  const uint64_t policy_;
  const int most_;
  int ahead_ = 0;
  int next_;  // the warp's next stage, counted from the start of the current panel or key range
  RingPlace place_, arriving_;
};

constexpr int kInstructionPacks = static_cast<int>(sizeof(Instruction) / sizeof(uint4));
static_assert(kInstructionPacks <= kWarp);

// The loop of a producer warp. The next instruction is loaded while the current one is fed, so that memory is never
// idle.
template <class T, class Quantized>
__device__ void feed(const DecodeKernelLaunch& l, const Memory& memory, const RingPlace& own, int index) {
  Producer producer(l, memory.ring, own, index);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto prefetch = [&](int i) {
    uint4 v = {0, 0, 0, 0};
    const auto* from = reinterpret_cast<const uint4*>(l.instructions + i) + lane;
    if (i >= 0 && lane < kInstructionPacks) {
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(from));
    }
    return v;
  };
  uint4 next = prefetch(l.first_fed);
  const uint32_t epoch = __ldcg(l.arrivals + 1) + 1;
  uint32_t known = epoch - 1;  // the tag of the choice that the warp knows
  Choice* const choices = memory.choices + (kEpilogueWarps + index) * kMostChoices;
  int turn = 0;
  for (int i = l.first_fed; i >= 0; turn ^= 1) {
    Instruction& in = memory.fed[2 * index + turn];
    if (lane < kInstructionPacks) reinterpret_cast<uint4*>(&in)[lane] = next;
    __syncwarp();
    i = in.next;
    next = prefetch(i);
    if (in.kind == Instruction::Kind::kAttention) {
      producer.feed(in.attention, memory.places[in.attention.place]);
      __syncwarp();
      continue;
    }
    const MatmulInstruction& p = in.matmul;
    if (index == 0 && p.put.weight != nullptr) {  // every block prefetches a share of the norm weights
      const int at = (static_cast<int>(blockIdx.x) * kWarp + lane) * 8;
      if (at < p.n) prefetch_to_l2(p.put.weight + at);
    }
    if (kExecutesExperts<Quantized> && p.experts.part != ExpertPart::kNone) {
      if constexpr (kExecutesExperts<Quantized>) {
        if (Units(p).any()) choose(p, epoch, known, choices);
        if (lane == 0) {
          if constexpr (Quantized::kExperts) {
            if (p.quantized) producer.template feed_experts<Quantized>(p, choices);
          }
          if (!p.quantized) producer.template feed_experts<PlainWeights<T>>(p, choices);
        }
      }
    } else if (lane == 0) {
      bool fed = false;
      if constexpr (!std::is_same_v<Quantized, NoWeights>) {
        if (p.quantized) producer.template feed<Quantized>(p), fed = true;
      }
      if (!fed) producer.template feed<PlainWeights<T>>(p);
    } else if (lane == 1 && i >= 0) {
      const Instruction& later = l.instructions[i];
      if (later.kind == Instruction::Kind::kAttention) {
        prefetch_maps(later.attention.maps, true);
      } else {
        prefetch_maps(later.matmul.maps, later.matmul.quantized);
      }
    }
    __syncwarp();
  }
}

}  // namespace sluice::cuda::persistent
