// Routes rows to experts, runs them and adds up the results.
#include "nn/moe/moe.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "nn/moe/balancer.h"
#include "nn/moe/expert_adapters.h"
#include "ops/physical_experts.h"

namespace sluice {
namespace {

class Experts final : public FeedForward {
 public:
  Experts(const Weights& w, const MoeSpec& spec, int hidden)
      : moe_(w, spec, hidden), floats_(Moe::floats_per_token(spec, hidden)) {}
  void operator()(ops::Ctx& c, std::span<const Tensor>, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    moe_(c, out, x, accumulate);
  }
  DType input_type(const ops::Ctx& c, int64_t rows) const override { return moe_.input_type(c, rows); }
  int64_t floats_per_token() const override { return floats_; }

 private:
  Moe moe_;
  int64_t floats_;
};

}  // namespace

MakeFeedForward experts_of(std::string name, MoeSpec spec) {
  return [name = std::move(name), spec = std::move(spec)](const Weights& layer, int hidden) {
    return std::make_unique<Experts>(layer / name, spec, hidden);
  };
}

Choice::Choice(ops::Ctx& c, const Tensor& logits, const ops::Routing& routing, const float* correction,
               const Tensor& given, Ungrouped) {
  const int64_t tokens = logits.rows(), top_k = routing.top_k;
  experts = c.arena.take(&kInt32, {tokens, top_k});
  weights = c.arena.take(&kFloat32, {tokens, top_k});
  ops::route(c, {.experts = experts,
                 .weights = weights,
                 .logits = logits,
                 .correction = correction,
                 .given = given,
                 .routing = routing});
}

void Choice::group(ops::Ctx& c, int64_t choices) {
  for (Tensor* t : {&entries, &rows, &places}) *t = c.arena.take(&kInt32, {experts.shape.elements()});
  starts = c.arena.take(&kInt32, {choices + 1});
  ops::group_by_expert(c, {.experts = experts, .entries = entries, .rows = rows, .places = places, .starts = starts});
}

int64_t Choice::floats_per_token(const ops::Routing& routing, int experts) {
  return 5 * int64_t{routing.top_k} + experts + 1;
}

Moe::Moe(const Weights& w, const MoeSpec& s, int hidden) : spec_(s) {
  LoadContext& context = w.context();
  if (!s.correction.empty()) correction_ = Vector(context, w.vector(s.correction, s.correction_shape));
  if (!s.router.empty()) router_ = Linear(w, {{s.router, s.choices()}}, hidden, s.router_bias);
  if (!s.expert_scale.empty()) expert_scale_ = Vector(context, w.vector(s.expert_scale, s.experts));
  const std::optional<ExpertPart> part = expert_part(w, s);
  partial_ = part.has_value();
  inner_ = partial_ ? static_cast<int>(part->inner.count) : s.inner;
  ExpertPart held = part.value_or(all_experts(s));
  const bool divided = held.experts.size() < static_cast<size_t>(s.experts);
  if (divided && context.balancer != nullptr) placed_ = context.balancer->add(w, s, hidden);
  if (placed_ != nullptr) {
    const std::span<const int32_t> here = placed_->placement.on(context.ranks.rank);
    held.experts.assign(here.begin(), here.end());
    // A packed file is for this placement.
    context.packed_layout += fmt::format("{}experts {}\n", w.prefix(), fmt::join(held.experts, " "));
  }
  const auto count = static_cast<int64_t>(held.experts.size());
  if (s.identities > 0 || divided) {
    const int others = placed_ != nullptr ? placed_->physical() : s.experts;
    first_ = placed_ != nullptr ? context.ranks.rank * static_cast<int>(count) : held.experts.front();
    std::vector<float> mine(static_cast<size_t>(others + s.identities), 0.0f);
    std::fill_n(mine.begin() + first_, count, 1.0f);
    // Of the ranks' summands, one has the inputs that identities return.
    if (!partial_ || context.ranks.rank == 0) std::fill(mine.begin() + others, mine.end(), 1.0f);
    mine_ = Vector(context, mine);
  }
  experts_ = std::make_shared<ExpertMatrices>();
  load_experts(w, s, hidden, held, *experts_);
  adapt_experts(w, s, hidden, held, *experts_);
  if (placed_ != nullptr) placed_->matrices = experts_;
  // The starts of redundant experts, too, come from the arena.
  if (placed_ != nullptr) context.note_exchange(hidden + placed_->physical() - s.experts);
  if (partial_) context.note_exchange(hidden);
  context.widest_matmul = std::max(context.widest_matmul, s.top_k * int64_t{std::max(hidden, s.inner)});
  if (s.shared_inner > 0) {
    const MlpSpec shared{.inner = s.shared_inner,
                         .gated = s.gated,
                         .bias = s.shared_bias,
                         .activation = s.activation,
                         .clamp = s.shared_clamp,
                         .clamp_first = s.clamp_first,
                         .glu_alpha = s.glu_alpha,
                         .glu_limit = s.glu_limit,
                         .in = s.shared_in,
                         .out = s.shared_out};
    shared_ = Mlp(w / s.shared, shared, hidden, /*sum=*/!partial_);
  }
  if (s.shared_gate) shared_gate_ = Linear(w, {{"shared_expert_gate", 1}}, hidden, false);
}

int64_t Moe::floats_per_token(const MoeSpec& s, int hidden) {
  const int64_t per_choice = 2 + (s.scaled_inputs ? 2 * hidden + 1 : hidden) + 3 * int64_t{s.inner};
  const int64_t routed = s.choices() + Choice::floats_per_token(s, s.choices()) + s.top_k * per_choice;
  const int64_t shared = 3 * int64_t{s.shared_inner} + (s.shared_gate ? hidden + 1 : 0);
  return std::max(routed, s.choices() + shared);
}

void Moe::run_shared(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  Arena::Scope scope(c.arena);
  if (!spec_.shared_gate) return shared_(c, out, x, accumulate);
  const Tensor gate = shared_gate_(c, x);
  ops::unary(c, gate, ops::Activation::kSigmoid);
  const Tensor part = c.arena.take(&kFloat32, x.shape);
  shared_(c, part, x, false);
  ops::combine(c, {.out = out, .x = part, .weights = gate, .places = {}, .accumulate = accumulate});
}

Indices Moe::slots_of(ops::Ctx& c, const Choice& choice, const Tensor& starts) const {
  if (!experts_->in.adapts(c) && !experts_->out.adapts(c)) return {};
  const Tensor slots = c.arena.take(&kInt32, choice.rows.shape);
  ops::matrix_slots(c, {.out = slots,
                        .slots = c.adapters->slots,
                        .matrices = experts_->in.count(),
                        .rows = choice.rows,
                        .starts = starts});
  const auto* computed = slots.as<const int32_t>();
  return Indices({computed, static_cast<size_t>(slots.shape.elements())}, computed);
}

void Moe::scale_inputs(ops::Ctx& c, const Choice& choice, const Tensor& x, const Tensor& inputs) const {
  Arena::Scope scope(c.arena);
  const int64_t places = inputs.rows();
  const Tensor weights = c.arena.take(&kFloat32, {places, 1}), rows = c.arena.take(&kFloat32, inputs.shape);
  ops::gather_rows(c, weights, Tensor(choice.weights.data, &kFloat32, {places, 1}), choice.entries);
  ops::gather_rows(c, rows, x, choice.rows);
  ops::combine(c, {.out = inputs, .x = rows, .weights = weights, .places = {}});
  // inputs are already weighted, so the results are summed with weights of one
  ops::softplus(c, choice.weights, nullptr, 1.0f, 1.0f);
}

void Moe::scale_weights(ops::Ctx& c, const Choice& choice, const Vector& factors) const {
  Arena::Scope scope(c.arena);
  const int64_t chosen = choice.experts.shape.elements();
  const Tensor scales = c.arena.take(&kFloat32, {chosen, 1});
  const Tensor all(reinterpret_cast<std::byte*>(const_cast<float*>(factors.data())), &kFloat32,
                   {static_cast<int64_t>(factors.size()), 1});
  ops::gather_rows(c, scales, all, Tensor(choice.experts.data, &kInt32, {chosen}));
  ops::multiply(c, Tensor(choice.weights.data, &kFloat32, {chosen, 1}), scales);
}

void Moe::operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate, const NextNorm* next) const {
  const Tensor logits = router_(c, x);
  if (spec_.logit_cap > 0) ops::map(c, logits, ops::Map::kSoftCap, spec_.logit_cap);
  (*this)(c, out, x, logits, accumulate, next);
}

