// Finds the kernel of a matmul that writes gated units.
#include "ops/gated_matmul.h"

#include "base/check.h"
#include "base/registry.h"

namespace sluice::ops {

bool gated_matmul(Ctx& ctx, const MatmulArgs& args, Activation activation) {
  const Weight& w = *args.weight;
  CHECK(args.out.shape == Shape({args.x.rows(), w.n / 2}) && args.x.shape[1] == w.k, "out {}, x {}, weight [{}, {}]",
        args.out.shape.str(), args.x.shape.str(), w.n, w.k);
  CHECK(!args.accumulate, "products of gated units are not added");
  const auto own = ctx.ops.matmul.find(w.dtype);
  for (const GatedMatmul* kernel : Registry<GatedMatmul>::all()) {
    if (kernel->type != w.dtype || own == ctx.ops.matmul.end() || kernel->matmul != own->second.matmul) continue;
    if (kernel->run(ctx.queue, args, activation)) return true;
  }
  return false;
}

}  // namespace sluice::ops
