// The dependency pass: Exchanges, grid barriers, and which results are written to memory at all.
#include "kernels/cuda/decode_kernel/dependencies.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/decode_kernel/effects.h"

namespace sluice::cuda {
namespace {

using Kind = Instruction::Kind;

bool overlaps(const std::vector<Span>& spans, const Span& with) {
  return std::ranges::any_of(spans, [&](const Span& s) { return s.overlaps(with); });
}

// Whether `x` is read after instruction i and before it is written again. What is never written again may be read after
// the kernel.
bool is_read(const std::vector<Effects>& effects, size_t i, const Span& x) {
  for (size_t j = i + 1; j < effects.size(); ++j) {
    if (overlaps(effects[j].reads, x)) return true;
    for (const Write& w : effects[j].writes) {
      if (w.span == x) return false;
    }
  }
  return true;
}

// The matmuls that read the norm at `at`, or none: the one behind it, and if that is a router, the experts behind it
// and the shared experts behind those.
std::vector<size_t> readers_of_norm(const std::vector<Instruction>& run, size_t at) {
  const Span result = out_of(run[at].norm);
  const auto takes = [&](size_t j, ExpertPart part) {
    return j < run.size() && run[j].kind == Kind::kMatmul && run[j].matmul.experts.part == part &&
           input_of(run[j].matmul) == result;
  };
  std::vector<size_t> all;
  if (!takes(at + 1, ExpertPart::kNone)) return all;
  all.push_back(at + 1);
  if (!takes(at + 2, ExpertPart::kIn)) return all;
  all.push_back(at + 2);
  if (takes(at + 4, ExpertPart::kNone)) all.push_back(at + 4);
  return all;
}

// An instruction of a run. `as_router`: it reads what the router three instructions before reads.
struct Fused {
  Instruction in;
  bool as_router = false;
};

// Fuses norms into the matmuls behind them if nothing else reads their results.
std::vector<Fused> fuse_norms(std::vector<Instruction> run) {
  std::vector<Fused> fused;
  std::vector<bool> as_router(run.size());
  std::vector<Effects> effects;
  for (Instruction& in : run) effects.push_back(effects_of(in));
  for (size_t i = 0; i < run.size(); ++i) {
    if (run[i].kind == Kind::kNorm) {
      const NormInstruction norm = run[i].norm;
      const std::vector<size_t> readers = readers_of_norm(run, i);
      if (!readers.empty() && norm.groups == 1 && norm.x != norm.out && norm.in_packs &&
          !is_read(effects, readers.back(), out_of(norm))) {
        for (const size_t j : readers) {
          MatmulInstruction& p = run[j].matmul;
          p.norms = true, p.x = norm.x, p.x_stride = norm.x_stride;
          p.norm_weight = norm.weight, p.eps = norm.eps, p.norm_offset = norm.offset;
        }
        if (readers.size() == 3) as_router[readers.back()] = true;
        continue;
      }
    }
    fused.push_back({run[i], as_router[i]});
  }
  return fused;
}

class DependencyPass {
 public:
  explicit DependencyPass(size_t most) { plan_.instructions.reserve(most); }

  void add(const Fused& next) {
    Instruction in = next.in;
    bool linked = false;
    if (next.as_router) {
      // It does not read the result before it. That one's blocks may not have finished, so there is a barrier.
      in.matmul.in = all()[all().size() - 3].matmul.in;
    } else if (in.kind == Kind::kMatmul && in.matmul.experts.part == ExpertPart::kIn) {
      link_to_router(in.matmul);
      linked = true;
    } else if (in.kind == Kind::kMatmul) {
      MatmulInstruction& p = in.matmul;
      if (p.experts.part == ExpertPart::kOut) p.experts.logits = all().back().matmul.experts.logits;
      p.in = put_by_last(input_of(p), p);
      if (p.in.stride == 0) {
        Instruction put;
        std::memset(static_cast<void*>(&put), 0, sizeof put);
        put.kind = Kind::kPut, put.grid_barrier = !all().empty();
        put.put = {.x = p.x, .x_stride = p.x_stride, .rows = p.rows, .columns = p.k, .put = quads_for(p)};
        p.in = put.put.put.to;
        all().push_back(put);
      }
      linked = true;
    } else if (in.kind == Kind::kAttention) {
      linked = link(in.attention);
    }
    in.grid_barrier = !linked && !all().empty();
    all().push_back(in);
  }

  DecodeKernelPlan finish() {
    for (Instruction& in : all()) effects_.push_back(effects_of(in));
    for (size_t i = 0; i < all().size(); ++i) drop_unread(i);
    for (size_t i = 0; i < all().size(); ++i) all()[i].grid_barrier |= conflicts(i);
    return std::move(plan_);
  }

 private:
  std::vector<Instruction>& all() { return plan_.instructions; }

  // An Exchange for the results of the instruction that is added next.
  Exchange exchange(int64_t words_of_row, int rows) {
    plan_.exchange_words = std::max(plan_.exchange_words, static_cast<size_t>(words_of_row * rows + 1) / 2 * 2);
    return {.words = nullptr, .stride = words_of_row, .step = static_cast<int>(all().size())};
  }
  // Where the instruction that is added next writes the input of matmul `p`.
  Put quads_for(const MatmulInstruction& p) {
    return {.to = exchange(p.k / 2, p.rows), .quads = true, .weight = p.norm_weight, .offset = p.norm_offset};
  }