void Moe::operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, bool accumulate,
                     const NextNorm* next, const Tensor& given) const {
  if (partial_) return sum_parts(c, out, x, logits, given, accumulate, next);
  // Shared experts come last, so that the router's logits are used right behind the router (decode_kernel/patterns.h).
  run_chosen(c, out, x, logits, given, accumulate);
  if (spec_.shared_inner > 0) run_shared(c, out, x, true);
  apply(c, next, out);
}

void Moe::sum_parts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, const Tensor& given,
                    bool accumulate, const NextNorm* next) const {
  const bool shared = spec_.shared_inner > 0, summed = shared && shared_.partial(), last = summed || !shared;
  {
    Arena::Scope scope(c.arena);
    const Tensor mine = c.arena.take(&kFloat32, out.shape);
    run_chosen(c, mine, x, logits, given, false);
    if (summed) run_shared(c, mine, x, true);
    const bool normed = last && next != nullptr;
    const ops::RowNorm norm = normed ? next->norm->of_rows(next->out) : ops::RowNorm();
    ops::all_reduce(c, out, mine, accumulate, normed ? &norm : nullptr);
  }
  if (last) return;
  run_shared(c, out, x, true);
  apply(c, next, out);
}

// The router and the gathered experts are all that read x, and both round it to this type.
DType Moe::input_type(const ops::Ctx& c, int64_t rows) const {
  const bool gathered = mine_.empty() && !spec_.scaled_inputs && spec_.shared_inner == 0;
  if (!gathered || spec_.router.empty() || !plain_units()) return &kFloat32;
  const DType type = router_.input_type(c, rows);
  if (type != experts_->in.type()) return &kFloat32;
  return experts_->in.takes_gated(c, rows * spec_.top_k, spec_.activation, experts_->out) ? type : &kFloat32;
}

