// Row loops, gathering and quickselect.
#include "sampling/selection.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

namespace sluice {
namespace {

// Loops over whole rows are compiled for several instruction sets; the best one is chosen when the program starts. No
// sum depends on the vector width, so no result does. Sanitizers are not initialized yet when the choice is made, so
// they get the default only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ROW_LOOP __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ROW_LOOP
#endif

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kLowestExponent = -87.0f;  // exp() of it is a normal number
constexpr size_t kSmall = 32;              // up to this many candidates are sorted instead

inline float larger(float a, float b) { return a > b ? a : b; }

// Cody-Waite reduction and a polynomial of degree 6 (Cephes expf). Zero below kLowestExponent.
[[gnu::always_inline]] inline float exp_not_positive(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const float y = x < kLowestExponent ? kLowestExponent : x;
  const float shifted = y * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
  return x < kLowestExponent ? 0.0f : p * power;
}

// Computes the maxima of whole chunks. Returns whether no logit is NaN or +infinity.
ROW_LOOP bool max_of_chunks(const float* logits, size_t chunks, float* chunk_max) {
  int32_t bad = 0;
  for (size_t i = 0; i < chunks; ++i, logits += kChunk) {
    float largest[kChunk / 2];
    for (int j = 0; j < kChunk; ++j) bad |= logits[j] <= kLargest ? 0 : 1;
    for (int j = 0; j < kChunk / 2; ++j) largest[j] = larger(logits[j], logits[j + kChunk / 2]);
    for (int width = kChunk / 4; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) largest[j] = larger(largest[j], largest[j + width]);
    }
    chunk_max[i] = largest[0];
  }
  return bad == 0;
}

ROW_LOOP void weigh_chunks(const float* logits, size_t chunks, float max, float scale, float* weights,
                           double* chunk_sum) {
  for (size_t i = 0; i < chunks; ++i, logits += kChunk, weights += kChunk) {
    float sum[kChunk / 2];
    for (int j = 0; j < kChunk; ++j) weights[j] = exp_not_positive((logits[j] - max) * scale);
    for (int j = 0; j < kChunk / 2; ++j) sum[j] = weights[j] + weights[j + kChunk / 2];
    for (int width = kChunk / 4; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
    }
    chunk_sum[i] = sum[0];
  }
}

ROW_LOOP int count_above(const float* logits, size_t size, float value) {
  int count = 0;
  for (size_t i = 0; i < size; ++i) count += logits[i] > value ? 1 : 0;
  return count;
}

// Copies the row's incomplete last chunk and pads it with masked tokens.
const float* filled_up(std::span<const float> logits, float (&copy)[kChunk]) {
  const std::span<const float> chunk = logits.last(logits.size() % kChunk);
  std::fill(std::ranges::copy(chunk, copy).out, copy + kChunk, -kInfinity);
  return copy;
}

size_t chunks_of(std::span<const float> logits) { return (logits.size() + kChunk - 1) / kChunk; }

std::span<const float> chunk_of(std::span<const float> logits, size_t i) {
  return logits.subspan(i * kChunk, std::min<size_t>(kChunk, logits.size() - i * kChunk));
}

}  // namespace

RowScan scan_row(std::span<const float> logits, std::vector<float>& chunk_max) {
  chunk_max.resize(chunks_of(logits));
  RowScan scan{.max = -kInfinity};
  const size_t whole = logits.size() / kChunk;
  scan.finite = max_of_chunks(logits.data(), whole, chunk_max.data());
  if (whole < chunk_max.size()) {
    float copy[kChunk];
    scan.finite &= max_of_chunks(filled_up(logits, copy), 1, &chunk_max[whole]);
  }
  for (const float max : chunk_max) scan.max = std::max(scan.max, max);
  return scan;
}

