// Attention to a window of keys and to entries (DeepSeek-V4). The keys and entries that some rows see are copied
// together, and the kernels for all keys attend to the copies, where each row is a sequence of its own
// (ops/gathered_keys.h). The copies are bound by memory traffic; those of one launch mostly stay in the L2 cache.
#include "kernels/cuda/attention/copies.h"
#include "kernels/cuda/compression.h"
#include "kernels/cuda/device/entry_places.cuh"
#include "kernels/cuda/device/search.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256, kBlock = ops::GatheredKeys::kBlock;

struct CopyParams {
  const std::byte *keys, *entries;  // entries may be null
  const float* scales;              // for int8 caches, of keys
  EntryPlaces places;
  int window, block_size;
  const int32_t *selected, *query_start, *kv_len, *block_table;
  int top_k, sequences, block_table_stride;
  int first_row, vector_bytes, element_bytes;
  std::byte* to;
  float* to_scales;
  int32_t *to_query_start, *to_kv_len, *to_block_table;
};

// Copies a block of what one row sees: block x of row y. Its keys come first, then its entries, then zeros.
template <class Pack>
__global__ void __launch_bounds__(kThreads) copy_seen(const __grid_constant__ CopyParams p) {
  const int row = p.first_row + static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int sequence = last_of(0, p.sequences - 1, [&](int s) { return p.query_start[s] <= row; });
  const int32_t* table = p.block_table + int64_t{sequence} * p.block_table_stride;
  const int32_t* selected = p.selected != nullptr ? p.selected + int64_t{row} * p.top_k : nullptr;
  const int position = p.kv_len[sequence] - p.query_start[sequence + 1] + row;
  const int first_key = max(0, position - p.window + 1), keys = position + 1 - first_key;
  const int complete = p.entries != nullptr ? (position + 1) / p.places.rate : 0;
  const int first = static_cast<int>(blockIdx.x) * kBlock, packs = p.vector_bytes / static_cast<int>(sizeof(Pack));
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const auto key_at = [&](int i) {
    const int at = first_key + i;
    return int64_t{table[at / p.block_size]} * p.block_size + at % p.block_size;
  };
  // Null: there is none.
  const auto entry_at = [&](int i) -> const std::byte* {
    if (selected != nullptr ? i >= p.top_k : i >= complete) return nullptr;
    const int entry = selected != nullptr ? selected[i] : i;
    if (entry < 0) return nullptr;
    return p.entries + p.places.element(table, entry) * p.element_bytes;
  };
  auto* to = reinterpret_cast<Pack*>(p.to) + block * kBlock * packs;
  for (int i = thread; i < kBlock * packs; i += kThreads) {
    const int place = first + i / packs;
    const std::byte* from = place < keys ? p.keys + key_at(place) * p.vector_bytes
                            : p.entries  ? entry_at(place - keys)
                                         : nullptr;
    to[i] = from == nullptr ? Pack{} : reinterpret_cast<const Pack*>(from)[i % packs];
  }
  if (p.scales != nullptr && thread < kBlock) {
    p.to_scales[block * kBlock + thread] = first + thread < keys ? p.scales[key_at(first + thread)] : 0.0f;
  }
  if (thread > 0) return;
  p.to_block_table[block] = static_cast<int32_t>(block);
  if (blockIdx.x > 0) return;
  p.to_query_start[blockIdx.y] = static_cast<int32_t>(blockIdx.y);
  if (blockIdx.y + 1 == gridDim.y) p.to_query_start[gridDim.y] = static_cast<int32_t>(gridDim.y);
  const int entries =
      selected != nullptr ? last_of(0, p.top_k, [&](int n) { return n == 0 || selected[n - 1] >= 0; }) : complete;
  p.to_kv_len[blockIdx.y] = keys + entries;
}