Choice Moe::choose(ops::Ctx& c, const Tensor& logits, const Tensor& given) const {
  Choice choice(c, logits, spec_, correction_.data(), given, Choice::Ungrouped());
  if (placed_ == nullptr) choice.group(c, spec_.choices());
  if (!expert_scale_.empty()) scale_weights(c, choice, expert_scale_);
  if (placed_ == nullptr) return choice;
  ops::choose_physical(c, {.experts = choice.experts,
                           .logits = logits,
                           .first = placed_->first,
                           .physical = placed_->list,
                           .counts = placed_->counts});
  choice.group(c, static_cast<int64_t>(mine_.size()));
  return choice;
}

// Computes the gated units of every place. `rows` names the place's row of x; empty: x has a row for each place.
// `scratch`: see ExpertMatmulArgs::gathered.
Tensor Moe::run_units(ops::Ctx& c, const Tensor& x, const Tensor& starts, const Tensor& rows, const Indices& slots,
                      const Tensor& scratch) const {
  const int64_t places = scratch.rows();
  const Tensor gate_up = c.arena.take(&kFloat32, {places, experts_->in.outputs()});
  const Tensor inner = spec_.gated ? c.arena.take(&kFloat32, {places, inner_}) : gate_up;
  const DType type = experts_->in.type();
  if (plain_units() && (type == &kBFloat16 || type == &kFloat16)) {
    const Tensor rounded = ops::rows_in(inner, type);
    if (experts_->in.gated(c, rounded, x, starts, rows, spec_.activation, experts_->out)) return rounded;
  }
  if (rows.data != nullptr) {
    experts_->in.experts(c, gate_up, x, starts, rows, scratch);
  } else {
    experts_->in.experts(c, gate_up, x, starts, slots);
  }
  if (!spec_.gated) {
    ops::unary(c, inner, spec_.activation);
  } else if (spec_.clamp > 0) {
    clamped_product(c, inner, gate_up, spec_.activation, spec_.clamp, spec_.clamp_first);
  } else if (spec_.glu_limit > 0) {
    ops::clamped_glu(c, inner, gate_up, spec_.glu_alpha, spec_.glu_limit);
  } else {
    ops::glu(c, inner, gate_up, spec_.activation);
  }
  return inner;
}

void Moe::run_chosen(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, const Tensor& given,
                     bool accumulate) const {
  Arena::Scope scope(c.arena);
  const Choice choice = choose(c, logits, given);
  // Places are sorted by expert, so those of this rank's experts lie together.
  Tensor starts = choice.starts;
  if (!mine_.empty()) starts = starts.slice_rows(first_, experts_->in.count() + 1);
  const int64_t places = x.rows() * spec_.top_k;
  const Tensor mine = c.arena.take(&kFloat32, {places, x.shape[1]});
  const Indices slots = slots_of(c, choice, starts);
  Tensor from = mine, rows;
  if (spec_.scaled_inputs) {
    scale_inputs(c, choice, x, mine);
  } else if (!mine_.empty() || experts_->in.adapts(c)) {
    // Places of identities keep their inputs. Those of other ranks keep finite numbers, which get no weight.
    ops::gather_rows(c, mine, x, choice.rows);
  } else {
    from = x, rows = choice.rows;
  }
  const Tensor inner = run_units(c, from, starts, rows, slots, mine);
  // Results replace the gathered inputs. Places of identities and of other ranks keep inputs, which are fp32.
  const bool bf16 = inner.dtype == &kBFloat16 && mine_.empty();
  const Tensor results = bf16 ? ops::rows_in(mine, inner.dtype) : mine;
  experts_->out.experts(c, results, inner, starts, slots);
  if (!mine_.empty()) scale_weights(c, choice, mine_);
  ops::combine(
      c, {.out = out, .x = results, .weights = choice.weights, .places = choice.places, .accumulate = accumulate});
}

}  // namespace sluice
