// Scalar reference of drawing tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/draw.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float score(const DrawRow& row, float logit, int64_t id) {
  const float u = open_uniform(draw_bits(row, static_cast<uint32_t>(id / 4))[id % 4]);
  return row.scale * logit - std::log(-std::log(u));
}

int bin_of(float max, float logit) {
  return static_cast<int>(std::min((max - logit) * kDrawBinsPerLogit, static_cast<float>(kDrawBins - 1)));
}

// Of the tokens of a row, those asked for: at least `count` of the largest, or of `mass` of the weight, or not further
// `below` the maximum.
struct Wanted {
  float scale;
  int32_t count;
  float mass, below;
};

// The last bin whose tokens are candidates.
int last_bin(const Wanted& wanted, const float* logits, int64_t vocab, float max, double total) {
  if (wanted.below > 0) return bin_of(max, max - wanted.below);
  double sum = 0;
  const double enough = wanted.count > 0 ? wanted.count : double{wanted.mass} * total;
  for (int bin = 0; bin < kDrawBins; ++bin) {
    for (int64_t i = 0; i < vocab; ++i) {
      if (logits[i] == kMasked || bin_of(max, logits[i]) != bin) continue;
      sum += wanted.count > 0 ? 1.0 : std::exp(wanted.scale * (logits[i] - max));
    }
    if (sum >= enough) return bin;
  }
  return kDrawBins - 1;
}

double weight_of(const float* logits, int64_t vocab, float max, float scale) {
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += std::exp(scale * (logits[i] - max));
  return total;
}

// Returns how many there are; only so many as there is room for are written.
int32_t list(const Wanted& wanted, const float* logits, int64_t vocab, float max, double total, DrawCandidate* to) {
  const int last = last_bin(wanted, logits, vocab, max, total);
  int32_t count = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] == kMasked || bin_of(max, logits[i]) > last) continue;
    if (count < kMostCandidates) to[count] = {static_cast<int32_t>(i), logits[i]};
    ++count;
  }
  return count;
}

// The largest logit; NaN and +infinity are so, too.
float worst_or_max(const float* logits, int64_t vocab) {
  float max = kMasked;
  for (int64_t i = 0; i < vocab; ++i) {
    if (!(logits[i] < INFINITY)) return INFINITY;
    max = std::max(max, logits[i]);
  }
  return max;
}

float edited(const DrawRow& row, const DrawEdit& edit, float logit) {
  logit += edit.bias;
  if (edit.output < 0) return logit;
  logit = logit > 0.0f ? logit / row.repetition : logit * row.repetition;
  return edit.output > 0 ? logit - (row.frequency * static_cast<float>(edit.output) + row.presence) : logit;
}

// The row after its edits and its mask.
std::vector<float> edit(const DrawArgs& args, const DrawRow& row, const float* raw, int64_t vocab) {
  std::vector<float> logits(raw, raw + vocab);
  for (int32_t i = 0; i < row.edits; ++i) {
    const DrawEdit& one = args.edits.as<const DrawEdit>()[row.first_edit + i];
    logits[static_cast<size_t>(one.id)] = edited(row, one, raw[one.id]);
  }
  const uint32_t* mask = row.mask < 0 ? nullptr : args.masks.as<const uint32_t>() + row.mask * mask_words(vocab);
  for (int64_t i = 0; mask != nullptr && i < vocab; ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[static_cast<size_t>(i)] = kMasked;
  }
  return logits;
}

int32_t choose(const DrawRow& row, const std::vector<float>& logits) {
  int32_t token = DrawnRow::kNoneLeft;
  float best = kMasked;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float value = row.scale > 0 ? score(row, logits[i], static_cast<int64_t>(i)) : logits[i];
    if (logits[i] != kMasked && value > best) best = value, token = static_cast<int32_t>(i);
  }
  return token;
}

void report(const DrawRow& row, const float* raw, int64_t vocab, DrawnRow& drawn, DrawCandidate* top) {
  const double total = weight_of(raw, vocab, drawn.raw_max, 1.0f);
  drawn.raw_total = static_cast<float>(total);
  if (row.report > 0) {
    const Wanted largest{.scale = 1.0f, .count = row.report, .mass = 0, .below = 0};
    drawn.top = list(largest, raw, vocab, drawn.raw_max, total, top);
    if (drawn.top > kMostCandidates) drawn.top = -1;
  }
  if (drawn.token < 0) return;
  drawn.token_logit = raw[drawn.token];
  for (int64_t i = 0; i < vocab; ++i) {
    drawn.before += raw[i] > drawn.token_logit || (raw[i] == drawn.token_logit && i < drawn.token) ? 1 : 0;
  }
}

DrawnRow draw_row(const DrawArgs& args, int64_t index) {
  const DrawRow& row = args.rows.as<const DrawRow>()[index];
  const float* raw = args.logits.f32() + row.row * args.logits.row_stride;
  const int64_t vocab = args.logits.shape[1];
  DrawnRow drawn{.raw_max = worst_or_max(raw, vocab)};
  drawn.max = drawn.raw_max;
  if (drawn.raw_max == INFINITY || drawn.raw_max == kMasked) return drawn;
  if (row.target >= 0) {
    drawn.token = row.target;
  } else {
    const std::vector<float> logits = edit(args, row, raw, vocab);
    drawn.max = worst_or_max(logits.data(), vocab);
    drawn.token = drawn.max == INFINITY ? DrawnRow::kNoneLeft : choose(row, logits);
    if (drawn.token >= 0 && (row.count > 0 || row.mass > 0 || row.below > 0)) {
      const Wanted wanted{.scale = row.scale, .count = row.count, .mass = row.mass, .below = row.below};
      const double total = weight_of(logits.data(), vocab, drawn.max, row.scale);
      drawn.total = static_cast<float>(total);
      drawn.candidates = list(wanted, logits.data(), vocab, drawn.max, total,
                              args.candidates.as<DrawCandidate>() + index * kMostCandidates);
      if (drawn.candidates > kMostCandidates) drawn.candidates = 0, drawn.listed = 0;
    }
  }
  if (row.report >= 0) {
    report(row, raw, vocab, drawn, row.report > 0 ? args.top.as<DrawCandidate>() + index * kMostCandidates : nullptr);
  }
  return drawn;
}

}  // namespace

void draw(ThreadPool&, const DrawArgs& args) {
  const auto draws = static_cast<int64_t>(args.rows.bytes() / sizeof(DrawRow));
  for (int64_t i = 0; i < draws; ++i) args.drawn.as<DrawnRow>()[i] = draw_row(args, i);
}

void take_drawn(ThreadPool&, const TakeDrawnArgs& args) {
  for (size_t row = 0; row < args.from.size(); ++row) {
    const int32_t draw = args.from[row];
    if (draw >= 0) args.tokens.as<int32_t>()[row] = std::max(args.drawn.as<const DrawnRow>()[draw].token, 0);
  }
}

}  // namespace sluice::ops::reference
