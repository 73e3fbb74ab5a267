// Reference of the ops on experts and heads. Every CPU backend uses route, choose_physical and group_by_expert from
// here. The matmuls call the reference's matmul once per matrix.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "ops/physical_experts.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Returns the indices of the k largest `scores` in ascending order; among equal scores the lower index wins. The
// indices are distinct even if scores are NaN.
void top(const std::vector<float>& scores, int k, std::vector<int>& chosen) {
  chosen.clear();
  for (int i = 0; i < static_cast<int>(scores.size()); ++i) {
    size_t at = chosen.size();
    while (at > 0 && scores[i] > scores[chosen[at - 1]]) --at;
    if (at == static_cast<size_t>(k)) continue;
    if (chosen.size() == static_cast<size_t>(k)) chosen.pop_back();
    chosen.insert(chosen.begin() + static_cast<std::ptrdiff_t>(at), i);
  }
  std::sort(chosen.begin(), chosen.end());
}

void softmax(std::vector<float>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (float& s : scores) sum += s = static_cast<float>(std::exp(s - largest));
  for (float& s : scores) s = static_cast<float>(s / sum);
}

// Routes one row at a time; holds the buffers for it.
class Router {
 public:
  explicit Router(const RouteArgs& args) : args_(args), routing_(args.routing) {}

  void run(int64_t row) {
    const int64_t experts = args_.logits.shape[1];
    const float* logits = args_.logits.f32() + row * args_.logits.row_stride;
    scores_.assign(logits, logits + experts);
    int32_t* chosen = args_.experts.as<int32_t>() + row * routing_.top_k;
    float* weights = args_.weights.f32() + row * args_.weights.row_stride;
    if (routing_.score == Routing::Score::kSparseMixer) return mix_sparsely(chosen, weights);
    score();
    if (args_.given.data != nullptr) {
      take_given(row);
    } else {
      choose();
    }
    float scale = routing_.scale;
    if (routing_.normalize) {
      float sum = 0;
      for (int e : chosen_) sum += scores_[e];
      scale /= std::max(sum, routing_.smallest_sum);
    }
    for (size_t j = 0; j < chosen_.size(); ++j) {
      chosen[j] = chosen_[j];
      weights[j] = scores_[chosen_[j]] * scale;
    }
  }

 private:
  void score() {
    if (routing_.score == Routing::Score::kSoftmax) return softmax(scores_);
    if (routing_.score == Routing::Score::kSqrtSoftplus) {
      for (float& s : scores_) s = std::sqrt(std::max(s, 0.0f) + std::log1p(std::exp(-std::abs(s))));
      return;
    }
    for (float& s : scores_) s = activate(Activation::kSigmoid, s);
  }

  void take_given(int64_t row) {
    const float* given = args_.given.f32() + row * args_.given.row_stride;
    const float last = static_cast<float>(scores_.size() - 1);
    chosen_.clear();
    for (int j = 0; j < routing_.top_k; ++j) chosen_.push_back(static_cast<int>(std::clamp(given[j], 0.0f, last)));
    std::sort(chosen_.begin(), chosen_.end());
  }

  void choose() {
    choice_ = scores_;
    for (size_t i = 0; args_.correction != nullptr && i < choice_.size(); ++i) choice_[i] += args_.correction[i];
    if (routing_.top_groups < routing_.groups) keep_best_groups();
    top(choice_, routing_.top_k, chosen_);
  }

  void keep_best_groups() {
    const size_t size = choice_.size() / static_cast<size_t>(routing_.groups);
    const int best = std::min(routing_.group_best, static_cast<int>(size));
    sums_.clear();
    for (int g = 0; g < routing_.groups; ++g) {
      const auto begin = choice_.begin() + static_cast<std::ptrdiff_t>(g * size);
      group_.assign(begin, begin + static_cast<std::ptrdiff_t>(size));
      top(group_, best, chosen_);
      float sum = 0;
      for (int i : chosen_) sum += group_[i];
      sums_.push_back(sum);
    }
    top(sums_, routing_.top_groups, chosen_);
    for (int g = 0; g < routing_.groups; ++g) {
      if (std::find(chosen_.begin(), chosen_.end(), g) == chosen_.end()) {
        std::fill_n(choice_.begin() + static_cast<std::ptrdiff_t>(g * size), size, kNever);
      }
    }
  }

  // Returns the largest remaining score and its share of a softmax over the scores within 2 * jitter of it. Distances
  // are relative to the magnitude of the scores, including removed ones.
  std::pair<int, float> take_largest(const std::vector<float>& all) {
    const auto largest = std::max_element(scores_.begin(), scores_.end());
    const float threshold = *largest;
    double sum = 0;
    for (size_t i = 0; i < scores_.size(); ++i) {
      const float magnitude = std::max(std::abs(all[i]), threshold);
      if (!((threshold - all[i]) / magnitude > 2 * routing_.jitter)) sum += std::exp(double{scores_[i]} - threshold);
    }
    const int index = static_cast<int>(largest - scores_.begin());
    *largest = kNever;
    return {index, static_cast<float>(1.0 / sum)};
  }

  void mix_sparsely(int32_t* chosen, float* weights) {
    const std::vector<float> all = scores_;
    std::pair<int, float> a = take_largest(all), b = take_largest(all);
    if (b.first < a.first) std::swap(a, b);
    chosen[0] = a.first, chosen[1] = b.first;
    weights[0] = a.second * routing_.scale, weights[1] = b.second * routing_.scale;
  }

