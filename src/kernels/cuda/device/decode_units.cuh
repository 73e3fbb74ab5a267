// Decode attention on the device: each warp takes units of work one after another (decode_stream.cuh) and multiplies
// keys and values (decode_queries.cuh). The results of a sequence's chunks are merged here.
#pragma once

#include "kernels/cuda/device/decode_queries.cuh"

namespace sluice::cuda {

inline constexpr int kMerged = 16;  // most chunk results that are merged at once

// Whether this warp is the last of `expected` warps to arrive at the counter. If so, it sees what the others wrote
// before.
__device__ inline bool last_to_arrive(int32_t* counter, int expected) {
  __syncwarp();
  int before = 0;
  if (threadIdx.x % kWarp == 0) {
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    if (before == expected - 1) *counter = 0;
  }
  return __shfl_sync(kFullWarp, before, 0) == expected - 1;
}

// Merges the chunks first, first + step and so on of the unit's line, at most kMerged, in this order. The result goes
// to the slot of the first of them or, if `whole`, to the output. kMergedRows rows are merged at a time. Lane i holds
// the weights of chunk i % kMerged for row i / kMerged and every second row from there. Sums and first values are
// loaded together, as the latency of a step depends on this.
inline constexpr int kMergedRows = 4, kMergedAtOnce = 4;
template <class Params>
__device__ inline void merge(const Params& p, const Work<Params>& work, const Unit& unit, const Partials& partials,
                             int first, int step, int count, bool whole) {
  static_assert(kMerged == kWarp / 2 && kMerged % kMergedAtOnce == 0);
  constexpr int kOwn = kMergedRows / 2;
  const int lane = threadIdx.x % kWarp, rows = work.rows(unit), value_dim = p.value_dim;
  const auto slot = [&](int i, int row) { return int64_t{work.slot(unit, first + i * step)} * partials.rows + row; };
  for (int row = 0; row < rows; row += kMergedRows) {
    const auto own_row = [&](int j) { return row + 2 * j + lane / kMerged; };
    ChunkSum own[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      own[j] = {-INFINITY, 0.0f};
      if (lane % kMerged >= count || own_row(j) >= rows) continue;
      const float2 sum = __ldcg(reinterpret_cast<const float2*>(partials.sums + slot(lane % kMerged, own_row(j))));
      own[j] = {sum.x, sum.y};
    }
    float weight[kOwn];
    for (int first_d = 0; first_d < value_dim; first_d += kWarp * 4) {
      const int d = first_d + lane * 4;
      float4 value[kMergedRows] = {};
#pragma unroll 1
      for (int begin = 0; begin < count; begin += kMergedAtOnce) {
        float4 parts[kMergedAtOnce][kMergedRows];
#pragma unroll
        for (int i = 0; i < kMergedAtOnce; ++i) {
#pragma unroll
          for (int r = 0; r < kMergedRows; ++r) {
            parts[i][r] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (begin + i >= count || row + r >= rows || d >= value_dim) continue;
            parts[i][r] =
                __ldcg(reinterpret_cast<const float4*>(partials.values + slot(begin + i, row + r) * value_dim + d));
          }
        }
        if (first_d == 0 && begin == 0) {
#pragma unroll
          for (int j = 0; j < kOwn; ++j) {
            const bool sinks = whole && p.sinks != nullptr;
            const float sink = sinks ? p.sinks[work.row(unit, min(own_row(j), rows - 1)).head] * kLog2E : -INFINITY;
            const float top = fmaxf(warp_max<kMerged>(own[j].top), sink), base = top == -INFINITY ? 0.0f : top;
            weight[j] = exp2_fast(own[j].top - base);
            const float sum = warp_sum<kMerged>(weight[j] * own[j].sum) + (sinks ? exp2_fast(sink - base) : 0.0f);
            if constexpr (kOfPart<Params>) {
              if (whole && lane % kMerged == 0 && own_row(j) < rows) {
                const PackedRow packed = work.row(unit, own_row(j));
                put_log_sum(p, unit.first_token + packed.token, packed.head, top, sum);
              }
              if (whole) weight[j] = sum == 0.0f ? 0.0f : weight[j] / sum;
            } else {
              if (whole) weight[j] /= sum;
            }
            if (!whole && lane % kMerged == 0 && own_row(j) < rows) partials.sums[slot(0, own_row(j))] = {top, sum};
          }
        }
#pragma unroll
        for (int i = 0; i < kMergedAtOnce; ++i) {
#pragma unroll
          for (int r = 0; r < kMergedRows; ++r) {
            const float w = __shfl_sync(kFullWarp, weight[r / 2], r % 2 * kMerged + begin + i);
            const float4& part = parts[i][r];
            value[r].x = fmaf(w, part.x, value[r].x), value[r].y = fmaf(w, part.y, value[r].y);
            value[r].z = fmaf(w, part.z, value[r].z), value[r].w = fmaf(w, part.w, value[r].w);
          }
        }
      }
      if (d >= value_dim) continue;
#pragma unroll
      for (int r = 0; r < kMergedRows; ++r) {
        if (row + r >= rows) break;
        if (!whole) {
          *reinterpret_cast<float4*>(partials.values + slot(0, row + r) * value_dim + d) = value[r];
          continue;
        }
        const PackedRow packed = work.row(unit, row + r);
        const int64_t out = (unit.first_token + packed.token) * p.out_stride + int64_t{packed.head} * value_dim + d;
        put_result(p, out, value[r].x), put_result(p, out + 1, value[r].y);
        put_result(p, out + 2, value[r].z), put_result(p, out + 3, value[r].w);
      }
    }
  }
}

// Called after a unit's result was stored. The warp that completes a group of chunks merges it; the warp that completes
// the last group writes the result.
template <class Params>
__device__ inline void merge_complete(const Params& p, const Work<Params>& work, const Unit& unit,
                                      const Partials& partials) {
  const int first_chunk = unit.chunk / kMerged * kMerged, in_group = min(kMerged, unit.chunks - first_chunk);
  const int groups = (unit.chunks + kMerged - 1) / kMerged;
  if (in_group > 1) {
    if (!last_to_arrive(partials.arrivals + work.slot(unit, first_chunk), in_group)) return;
    merge(p, work, unit, partials, first_chunk, 1, in_group, groups == 1);
  }
  if (groups == 1) return;
  if (!last_to_arrive(partials.arrivals + work.slot(unit, 1), groups)) return;  // no group begins at chunk 1
  merge(p, work, unit, partials, 0, kMerged, groups, true);
}

// The shared memory of a block, from a multiple of 1024: the warps' rings with their scales, queues and stage barriers,
// then the sequences.
template <class T, int dim>
struct DecodeMemory {
  static constexpr int kKeyBytes = 2 * dim * static_cast<int>(sizeof(T));
  static constexpr int kOfSequence = sizeof(SequenceWork), kOfWarp = kRingBytes<T, dim> + kScaleBytes<T, dim> +
                                                                     kQueue * static_cast<int>(sizeof(Unit)) +
                                                                     kStages * 8;
  static constexpr int bytes(int warps, int sequences) { return warps * kOfWarp + sequences * kOfSequence; }

