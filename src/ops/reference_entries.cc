// Scalar reference of the op that selects entries.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "ops/entries.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace {

void load_entry(const EntryCache& e, const int32_t* blocks, int64_t entry, std::vector<float>& to) {
  const int64_t block_size = e.cache.shape[2], last_token = entry * e.rate + e.rate - 1;
  const int64_t block = last_token / block_size, first_entry = block * block_size / e.rate;
  const int64_t at = blocks[block] * block_size * e.cache.shape[3] + (entry - first_entry) * e.stride + e.first;
  const std::byte* from = e.cache.data + at * static_cast<int64_t>(e.cache.dtype->block_bytes);
  if (e.cache.dtype != &kInt8) return to_float(e.cache.dtype, from, to.data(), to.size());
  const auto* codes = reinterpret_cast<const int8_t*>(from);
  for (size_t i = 0; i < to.size(); ++i) to[i] = e.cache.scales[at / e.dim] * static_cast<float>(codes[i]);
}

// NaN counts as the lowest score, so that the order is strict.
double score_of(const float* q, const float* weights, int64_t heads, const std::vector<float>& entry) {
  double sum = 0;
  for (int64_t h = 0; h < heads; ++h, q += entry.size()) {
    double dot = 0;
    for (size_t i = 0; i < entry.size(); ++i) dot += double(q[i]) * entry[i];
    sum += weights[h] * std::max(dot, 0.0);
  }
  return std::isnan(sum) ? -std::numeric_limits<double>::infinity() : sum;
}

}  // namespace

void select_entries(Queue& queue, const SelectEntriesArgs& args) {
  const int64_t tokens = args.weights.shape[0], heads = args.weights.shape[1], top_k = args.selected.shape[1];
  const Indices& start = args.sequences.query_start;
  queue.threads().parallel_for(tokens, 1, [&](int64_t t, int64_t end) {
    std::vector<float> entry(static_cast<size_t>(args.entries.dim));
    for (; t < end; ++t) {
      const int64_t s = std::upper_bound(start.begin(), start.end(), t) - start.begin() - 1;
      const int64_t position = args.sequences.kv_len[s] - start[s + 1] + t;
      const int32_t* blocks = args.sequences.block_table.data() + s * args.sequences.block_table_stride;
      std::vector<std::pair<double, int32_t>> order;  // by falling score, then by index
      for (int64_t e = args.first; e < (position + 1) / args.entries.rate; ++e) {
        load_entry(args.entries, blocks, e, entry);
        const double score = score_of(args.q.f32() + t * args.q.row_stride,
                                      args.weights.f32() + t * args.weights.row_stride, heads, entry);
        order.emplace_back(-score, static_cast<int32_t>(e));
      }
      std::ranges::sort(order);
      if (std::ssize(order) > top_k) order.resize(static_cast<size_t>(top_k));
      int32_t* to = args.selected.as<int32_t>() + t * top_k;
      std::fill_n(to, top_k, -1);
      for (size_t i = 0; i < order.size(); ++i) to[i] = order[i].second;
      std::sort(to, to + order.size());
    }
  });
}

}  // namespace sluice::ops::reference
