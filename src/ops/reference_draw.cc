// Scalar reference of drawing tokens.
#include <algorithm>
#include <cmath>
#include <limits>

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

// The last bin whose tokens are candidates.
int last_bin(const DrawRow& row, const float* logits, int64_t vocab, const DrawnRow& drawn) {
  if (row.below > 0) return bin_of(drawn.max, drawn.max - row.below);
  double sum = 0;
  const double enough = row.count > 0 ? row.count : double{row.mass} * drawn.total;
  for (int bin = 0; bin < kDrawBins; ++bin) {
    for (int64_t i = 0; i < vocab; ++i) {
      if (logits[i] == kMasked || bin_of(drawn.max, logits[i]) != bin) continue;
      sum += row.count > 0 ? 1.0 : std::exp(row.scale * (logits[i] - drawn.max));
    }
    if (sum >= enough) return bin;
  }
  return kDrawBins - 1;
}

DrawnRow draw_row(const DrawRow& row, const float* logits, int64_t vocab, DrawCandidate* candidates) {
  DrawnRow drawn{.max = kMasked};
  bool bad = false;
  float best = kMasked;
  for (int64_t i = 0; i < vocab; ++i) {
    bad |= std::isnan(logits[i]) || logits[i] == INFINITY;
    drawn.max = std::max(drawn.max, logits[i]);
    const float value = row.scale > 0 ? score(row, logits[i], i) : logits[i];
    if (logits[i] != kMasked && value > best) best = value, drawn.token = static_cast<int32_t>(i);
  }
  if (bad || drawn.max == kMasked) {
    drawn.token = -1;
    return drawn;
  }
  if (row.count <= 0 && row.mass <= 0 && row.below <= 0) return drawn;
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += std::exp(row.scale * (logits[i] - drawn.max));
  drawn.total = static_cast<float>(total);
  const int last = last_bin(row, logits, vocab, drawn);
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] == kMasked || bin_of(drawn.max, logits[i]) > last) continue;
    if (drawn.candidates < kMostCandidates) candidates[drawn.candidates] = {static_cast<int32_t>(i), logits[i]};
    ++drawn.candidates;
  }
  if (drawn.candidates > kMostCandidates) drawn.candidates = 0, drawn.listed = 0;
  return drawn;
}

}  // namespace

void draw(ThreadPool&, const DrawArgs& args) {
  const auto* rows = args.rows.as<const DrawRow>();
  const auto draws = static_cast<int64_t>(args.rows.bytes() / sizeof(DrawRow));
  for (int64_t i = 0; i < draws; ++i) {
    args.drawn.as<DrawnRow>()[i] =
        draw_row(rows[i], args.logits.f32() + rows[i].row * args.logits.row_stride, args.logits.shape[1],
                 args.candidates.as<DrawCandidate>() + i * kMostCandidates);
  }
}

void take_drawn(ThreadPool&, const TakeDrawnArgs& args) {
  for (size_t row = 0; row < args.from.size(); ++row) {
    const int32_t draw = args.from[row];
    if (draw >= 0) args.tokens.as<int32_t>()[row] = std::max(args.drawn.as<const DrawnRow>()[draw].token, 0);
  }
}

}  // namespace sluice::ops::reference