  __device__ DecodeMemory(uint4* memory, int warps)
      : rings(memory),
        scales(reinterpret_cast<float*>(memory + warps * (kRingBytes<T, dim> / 16))),
        queues(reinterpret_cast<Unit*>(scales + warps * (kScaleBytes<T, dim> / 4))),
        barriers(reinterpret_cast<uint64_t*>(queues + warps * kQueue)),
        sequences(reinterpret_cast<SequenceWork*>(barriers + warps * kStages)) {}

  uint4* rings;
  float* scales;
  Unit* queues;
  uint64_t* barriers;  // one per stage, where TMA copies use them
  SequenceWork* sequences;
};

// Decodes the units of a stream, as one of all warps of the grid.
template <class T, int dim, int tiles, class Params, class Stream>
__device__ inline void decode_units(const Params& p, const Work<Params>& work, const Partials& partials,
                                    Stream& stream) {
  constexpr int kKeys = Stream::kKeys;
  int stage = 0, round = 0;
  for (Unit unit = stream.next_unit(); unit.index >= 0; unit = stream.next_unit()) {
    Queries<T, dim, tiles, Params> queries(p, work, unit);
    const int stop = unit.stop<kKeys>();
    for (int key = unit.first_stage<kKeys>(); key < stop; key += kKeys) {
      stream.wait(stage, round, unit, key);
      stream.fetch(stage == 0 ? kStages - 1 : stage - 1);
      queries.template attend<kKeys>(stream.keys(stage), stream.values(stage), stream.scales(stage), key);
      if (++stage == kStages) stage = 0, ++round;
    }
    if (unit.chunks == 1) {
      queries.write(unit);
    } else {
      queries.store(partials, unit.index);
      merge_complete(p, work, unit, partials);
    }
  }
  stream.finish();
}

}  // namespace sluice::cuda
