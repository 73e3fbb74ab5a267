// Edits rows, finds where their filters cut, and collects what log-probabilities need. Threads share the rows.
#include "kernels/cpu/dispatch/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/dispatch/prefix.h"
#include "kernels/cpu/dispatch/sample_chain.h"

namespace sluice::kernels {
namespace {

using ops::SampledRow;
using ops::SampleRow;

constexpr float kMasked = -INFINITY;
static_assert(kSampleChunk % 32 == 0);

// Tokens in order: higher logit first, among equal logits the lower id.
bool before(const SampleCandidate& a, const SampleCandidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Buffers of one thread; they grow to the longest row.
struct Scratch {
  std::vector<float> edited, chunk_max, maxima, chunk_weights;
  std::vector<SampleCandidate> candidates;
  std::vector<ops::SampleToken> tokens;
  float last[kSampleChunk];
};

ChunkedRow in_chunks(const float* logits, int64_t vocab, float (&last)[kSampleChunk]) {
  const int64_t whole = vocab / kSampleChunk;
  std::fill(std::copy(logits + whole * kSampleChunk, logits + vocab, last), last + kSampleChunk, kMasked);
  return {.logits = logits,
          .last = last,
          .whole = whole,
          .chunks = (vocab + kSampleChunk - 1) / kSampleChunk,
          .vocab = vocab};
}

// Samples one row: see ops/sample.h.
class RowSampler {
 public:
  RowSampler(const SampleLoops& loops, const ops::SampleArgs& args, int64_t index, Scratch& scratch)
      : loops_(loops),
        args_(args),
        row_(args.rows.as<const SampleRow>()[index]),
        scratch_(scratch),
        raw_(args.logits.f32() + row_.row * args.logits.row_stride),
        vocab_(args.logits.shape[1]),
        top_(args.top.data == nullptr ? nullptr : args.top.as<ops::TopLogit>() + index * ops::kMostTop) {}

  SampledRow run() {
    SampledRow sampled;
    if (!scan(raw_)) return sampled;
    sampled.raw_max = in_.max;
    if (row_.report > 0) list_top(sampled);
    if (row_.report >= 0) sampled.raw_total = static_cast<float>(loops_.total(in_.logits, in_.max));
    sampled.token = row_.target >= 0 ? row_.target : choose(sampled);
    if (row_.report >= 0 && sampled.token >= 0) report_token(sampled);
    return sampled;
  }

 private:
  // Makes a row the one to sample from. Returns false if it has NaN or +infinity, or nothing but -infinity.
  bool scan(const float* logits) {
    in_ = {.row = &row_,
           .logits = in_chunks(logits, vocab_, scratch_.last),
           .chunk_max = nullptr,
           .max = kMasked,
           .argmax = -1};
    scratch_.chunk_max.resize(static_cast<size_t>(in_.logits.chunks));
    in_.chunk_max = scratch_.chunk_max.data();
    if (!loops_.chunk_maxima(in_.logits, scratch_.chunk_max.data())) return false;
    const auto largest = std::ranges::max_element(scratch_.chunk_max);
    in_.max = *largest;
    const int64_t chunk = largest - scratch_.chunk_max.begin();
    const float* begin = in_.logits.chunk(chunk);
    in_.argmax = static_cast<int32_t>(chunk * kSampleChunk + (std::find(begin, begin + kSampleChunk, in_.max) - begin));
    return in_.max != kMasked;
  }

  int32_t choose(SampledRow& sampled) {
    if (row_.edits > 0 || row_.mask >= 0) {
      edit();
      if (!scan(scratch_.edited.data())) return SampledRow::kNoneLeft;
    }
    if (row_.steps > 0) {
      const auto* steps = args_.steps.as<const ops::SamplerStep>() + row_.first_step;
      const SampledRow chosen = sample_chain(in_, steps, loops_, scratch_.tokens);
      sampled.probability = chosen.probability;
      return chosen.token;
    }
    if (row_.scale <= 0) return in_.argmax;
    scratch_.chunk_weights.resize(scratch_.chunk_max.size());
    return loops_.sample(in_, cut(), scratch_.chunk_weights.data());
  }

  // Copies the row, with its edits and its mask.
  void edit() {
    scratch_.edited.resize(static_cast<size_t>(vocab_));
    float* to = scratch_.edited.data();
    std::copy_n(raw_, vocab_, to);
    const auto* edits = args_.edits.as<const ops::LogitEdit>() + row_.first_edit;
    for (int32_t i = 0; i < row_.edits; ++i) to[edits[i].id] = ops::edited(row_, edits[i], to[edits[i].id]);
    if (row_.mask < 0) return;
    const auto* mask = args_.masks.as<const uint32_t>() + row_.mask * ops::mask_words(vocab_);
    for (int64_t first = 0; first < vocab_; first += 32) {
      const uint32_t word = mask[first / 32];
      const auto count = static_cast<int>(std::min<int64_t>(32, vocab_ - first));
      for (int i = 0; word != ~0u && i < count; ++i) to[first + i] = (word >> i & 1) != 0 ? to[first + i] : kMasked;
    }
  }

  Cut cut() {
    Cut cut{.least = row_.least};
    if (!ops::filters(row_)) return cut;
    if (row_.sigmas > 0) cut.logit = ops::sigma_cutoff(in_.max, row_.sigmas, loops_.logit_sums(in_));
    if (row_.count > 0) gather_top(row_.count, cut.logit);
    if (row_.mass < 1) keep_nucleus(cut.logit);
    if (row_.count <= 0 && row_.mass >= 1) return cut;
    const SampleCandidate& last = *std::ranges::max_element(scratch_.candidates, before);
    cut.logit = last.logit, cut.id = last.id;
    return cut;
  }

  // Lists the tokens with logits of at least `least`. They are in the order of their ids.
  void gather(float least) {
    std::vector<SampleCandidate>& out = scratch_.candidates;
    out.clear();
    for (int64_t i = 0; i < in_.logits.chunks; ++i) {
      if (!(in_.chunk_max[i] >= least)) continue;
      const float* chunk = in_.logits.chunk(i);
      for (int j = 0; j < kSampleChunk; ++j) {
        if (chunk[j] < least || chunk[j] == kMasked) continue;
        out.push_back({.logit = chunk[j], .id = static_cast<int32_t>(i * kSampleChunk + j), .units = 0});
      }
    }
  }

  // Lists the first `count` tokens in order, or those of them with logits of at least `least`.
  void gather_top(int32_t count, float least) {
    // The maxima of `count` chunks are at least as large as the count-th one, so that many tokens are.
    if (static_cast<size_t>(count) <= scratch_.chunk_max.size()) {
      scratch_.maxima = scratch_.chunk_max;
      const auto nth = scratch_.maxima.begin() + (count - 1);
      std::ranges::nth_element(scratch_.maxima, nth, std::greater<>());
      least = std::max(least, *nth);
    }
    gather(least);
    std::vector<SampleCandidate>& all = scratch_.candidates;
    if (all.size() <= static_cast<size_t>(count)) return;
    std::ranges::nth_element(all, all.begin() + count, before);
    all.resize(static_cast<size_t>(count));
  }

  uint64_t weigh() {
    std::vector<SampleCandidate>& all = scratch_.candidates;
    loops_.weigh(in_, all.data(), static_cast<int64_t>(all.size()));
    uint64_t total = 0;
    for (const SampleCandidate& one : all) total += one.units;
    return total;
  }

  // Lists the nucleus (Holtzman et al. 2020, arXiv:1904.09751) of the tokens listed by top-k, or else of those with
  // logits of at least `least`.
  void keep_nucleus(float least) {
    const auto share = [&](uint64_t total) {
      return static_cast<uint64_t>(std::ceil(row_.mass * static_cast<double>(total)));
    };
    if (row_.count > 0) return keep_units(share(weigh()));
    if (row_.sigmas > 0) {
      gather(least);
      return keep_units(share(weigh()));
    }
    const uint64_t enough = share(loops_.units(in_));
    // The nucleus is usually small, so try the most likely tokens before the whole row.
    for (const float log_weight : {-6.0f, -12.0f, -INFINITY}) {
      gather(in_.max + log_weight / row_.scale);
      if (weigh() >= enough) break;
    }
    keep_units(enough);
  }

  // Keeps the shortest prefix in order whose units add up to `enough`, or all candidates if they do not.
  void keep_units(uint64_t enough) {
    std::vector<SampleCandidate>& all = scratch_.candidates;
    const auto units = [](const SampleCandidate& one) { return one.units; };
    all.erase(shortest_prefix(all.begin(), all.end(), before, units, enough), all.end());
  }

  // Lists the largest raw logits in whole bins, as ops/sample.h defines them.
  void list_top(SampledRow& sampled) {
    const auto bin_of = [&](float logit) { return ops::logit_bin(in_.max, logit); };
    gather_top(row_.report, kMasked);
    const auto wanted = static_cast<size_t>(row_.report);
    int last = ops::kLogitBins - 1;
    if (scratch_.candidates.size() == wanted) {
      last = bin_of(std::ranges::max_element(scratch_.candidates, before)->logit);
    }
    for (int64_t i = 0; i < in_.logits.chunks; ++i) {
      if (in_.chunk_max[i] == kMasked || bin_of(in_.chunk_max[i]) > last) continue;
      const float* chunk = in_.logits.chunk(i);
      for (int j = 0; j < kSampleChunk; ++j) {
        if (chunk[j] == kMasked || bin_of(chunk[j]) > last) continue;
        if (sampled.top < ops::kMostTop) top_[sampled.top] = {static_cast<int32_t>(i * kSampleChunk + j), chunk[j]};
        ++sampled.top;
      }
    }
    if (sampled.top > ops::kMostTop) sampled.top = -1;
  }

  void report_token(SampledRow& sampled) {
    sampled.token_logit = raw_[sampled.token];
    const ChunkedRow raw = in_chunks(raw_, vocab_, scratch_.last);
    sampled.before = static_cast<int32_t>(loops_.count_above(raw, sampled.token_logit) +
                                          std::count(raw_, raw_ + sampled.token, sampled.token_logit));
  }

  const SampleLoops& loops_;
  const ops::SampleArgs& args_;
  const SampleRow& row_;
  Scratch& scratch_;
  const float* raw_;
  int64_t vocab_;
  ops::TopLogit* top_;
  SampleInput in_{};
};

}  // namespace

void sample(ops::Queue& queue, const ops::SampleArgs& args, const SampleLoops& loops) {
  const auto samples = static_cast<int64_t>(args.rows.bytes() / sizeof(SampleRow));
  auto* sampled = args.sampled.as<SampledRow>();
  queue.threads().parallel_for(samples, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    for (int64_t i = begin; i < end; ++i) sampled[i] = RowSampler(loops, args, i, scratch).run();
  });
  if (args.for_host.data != nullptr && args.for_host.data != args.sampled.data) {
    std::memcpy(args.for_host.data, args.sampled.data, static_cast<size_t>(samples) * sizeof(SampledRow));
  }
}

}  // namespace sluice::kernels
