// Loading, routing and running of experts. Routing is arithmetic on a few numbers per row, done on the host.
#include "nn/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace sluice {
namespace {

// Rows [row, row + count) of a tensor seen as [rows, columns]; without data when there is none.
Tensor rows_of(const TensorEntry* entry, int64_t row, int64_t count, int64_t columns) {
  if (entry == nullptr) return Tensor(nullptr, &kFloat32, {count, columns});
  Tensor matrix = entry->view();
  matrix.shape = {entry->shape.elements() / columns, columns};
  matrix.row_stride = columns;
  return matrix.slice_rows(row, count);
}

// The k largest of `scores`, the lower index first among equals, in ascending order of index.
std::vector<int> top(const std::vector<float>& scores, int k) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

// Scores outside of the best groups become zero.
void keep_best_groups(std::vector<float>& scores, int groups, int kept) {
  const size_t size = scores.size() / static_cast<size_t>(groups);
  std::vector<float> sums;
  for (int g = 0; g < groups; ++g) {
    const std::vector<float> group(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    float sum = 0;
    for (int i : top(group, std::min<int>(2, static_cast<int>(size)))) sum += group[i];
    sums.push_back(sum);
  }
  const std::vector<int> best = top(sums, kept);
  for (int g = 0; g < groups; ++g) {
    if (std::find(best.begin(), best.end(), g) == best.end()) std::fill_n(scores.begin() + g * size, size, 0.0f);
  }
}

void softmax(std::vector<float>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (float& s : scores) sum += s = static_cast<float>(std::exp(s - largest));
  for (float& s : scores) s = static_cast<float>(s / sum);
}

}  // namespace

Moe::Moe(const Weights& w, const MoeSpec& s, int hidden)
    : spec_(s), router_(w, {{s.router, s.experts}}, hidden, false) {
  LoadContext& context = w.context();
  if (!s.correction.empty()) correction_ = w.vector(s.correction, s.correction_shape);
  const int64_t n = s.experts, inner = s.inner;
  if (s.layout == ExpertLayout::kSeparate) {
    for (int e = 0; e < s.experts; ++e) {
      const Weights here = w / "experts" / std::to_string(e);
      in_.emplace_back(here, std::vector<Linear::Part>{{s.gate, inner}, {s.up, inner}}, hidden, false);
      out_.emplace_back(here, std::vector<Linear::Part>{{s.down, hidden}}, inner, false);
    }
  } else if (s.layout == ExpertLayout::kStacked) {
    const TensorEntry* in = (w / s.gate).tensor("weight", {n, 2 * inner, hidden});
    const TensorEntry* out = (w / s.down).tensor("weight", {n, hidden, inner});
    for (int e = 0; e < s.experts; ++e) {
      in_.emplace_back(context, std::vector{rows_of(in, e * 2 * inner, 2 * inner, hidden)}, hidden,
                       std::vector<float>{});
      out_.emplace_back(context, std::vector{rows_of(out, int64_t{e} * hidden, hidden, inner)}, inner,
                        std::vector<float>{});
    }
  } else {
    const TensorEntry* gate = w.tensor(s.gate, {n * inner, hidden});
    const TensorEntry* up = w.tensor(s.up, {n * inner, hidden});
    const TensorEntry* down = w.tensor(s.down, {n * inner, hidden});
    for (int e = 0; e < s.experts; ++e) {
      const std::vector<Tensor> in{rows_of(gate, e * inner, inner, hidden), rows_of(up, e * inner, inner, hidden)};
      in_.emplace_back(context, in, hidden, std::vector<float>{});
      Buffer memory;
      Tensor out(nullptr, &kFloat32, {hidden, inner});
      if (down != nullptr && !context.dry) out = transpose(rows_of(down, e * inner, inner, hidden), memory);
      out_.emplace_back(context, std::vector{out}, inner, std::vector<float>{});
    }
  }
  if (s.shared_inner > 0) shared_ = Mlp(w / s.shared, {.inner = s.shared_inner, .activation = s.activation}, hidden);
  if (s.shared_gate) shared_gate_ = Linear(w, {{"shared_expert_gate", 1}}, hidden, false);
}

int64_t Moe::floats_per_token(const MoeSpec& s, int hidden) {
  const int64_t routed = 2 * int64_t{hidden} + 3 * int64_t{s.inner};
  const int64_t shared = 3 * int64_t{s.shared_inner} + (s.shared_gate ? hidden + 1 : 0);
  return s.experts + std::max(routed, shared);
}

std::vector<Moe::Rows> Moe::route(const Tensor& logits) const {
  std::vector<Rows> routed(static_cast<size_t>(spec_.experts));
  for (int64_t row = 0; row < logits.rows(); ++row) {
    const float* from = logits.f32() + row * logits.row_stride;
    std::vector<float> scores(from, from + spec_.experts);
    if (spec_.sigmoid) {
      for (float& s : scores) s = ops::activate(ops::Activation::kSigmoid, s);
    } else {
      softmax(scores);
    }
    std::vector<float> choice = scores;
    for (size_t i = 0; i < correction_.size(); ++i) choice[i] += correction_[i];
    if (spec_.groups > 1) keep_best_groups(choice, spec_.groups, spec_.top_groups);
    const std::vector<int> chosen = top(choice, spec_.top_k);
    float scale = spec_.scale;
    if (spec_.normalize) {
      float sum = 0;
      for (int e : chosen) sum += scores[e];
      scale /= std::max(sum, spec_.smallest_sum);
    }
    for (int e : chosen) {
      routed[e].rows.push_back(static_cast<int32_t>(row));
      routed[e].weights.push_back(scores[e] * scale);
    }
  }
  return routed;
}

void Moe::run_shared(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  Arena::Scope scope(c.arena);
  if (!spec_.shared_gate) return shared_(c, out, x, accumulate);
  const Tensor gate = shared_gate_(c, x);
  ops::unary(c, gate, ops::Activation::kSigmoid);
  const Tensor part = c.arena.take(&kFloat32, x.shape);
  shared_(c, part, x, false);
  if (!accumulate) std::memset(out.data, 0, out.bytes());
  std::vector<int32_t> rows(static_cast<size_t>(x.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  ops::scatter_add(c, out, part, rows, {gate.f32(), rows.size()});
}

void Moe::operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  CHECK(accumulate || out.dense());
  const Tensor logits = router_(c, x);
  if (spec_.shared_inner > 0) {
    run_shared(c, out, x, accumulate);
  } else if (!accumulate) {
    std::memset(out.data, 0, out.bytes());
  }
  const std::vector<Rows> routed = route(logits);
  for (int e = 0; e < spec_.experts; ++e) {
    if (routed[e].rows.empty()) continue;
    Arena::Scope scope(c.arena);
    const auto rows = static_cast<int64_t>(routed[e].rows.size());
    const Tensor mine = c.arena.take(&kFloat32, {rows, x.shape[1]});
    ops::gather_rows(c, mine, x, routed[e].rows);
    const Tensor gate_up = in_[e](c, mine);
    const Tensor inner = c.arena.take(&kFloat32, {rows, spec_.inner});
    ops::glu(c, inner, gate_up, spec_.activation);
    ops::scatter_add(c, out, out_[e](c, inner), routed[e].rows, routed[e].weights);
  }
}

}  // namespace sluice