TokenId argmax(std::span<const float> logits, const RowScan& scan, const std::vector<float>& chunk_max) {
  const auto chunk = std::ranges::find(chunk_max, scan.max) - chunk_max.begin();
  return static_cast<TokenId>(std::ranges::find(logits.subspan(chunk * kChunk), scan.max) - logits.begin());
}

void gather(std::span<const float> logits, const std::vector<float>& chunk_max, float threshold,
            std::vector<Candidate>& out) {
  out.clear();
  for (size_t i = 0; i < chunk_max.size(); ++i) {
    if (!(chunk_max[i] >= threshold)) continue;
    const std::span<const float> chunk = chunk_of(logits, i);
    for (size_t j = 0; j < chunk.size(); ++j) {
      if (chunk[j] >= threshold && chunk[j] > -kInfinity) {
        out.push_back({.logit = chunk[j], .id = static_cast<TokenId>(i * kChunk + j)});
      }
    }
  }
}

void gather_top(std::span<const float> logits, const std::vector<float>& chunk_max, int k, std::vector<Candidate>& out,
                std::vector<Candidate>& scratch) {
  // k chunks have a maximum of at least the k-th largest one, so the k-th largest logit is no smaller.
  float threshold = -kInfinity;
  if (k <= static_cast<int>(chunk_max.size())) {
    std::vector<float> maxima = chunk_max;
    std::ranges::nth_element(maxima, maxima.begin() + (k - 1), std::greater<>());
    threshold = maxima[k - 1];
  }
  gather(logits, chunk_max, threshold, out);
  if (static_cast<int>(out.size()) <= k) return;
  scratch = out;
  std::ranges::nth_element(scratch, scratch.begin() + (k - 1), before);
  const Candidate last = scratch[k - 1];
  std::erase_if(out, [&](const Candidate& candidate) { return before(last, candidate); });
}

void keep_nucleus(std::vector<Candidate>& candidates, double mass, std::vector<Candidate>& scratch) {
  if (candidates.empty()) return;
  scratch = candidates;
  auto begin = scratch.begin(), end = scratch.end();
  double sum = 0.0;  // weight of the candidates before `begin`
  // Quickselect by weight. Keys are distinct, so the median of three always leaves candidates on both sides.
  while (end - begin > static_cast<std::ptrdiff_t>(kSmall)) {
    Candidate probes[] = {*begin, *(begin + (end - begin) / 2), *(end - 1)};
    std::ranges::sort(probes, before);
    const auto middle = std::partition(begin, end, [&](const Candidate& c) { return before(c, probes[1]); });
    double part = 0.0;
    for (auto it = begin; it != middle; ++it) part += it->weight;
    if (sum + part >= mass) {
      end = middle;
    } else {
      sum += part;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  while (begin + 1 != end && (sum += begin->weight) < mass) ++begin;
  const Candidate last = *begin;
  std::erase_if(candidates, [&](const Candidate& candidate) { return before(last, candidate); });
}

float relative_weight(float x, float max, float scale) { return exp_not_positive((x - max) * scale); }

double weigh_row(std::span<const float> logits, float max, float scale, std::vector<float>& weights,
                 std::vector<double>& chunk_sum) {
  chunk_sum.resize(chunks_of(logits));
  weights.resize(chunk_sum.size() * kChunk);
  const size_t whole = logits.size() / kChunk;
  weigh_chunks(logits.data(), whole, max, scale, weights.data(), chunk_sum.data());
  if (whole < chunk_sum.size()) {
    float copy[kChunk];
    weigh_chunks(filled_up(logits, copy), 1, max, scale, &weights[whole * kChunk], &chunk_sum[whole]);
  }
  double total = 0.0;
  for (const double sum : chunk_sum) total += sum;
  return total;
}

int rank_before(std::span<const float> logits, TokenId token) {
  const float value = logits[token];
  int rank = count_above(logits.data(), logits.size(), value);
  for (const float x : logits.first(token)) rank += x == value ? 1 : 0;
  return rank;
}

}  // namespace sluice
