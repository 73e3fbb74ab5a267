// Checked calls of the ops on experts and heads. They check shapes but not the contents of index tensors (experts,
// places), because an op computed these, perhaps on another device.
#include "ops/checks.h"
#include "ops/physical_experts.h"

namespace sluice::ops {
namespace {

const MatmulKernels& kernels_of(const Ctx& ctx, const Weight* weight, int64_t matrices, int64_t n) {
  CHECK(weight != nullptr && weight->dtype != nullptr && weight->data != nullptr);
  CHECK(weight->n == matrices * stacked_outputs(n), "{} outputs for {} matrices of {}", weight->n, matrices, n);
  const auto kernels = ctx.ops.matmul.find(weight->dtype);
  CHECK(kernels != ctx.ops.matmul.end(), "no kernels for weights of type {}", weight->dtype->name);
  return kernels->second;
}

}  // namespace

void gather_rows(Ctx& ctx, Tensor out, Tensor x, const Tensor& rows) {
  const int64_t count = rows.shape.elements();
  check_list(rows, "rows", count);
  check_matrix(x, "x", -1, -1);
  check_matrix(out, "out", count, x.shape[1]);
  const auto* indices = rows.as<const int32_t>();  // device memory; the host may be unable to read it
  ctx.ops.gather_rows(ctx.queue, out, x, Indices({indices, static_cast<size_t>(count)}, indices));
}

void route(Ctx& ctx, const RouteArgs& args) {
  const Routing& r = args.routing;
  check_matrix(args.logits, "logits", -1, -1);
  const int64_t rows = args.logits.shape[0], experts = args.logits.shape[1];
  CHECK(r.top_k > 0 && r.top_k <= experts, "{} of {} experts", r.top_k, experts);
  CHECK(r.groups > 0 && experts % r.groups == 0 && r.top_groups > 0 && r.top_groups <= r.groups && r.group_best > 0,
        "{} of {} groups of {} experts", r.top_groups, r.groups, experts);
  CHECK(r.score != Routing::Score::kSparseMixer || r.top_k == 2, "top_k {}", r.top_k);
  check_list(args.experts, "experts", rows * r.top_k);
  check_matrix(args.weights, "weights", rows, r.top_k);
  if (args.given.data != nullptr) {
    CHECK(r.score != Routing::Score::kSparseMixer, "given experts");
    check_matrix(args.given, "given", rows, r.top_k);
  }
  ctx.ops.route(ctx.queue, args);
}

void choose_physical(Ctx& ctx, const PhysicalExpertsArgs& args) {
  check_matrix(args.logits, "logits", -1, -1);
  const int64_t rows = args.logits.shape[0];
  CHECK(args.experts.shape.rank() == 2 && args.experts.shape[0] == rows, "experts is {}", args.experts.shape.str());
  check_list(args.experts, "experts", args.experts.shape.elements());
  CHECK(args.first != nullptr && args.physical != nullptr && args.counts != nullptr);
  ctx.ops.choose_physical(ctx.queue, args);
}

void group_by_expert(Ctx& ctx, const GroupByExpertArgs& args) {
  const int64_t entries = args.experts.shape.elements();
  CHECK(args.experts.shape.rank() == 2, "experts is {}", args.experts.shape.str());
  check_list(args.experts, "experts", entries);
  check_list(args.entries, "entries", entries);
  check_list(args.rows, "rows", entries);
  check_list(args.places, "places", entries);
  check_list(args.starts, "starts", args.starts.shape.elements());
  CHECK(args.starts.shape.elements() > 1);
  ctx.ops.group_by_expert(ctx.queue, args);
}

void expert_matmul(Ctx& ctx, const ExpertMatmulArgs& args) {
  check_list(args.starts, "starts", args.starts.shape.elements());
  const bool bf16 = args.out.dtype == &kBFloat16;
  CHECK(bf16 ? args.x.dtype == &kBFloat16 : args.out.dtype == &kFloat32, "out {}, x {}", args.out.dtype->name,
        args.x.dtype->name);
  const MatmulKernels& kernels = kernels_of(ctx, args.weight, args.starts.shape.elements() - 1, args.out.shape[1]);
  const bool gathers = args.rows.data != nullptr;
  if (args.x.dtype == &kFloat32) {
    check_matrix(args.x, "x", gathers ? -1 : args.out.shape[0], args.weight->k);
  } else {  // from gated_experts(), or where takes_gated_experts()
    CHECK(args.x.dtype == args.weight->dtype && args.x.shape[1] == args.weight->k &&
              (gathers ? ctx.ops.gathers_rows : args.x.shape[0] == args.out.shape[0]),
          "x {} {}", args.x.dtype->name, args.x.shape.str());
  }
  if (gathers) check_list(args.rows, "rows", args.out.shape[0]);
  if (!gathers || ctx.ops.gathers_rows) return ctx.ops.expert_matmul(ctx.queue, kernels, args);
  gather_rows(ctx, args.gathered, args.x, args.rows);
  ExpertMatmulArgs in_order = args;
  in_order.x = args.gathered, in_order.rows = {};
  ctx.ops.expert_matmul(ctx.queue, kernels, in_order);
}

void head_matmul(Ctx& ctx, const HeadMatmulArgs& args) {
  CHECK(args.heads > 0 && args.n > 0 && args.out_stride >= args.n);
  const MatmulKernels& kernels = kernels_of(ctx, args.weight, args.heads, args.n);
  check_matrix(args.x, "x", -1, -1);
  check_matrix(args.out, "out", args.x.shape[0], -1);
  const int64_t before = args.heads - 1;
  CHECK(args.x.shape[1] >= before * args.x_stride + args.weight->k, "x is {}", args.x.shape.str());
  CHECK(args.out.shape[1] >= before * args.out_stride + args.n, "out is {}", args.out.shape.str());
  ctx.ops.head_matmul(ctx.queue, kernels, args);
}

void combine(Ctx& ctx, const CombineArgs& args) {
  check_matrix(args.weights, "weights", -1, -1);
  const int64_t rows = args.weights.shape[0], entries = args.weights.shape.elements();
  check_matrix(args.out, "out", rows, -1);
  check_extents(args.x, "x", entries, args.out.shape[1]);
  CHECK(args.x.dtype == &kFloat32 || args.x.dtype == &kBFloat16, "x is {}", args.x.dtype->name);
  if (args.places.data != nullptr) check_list(args.places, "places", entries);
  ctx.ops.combine(ctx.queue, args);
}

void matrix_slots(Ctx& ctx, const MatrixSlotsArgs& args) {
  const int64_t items = args.out.shape.elements();
  check_list(args.out, "out", items);
  CHECK(args.matrices > 0);
  if (args.starts.data == nullptr) {
    const auto rows = static_cast<int64_t>(args.slots.size());
    CHECK(items == rows * args.matrices, "{} items of {} rows and {} heads", items, rows, args.matrices);
  } else {
    check_list(args.rows, "rows", items);
    check_list(args.starts, "starts", args.matrices + 1);
  }
  ctx.ops.matrix_slots(ctx.queue, args);
}

}  // namespace sluice::ops
