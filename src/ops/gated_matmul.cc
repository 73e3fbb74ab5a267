// Finds the kernel of a matmul that writes gated units.
#include "ops/gated_matmul.h"

#include "base/check.h"
#include "base/registry.h"

namespace sluice::ops {
namespace {

// Calls run(kernel) for the kernels that belong to the op table, until one returns true.
template <class F>
bool any_kernel(const Ctx& ctx, DType type, const F& run) {
  const auto own = ctx.ops.matmul.find(type);
  for (const GatedMatmul* kernel : Registry<GatedMatmul>::all()) {
    if (kernel->type != type || own == ctx.ops.matmul.end() || kernel->matmul != own->second.matmul) continue;
    if (run(*kernel)) return true;
  }
  return false;
}

}  // namespace

bool gated_matmul(Ctx& ctx, const MatmulArgs& args, Activation activation) {
  const Weight& w = *args.weight;
  CHECK(args.out.shape == Shape({args.x.rows(), w.n / 2}) && args.x.shape[1] == w.k, "out {}, x {}, weight [{}, {}]",
        args.out.shape.str(), args.x.shape.str(), w.n, w.k);
  CHECK(!args.accumulate, "products of gated units are not added");
  return any_kernel(ctx, w.dtype, [&](const GatedMatmul& k) { return k.run(ctx.queue, args, activation); });
}

bool gated_experts(Ctx& ctx, const ExpertMatmulArgs& args, Activation activation, int64_t next_n) {
  const int64_t experts = args.starts.shape.elements() - 1, rows = stacked_outputs(2 * args.out.shape[1]);
  CHECK(args.weight->n == experts * rows && args.x.shape[1] == args.weight->k, "out {}, x {}, weight [{}, {}]",
        args.out.shape.str(), args.x.shape.str(), args.weight->n, args.weight->k);
  CHECK(args.out.dtype == args.weight->dtype, "out is {}", args.out.dtype->name);
  CHECK(args.x.dtype == &kFloat32 || args.x.dtype == args.weight->dtype, "x is {}", args.x.dtype->name);
  return any_kernel(ctx, args.weight->dtype,
                    [&](const GatedMatmul& k) { return k.run_experts(ctx.queue, args, activation, next_n); });
}

bool takes_gated_experts(const Ctx& ctx, DType weights, const GatedExperts& sizes, Activation activation) {
  return any_kernel(ctx, weights, [&](const GatedMatmul& k) { return k.takes_experts(ctx.queue, sizes, activation); });
}

}  // namespace sluice::ops