  const RouteArgs& args_;
  const Routing& routing_;
  std::vector<float> scores_, choice_, sums_, group_;
  std::vector<int> chosen_;
};

}  // namespace

void route(Queue& queue, const RouteArgs& args) {
  constexpr int64_t kGrain = 16;  // fewest rows for another thread
  queue.threads().parallel_for(args.logits.rows(), kGrain, [&](int64_t begin, int64_t end) {
    Router router(args);
    for (int64_t row = begin; row < end; ++row) router.run(row);
  });
}

void choose_physical(Queue&, const PhysicalExpertsArgs& args) {
  const int64_t top_k = args.experts.shape[1];
  auto* entries = args.experts.as<int32_t>();
  for (int64_t i = 0; i < args.experts.shape.elements(); ++i) {
    const int32_t expert = entries[i], first = args.first[expert];
    const auto several = static_cast<uint32_t>(args.first[expert + 1] - first);
    const float logit = args.logits.f32()[i / top_k * args.logits.row_stride + expert];
    ++args.counts[expert];
    entries[i] = args.physical[first + static_cast<int32_t>(physical_of(std::bit_cast<uint32_t>(logit), several))];
  }
}

void group_by_expert(Queue&, const GroupByExpertArgs& args) {
  const int64_t entries = args.experts.shape.elements(), top_k = args.experts.shape[1];
  const int64_t experts = args.starts.shape.elements() - 1;
  const auto* chosen = args.experts.as<int32_t>();
  auto* starts = args.starts.as<int32_t>();
  std::fill_n(starts, experts + 1, 0);
  for (int64_t i = 0; i < entries; ++i) ++starts[chosen[i] + 1];
  for (int64_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
  std::vector<int32_t> next(starts, starts + experts);
  for (int64_t i = 0; i < entries; ++i) {
    const int32_t place = next[chosen[i]]++;
    args.places.as<int32_t>()[i] = place;
    args.entries.as<int32_t>()[place] = static_cast<int32_t>(i);
    args.rows.as<int32_t>()[place] = static_cast<int32_t>(i / top_k);
  }
}

void expert_matmul(Queue& queue, const MatmulKernels& kernels, const ExpertMatmulArgs& args) {
  const int64_t n = args.out.shape[1];
  const auto* starts = args.starts.as<int32_t>();
  for (int64_t e = 0; e + 1 < args.starts.shape.elements(); ++e) {
    if (starts[e] == starts[e + 1]) continue;
    const Weight weight = window(kernels, *args.weight, e * stacked_outputs(n), n);
    kernels.matmul(queue, {.out = args.out.slice_rows(starts[e], starts[e + 1] - starts[e]),
                           .x = args.x.slice_rows(starts[e], starts[e + 1] - starts[e]),
                           .weight = &weight,
                           .bias = args.bias != nullptr ? args.bias + e * n : nullptr});
  }
}

void head_matmul(Queue& queue, const MatmulKernels& kernels, const HeadMatmulArgs& args) {
  for (int64_t h = 0; h < args.heads; ++h) {
    const Weight weight = window(kernels, *args.weight, h * stacked_outputs(args.n), args.n);
    kernels.matmul(queue, {.out = args.out.slice_columns(h * args.out_stride, args.n),
                           .x = args.x.slice_columns(h * args.x_stride, weight.k),
                           .weight = &weight});
  }
}

void combine(Queue&, const CombineArgs& args) {
  const auto x_at = [&](int64_t place, int64_t i) {
    const int64_t at = place * args.x.row_stride + i;
    return args.x.dtype == &kBFloat16 ? bf16_to_float(args.x.as<uint16_t>()[at]) : args.x.f32()[at];
  };
  const int64_t top_k = args.weights.shape[1];
  for (int64_t row = 0; row < args.out.rows(); ++row) {
    float* out = args.out.f32() + row * args.out.row_stride;
    const float* weights = args.weights.f32() + row * args.weights.row_stride;
    for (int64_t i = 0; i < args.out.shape[1]; ++i) {
      double sum = args.accumulate ? out[i] : 0.0f;
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t entry = row * top_k + j;
        const int64_t place = args.places.data != nullptr ? args.places.as<int32_t>()[entry] : entry;
        sum += double{weights[j]} * x_at(place, i);
      }
      out[i] = static_cast<float>(sum);
    }
  }
}

void matrix_slots(Queue&, const MatrixSlotsArgs& args) {
  const bool heads = args.starts.data == nullptr;
  const int64_t items = args.out.shape.elements();
  auto* out = args.out.as<int32_t>();
  const auto set = [&](int64_t item, int64_t row, int64_t matrix) {
    const int64_t slot = args.slots[static_cast<size_t>(row)];
    out[item] = static_cast<int32_t>(slot < 0 || args.shared ? slot : slot * args.matrices + matrix);
  };
  if (heads) {
    for (int64_t i = 0; i < items; ++i) set(i, i / args.matrices, i % args.matrices);
    return;
  }
  std::fill_n(out, items, -1);
  const auto *starts = args.starts.as<const int32_t>(), *rows = args.rows.as<const int32_t>();
  for (int64_t e = 0; e < args.matrices; ++e) {
    for (int64_t i = starts[e]; i < starts[e + 1]; ++i) set(i, rows[i], e);
  }
}

}  // namespace sluice::ops::reference
