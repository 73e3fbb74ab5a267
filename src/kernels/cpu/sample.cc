// Sampling: the loops over whole rows. Unfiltered sampling is bound by Philox, which takes 40 us for 128 k tokens with
// AVX-512; all other loops are bound by reading the row.
//
// Few tokens need their noise computed. A token can win only if its random number u is at least 1 - limit, where limit
// is exp(scale * logit - best score so far): noise is at most -ln(1 - u). So u is compared with the limit of the
// chunk's maximum, and chunks where no u can be large enough are skipped.
#include "ops/sample.h"

#include "kernels/cpu/dispatch/sample.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

using kernels::ChunkedRow;
using kernels::kSampleChunk;
using kernels::SampleInput;

constexpr float kInfinity = __builtin_inff();
constexpr int kVecs = kSampleChunk / kLanes;  // vectors of a chunk

// The chunk's place without the class's inline function, which other instruction sets could share.
SLUICE_INLINE const float* chunk_of(const ChunkedRow& row, int64_t i) {
  return i < row.whole ? row.logits + i * kSampleChunk : row.last;
}

bool chunk_maxima(const ChunkedRow& row, float* chunk_max) {
  Mask fine = less(zero(), broadcast(1.0f));
  const Vec infinity = broadcast(kInfinity);
  for (int64_t i = 0; i < row.chunks; ++i) {
    const float* logits = chunk_of(row, i);
    Vec largest = load(logits, All{});
    fine = operator_and(fine, less(largest, infinity));
    SLUICE_UNROLL
    for (int j = 1; j < kVecs; ++j) {
      const Vec x = load(logits + j * kLanes, All{});
      fine = operator_and(fine, less(x, infinity));  // false for NaN
      largest = max(largest, x);
    }
    chunk_max[i] = reduce_max(largest);
  }
  return reduce_max(select(fine, zero(), broadcast(1.0f))) == 0.0f;
}

double total(const ChunkedRow& row, float max_logit) {
  double sum = 0.0;
  for (int64_t i = 0; i < row.chunks; ++i) {
    const float* logits = chunk_of(row, i);
    Vec part = zero();
    SLUICE_UNROLL
    for (int j = 0; j < kVecs; ++j) part = part + exp(load(logits + j * kLanes, All{}) - broadcast(max_logit));
    sum += reduce_add(part);
  }
  return sum;
}

// ops::sample_weight, in the same operations.
SLUICE_INLINE Vec weight(Vec x) {
  const Vec y = max(broadcast(ops::kLowestExponent), x), magic = broadcast(ops::kRoundToInteger);
  const Vec n = fma(y, broadcast(1.44269504f), magic) - magic;
  Vec r = fma(n, broadcast(-0.693359375f), y);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  return select(less(x, y), zero(), scale_by_power_of_two(p, n));
}

// Sums of rounded weights, in 64-bit integers.
#ifdef __AVX512F__
struct UnitSum {
  Words sum = words(0);
  SLUICE_INLINE void add_half(__m256 w) {
    const __m512d scaled = _mm512_cvtps_pd(w) * _mm512_set1_pd(double(ops::kSampleWeightUnits));
    sum = _mm512_add_epi64(sum, _mm512_cvtpd_epu64(scaled));
  }
  SLUICE_INLINE void add(Vec w) {
    add_half(_mm512_castps512_ps256(w));
    add_half(_mm512_extractf32x8_ps(w, 1));
  }
};
#else
struct UnitSum {
  Words sum = words(0);
  SLUICE_INLINE void add_half(__m128 w) {  // adding 1.5 * 2^52 rounds, and leaves the integer in the low bits
    const __m256d magic = _mm256_set1_pd(0x1.8p52);
    const __m256d scaled = _mm256_cvtps_pd(w) * _mm256_set1_pd(double(ops::kSampleWeightUnits)) + magic;
    sum = _mm256_add_epi64(sum, _mm256_sub_epi64(_mm256_castpd_si256(scaled), _mm256_castpd_si256(magic)));
  }
  SLUICE_INLINE void add(Vec w) {
    add_half(_mm256_castps256_ps128(w));
    add_half(_mm256_extractf128_ps(w, 1));
  }
};
#endif