// The largest number of keys and entries that a row sees. On the device lengths may be less.
int64_t most_seen(const ops::EntryAttentionArgs& args) {
  int64_t longest = 0;
  for (const int32_t length : args.sequences.kv_len) longest = std::max<int64_t>(longest, length);
  const int64_t keys = std::min<int64_t>(args.window, longest);
  if (args.entries.cache.data == nullptr) return keys;
  return keys + (args.selected.data != nullptr ? args.selected.shape[1] : longest / args.entries.rate);
}

CopyParams params_of(const Launch& l, const ops::EntryAttentionArgs& args, const ops::GatheredKeys& copies) {
  const ops::EntryCache& e = args.entries;
  CopyParams p{.keys = args.k_cache.data,
               .entries = e.cache.data,
               .scales = args.k_cache.scales,
               .places = {},
               .window = args.window,
               .block_size = static_cast<int>(args.k_cache.shape[2]),
               .selected = args.selected.as<int32_t>(),
               .query_start = on_device(l, args.sequences.query_start),
               .kv_len = on_device(l, args.sequences.kv_len),
               .block_table = on_device(l, args.sequences.block_table),
               .top_k = 0,
               .sequences = static_cast<int>(args.sequences.kv_len.size()),
               .block_table_stride = args.sequences.block_table_stride,
               .first_row = 0,
               .vector_bytes = static_cast<int>(ops::GatheredKeys::vector_bytes(args.k_cache)),
               .element_bytes = static_cast<int>(args.k_cache.dtype->block_bytes),
               .to = copies.keys.data,
               .to_scales = copies.keys.scales,
               .to_query_start = copies.query_start,
               .to_kv_len = copies.kv_len,
               .to_block_table = copies.block_table};
  if (e.cache.data != nullptr) p.places = EntryPlaces(e);
  if (args.selected.data != nullptr) p.top_k = static_cast<int>(args.selected.shape[1]);
  return p;
}

}  // namespace

void entry_attention(const Launch& l, const ops::EntryAttentionArgs& args, Arithmetic arithmetic) {
  const int64_t tokens = args.q.shape[0], most = most_seen(args), dim = args.k_cache.shape[3];
  if (tokens == 0) return;
  const bool entries = args.entries.cache.data != nullptr;
  CHECK(!entries || (args.entries.cache.dtype == args.k_cache.dtype && args.k_cache.scales == nullptr),
        "entries of {} beside keys of {}", args.entries.cache.dtype->name, args.k_cache.dtype->name);
  // Half of the workspace is for the copies, the other half for the attention to them.
  Launch behind = l;
  behind.workspace_bytes = l.workspace_bytes / 2 / kBytesPerArrival * kBytesPerArrival;
  std::byte* const rest = l.workspace + behind.workspace_bytes;
  const auto rest_bytes = static_cast<int64_t>(l.workspace_bytes - behind.workspace_bytes);
  ops::AttentionArgs all;
  all.out = args.out, all.q = args.q, all.k_cache = args.k_cache, all.value_dim = dim;
  all.heads = args.heads, all.scale = args.scale, all.sinks = args.sinks;
  all.selected = Tensor(nullptr, &kInt32, {tokens, most});
  all.gathered = Tensor(rest, &kInt8, {1, rest_bytes});
  const ops::GatheredKeys copies(all);
  CopyParams p = params_of(l, args, copies);
  const auto whole = [](auto... values) { return ((reinterpret_cast<uintptr_t>(values) % 16 == 0) && ...); };
  const bool packs = whole(p.keys, p.entries) && p.vector_bytes % 16 == 0 && p.places.aligned(16 / p.element_bytes);
  attend_to_copies(behind, all, copies, arithmetic, [&](int first, dim3 grid) {
    p.first_row = first;
    if (packs) {
      copy_seen<uint4><<<grid, kThreads, 0, l.stream>>>(p);
    } else {
      copy_seen<uint8_t><<<grid, kThreads, 0, l.stream>>>(p);
    }
  });
}

}  // namespace sluice::cuda