  // If the last instruction computed `x`, the input of `p`, makes it write `x` to an Exchange, which is returned. Else
  // the stride of the result is 0.
  Exchange put_by_last(const Span& x, const MatmulInstruction& p) {
    if (all().empty()) return {};
    Instruction& last = all().back();
    const int step = static_cast<int>(all().size()) - 1;
    if (last.kind == Kind::kMatmul) {
      MatmulInstruction& from = last.matmul;
      if (from.put.to.stride != 0 || x != (from.gated != nullptr ? gated_of(from) : out_of(from))) return {};
      from.put = quads_for(p), from.put.to.step = step;
      return from.put.to;
    }
    if (last.kind != Kind::kAttention || p.norms || last.attention.params.out_type != RowType::kFloat) return {};
    if (x != out_of(last.attention)) return {};
    last.attention.put = quads_for(p).to, last.attention.put.step = step;
    return last.attention.put;
  }

  // Experts read the router's input from the same Exchange as the router, the last instruction, and its logits from
  // another one.
  void link_to_router(MatmulInstruction& p) {
    MatmulInstruction& router = all().back().matmul;
    router.put = {.to = exchange(router.n, router.rows), .quads = false, .weight = nullptr, .offset = 0.0f};
    router.put.to.step = static_cast<int>(all().size()) - 1;
    p.in = router.in;
    p.experts.logits = router.put.to;
  }

  // If q, k and v of an attention that rotates them are all of the last matmul's result, passes them through an
  // Exchange.
  bool link(AttentionInstruction& a) {
    const RopeInstruction& r = a.rotation;
    if (r.q == nullptr || all().empty() || all().back().kind != Kind::kMatmul) return false;
    MatmulInstruction& p = all().back().matmul;
    const auto column = [&](const float* data, int64_t stride, int64_t columns) {
      const int64_t at = data - p.out;
      return data >= p.out && stride == p.out_stride && at % 2 == 0 && at + columns <= p.n ? static_cast<int>(at) : -1;
    };
    a.q_at = column(r.q, r.q_stride, int64_t{r.heads} * r.head_dim);
    a.k_at = column(r.k, r.k_stride, int64_t{r.kv_heads} * r.head_dim);
    a.v_at = column(r.v, r.v_stride, int64_t{r.kv_heads} * r.value_dim);
    const bool all_of_it = p.n == (int64_t{r.heads} + r.kv_heads) * r.head_dim + int64_t{r.kv_heads} * r.value_dim;
    if (a.q_at < 0 || a.k_at < 0 || a.v_at < 0 || !all_of_it || p.rows != r.rows || p.gated != nullptr) return false;
    p.put.to = exchange(p.n, p.rows), p.put.to.step = static_cast<int>(all().size()) - 1;
    a.in = p.put.to;
    return true;
  }

  // Drops the writes to memory of results that are overwritten before they are read.
  void drop_unread(size_t i) {
    for (const Write& w : effects_[i].writes) {
      if (w.keeps != nullptr) *w.keeps = w.span.begin != nullptr && is_read(effects_, i, w.span);
    }
  }

  // Whether instruction i conflicts with an instruction since the last grid barrier.
  bool conflicts(size_t i) {
    for (size_t j = i; j > 0 && !all()[j].grid_barrier;) {
      --j;
      if (same_blocks(all()[i], all()[j])) continue;
      for (const Write& w : effects_[i].writes) {
        if (w.kept() && ((i - j < kDone && overlaps(effects_[j].reads, w.span)) || writes(j, w.span))) return true;
      }
      for (const Span& read : effects_[i].reads) {
        if (writes(j, read)) return true;
      }
    }
    return false;
  }
  // Whether both accumulate to the same tensor, so that each block adds only to its own elements.
  static bool same_blocks(const Instruction& a, const Instruction& b) {
    const auto accumulates = [](const Instruction& in) { return in.kind == Kind::kMatmul && in.matmul.accumulate; };
    return accumulates(a) && accumulates(b) && out_of(a.matmul) == out_of(b.matmul);
  }
  bool writes(size_t i, const Span& x) const {
    return std::ranges::any_of(effects_[i].writes, [&](const Write& w) { return w.kept() && w.span.overlaps(x); });
  }

  std::vector<Effects> effects_;
  DecodeKernelPlan plan_;
};

}  // namespace

DecodeKernelPlan resolve_dependencies(const std::vector<Instruction>& run) {
  DependencyPass pass(2 * run.size());
  for (const Fused& in : fuse_norms(run)) pass.add(in);
  return pass.finish();
}

void place_exchanges(DecodeKernelPlan& plan, uint2* memory) {
  const auto place = [&](Exchange& e) {
    if (e.stride != 0) e.words = memory + e.step % kExchanges * plan.exchange_words;
  };
  for (Instruction& in : plan.instructions) {
    if (in.kind == Kind::kMatmul) {
      MatmulInstruction& p = in.matmul;
      place(p.in), place(p.put.to), place(p.experts.logits);
    }
    if (in.kind == Kind::kAttention) place(in.attention.in), place(in.attention.put);
    if (in.kind == Kind::kPut) place(in.put.put.to);
  }
}

}  // namespace sluice::cuda