uint64_t units(const SampleInput& in) {
  UnitSum sum;
  const Vec most = broadcast(in.max), scale = broadcast(in.row->scale);
  for (int64_t i = 0; i < in.logits.chunks; ++i) {
    if (in.row->scale * (in.chunk_max[i] - in.max) < ops::kLowestExponent) continue;
    const float* logits = chunk_of(in.logits, i);
    for (int j = 0; j < kVecs; ++j) sum.add(weight(scale * (load(logits + j * kLanes, All{}) - most)));
  }
  return sum_of(sum.sum);
}

void weigh(const SampleInput& in, kernels::SampleCandidate* candidates, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float w = ops::sample_weight(in.row->scale * (candidates[i].logit - in.max));
    candidates[i].units = uint64_t(__builtin_llrint(double(w) * double(ops::kSampleWeightUnits)));
  }
}

void weigh_tokens(ops::SampleToken* tokens, int64_t count) {
  for (int64_t i = 0; i < count; ++i) tokens[i].weight = ops::sample_weight(tokens[i].distance);
}

int64_t count_above(const ChunkedRow& row, float value) {
  int64_t count = 0;
  for (int64_t i = 0; i < row.chunks; ++i) {
    const float* logits = chunk_of(row, i);
    Vec above = zero();
    for (int j = 0; j < kVecs; ++j) {
      above = above + select(less(broadcast(value), load(logits + j * kLanes, All{})), broadcast(1.0f), zero());
    }
    count += int64_t(reduce_add(above));
  }
  return count;
}

ops::LogitSums logit_sums(const SampleInput& in) {
  // Words are unsigned. A bias makes units so, and is subtracted from the sums, modulo 2^64.
  const uint64_t bias = uint64_t(ops::kMostLogitUnits);
  const Vec most = broadcast(ops::kMostLogitUnits), least = broadcast(-ops::kMostLogitUnits);
  const Vec masked = broadcast(-kInfinity);
  Words tokens = words(0), sum = words(0), squares = words(0);
  const auto add = [&](Words d) {
    const Words odd = upper(d), one = words(1);
    sum = sum + multiply(d, one) + odd;
    squares = squares + multiply(d, d) + multiply(odd, odd);
  };
  for (int64_t i = 0; i < in.logits.chunks; ++i) {
    if (in.chunk_max[i] == -kInfinity) continue;
    const float* logits = chunk_of(in.logits, i);
    for (int j = 0; j < kVecs; ++j) {
      const Vec x = load(logits + j * kLanes, All{});
      const Mask open = less(masked, x);
      const Vec units = round(max(min(x * broadcast(ops::kLogitUnits), most), least)) + most;
      add(integers(select(open, units, zero())));
      const Words counted = integers(select(open, broadcast(1.0f), zero()));
      tokens = tokens + multiply(counted, words(1)) + upper(counted);
    }
  }
  const uint64_t count = sum_of(tokens), biased = sum_of(sum);
  return {.tokens = count,
          .sum = int64_t(biased - count * bias),
          .squares = sum_of(squares) - 2 * bias * biased + count * bias * bias};
}

// Random bits of a chunk's tokens.
struct ChunkBits {
  alignas(64) uint64_t words[kSampleChunk / 4 / kCounters][4][kCounters];

  SLUICE_INLINE uint32_t of(int token) const {
    const int block = token / 4;
    return uint32_t(words[block / kCounters][token % 4][block % kCounters]);
  }
};

// Returns whether a token of the chunk has bits of at least `least`. Only then are the bits stored.
SLUICE_INLINE bool bits_of_chunk(const ops::SampleRow& row, int64_t chunk, uint32_t least, ChunkBits& bits) {
  constexpr int kGroups = kSampleChunk / 4 / kCounters;
  Words c[kGroups][4];
  for (int i = 0; i < kGroups; ++i) {
    c[i][0] = words(row.position), c[i][1] = words(row.choice), c[i][3] = words(2);
    c[i][2] = counters(uint32_t(chunk) * (kSampleChunk / 4) + uint32_t(i * kCounters));
  }
  philox(c, row.key[0], row.key[1]);
  Words largest = c[0][0];
  for (int i = 0; i < kGroups; ++i) {
    for (int w = 0; w < 4; ++w) largest = larger(largest, c[i][w]);
  }
  if (!any_at_least(largest, least)) return false;
  for (int i = 0; i < kGroups; ++i) {
    for (int w = 0; w < 4; ++w) store_words(bits.words[i][w], c[i][w]);
  }
  return true;
}

// Returns the least bits with which a token can win, where 1 - u must not exceed the limit.
SLUICE_INLINE uint32_t least_bits(float limit) {
  if (!(limit < 1.0f)) return 0;
  const auto steps = int32_t(limit * 0x1p23f - 0.5f);  // 1 - u is (steps + 0.5) * 2^-23
  return uint32_t((1 << 23) - 1 - steps) << 9;
}

class Winner {
 public:
  Winner(const SampleInput& in, const kernels::Cut& cut) : in_(in), cut_(cut), row_(*in.row) {
    const float top = row_.scale * in.max;
    slack_ = 1e-5 + 2.4e-7 * (__builtin_fabs(double(top)) + 32.0);
    top_ = top;
    bits_of_chunk(row_, in.argmax / kSampleChunk, 0, bits_);
    take(ops::sample_score(row_.scale, in.max, bits_.of(in.argmax % kSampleChunk)), in.argmax);
  }

  // Where scores are so large that rounding could reverse them, every token is compared.
  bool prunes() const { return slack_ < 1.0; }

  void visit(int64_t chunk, float chunk_weight) {
    uint32_t least = 0;
    if (prunes()) {
      const float limit = chunk_weight * reach_;
      if (limit < 0x1p-24f) return;
      least = least_bits(limit);
    }
    if (!bits_of_chunk(row_, chunk, least, bits_)) return;
    const float* logits = chunk_of(in_.logits, chunk);
    for (int i = 0; i < kSampleChunk; ++i) {
      const uint32_t bits = bits_.of(i);
      const auto id = int32_t(chunk * kSampleChunk + i);
      if (bits < least || !kept(logits[i], id)) continue;
      const float score = ops::sample_score(row_.scale, logits[i], bits);
      if (score > best_ || (score == best_ && id < id_)) take(score, id);
    }
  }

  int32_t id() const { return id_; }

 private:
  bool kept(float logit, int32_t id) const {
    if (logit == -kInfinity || logit < cut_.logit || (logit == cut_.logit && id > cut_.id)) return false;
    return cut_.least <= 0 || ops::sample_weight(row_.scale * (logit - in_.max)) >= cut_.least;
  }
  void take(float score, int32_t id) {
    best_ = score;
    id_ = id;
    reach_ = float(__builtin_exp(top_ - double(score) + slack_));
  }

  const SampleInput& in_;
  const kernels::Cut& cut_;
  const ops::SampleRow& row_;
  double top_, slack_;  // scale * max; a bound of rounding errors of scores and limits
  float best_ = 0, reach_ = 0;
  int32_t id_ = 0;
  ChunkBits bits_;
};

int32_t sample_kept(const SampleInput& in, const kernels::Cut& cut, float* chunk_weights) {
  Winner winner(in, cut);
  const Vec most = broadcast(in.max), scale = broadcast(in.row->scale);
  each_vec(in.logits.chunks,
           [&](int64_t i, auto n) { store(chunk_weights + i, weight(scale * (load(in.chunk_max + i, n) - most)), n); });
  const float least = cut.least * (1.0f - 1e-5f);  // the weight of a smaller logit may be larger by an ulp
  for (int64_t i = 0; i < in.logits.chunks; ++i) {
    if (in.chunk_max[i] >= cut.logit && chunk_weights[i] >= least) winner.visit(i, chunk_weights[i]);
  }
  return winner.id();
}

constexpr kernels::SampleLoops kLoops{.chunk_maxima = chunk_maxima,
                                      .total = total,
                                      .units = units,
                                      .weigh = weigh,
                                      .weigh_tokens = weigh_tokens,
                                      .count_above = count_above,
                                      .logit_sums = logit_sums,
                                      .sample = sample_kept};

}  // namespace

void sample(ops::Queue& queue, const ops::SampleArgs& args) { kernels::sample(queue, args, kLoops); }

}  // namespace sluice::SLUICE_ISA
