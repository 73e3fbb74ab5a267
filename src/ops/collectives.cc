// Checked calls of the ops between ranks.
#include <algorithm>

#include "ops/checks.h"
#include "ops/sum_runs.h"
#include "parallel/communicator.h"
#include "parallel/share.h"

namespace sluice::ops {

namespace {

void apply(Ctx& ctx, const RowNorm& norm, const Tensor& x) {
  if (norm.centred) return layer_norm(ctx, norm.out, x, norm.weight, norm.bias, norm.eps);
  rms_norm(ctx, norm.out, x, norm.weight, norm.eps);
}

}  // namespace

// x may also be rows of output_type(): the sums are in fp32.
void all_reduce(Ctx& ctx, Tensor out, Tensor x, bool accumulate, const RowNorm* norm) {
  CHECK(ctx.communicator != nullptr, "a sum over ranks without ranks");
  check_rows(x, "x", -1, -1);
  check_matrix(out, "out", x.shape[0], x.shape[1]);
  if (norm != nullptr) check_rows(norm->out, "the norm's out", x.shape[0], x.shape[1]);
  if (x.shape.elements() == 0) return;
  const bool fuses = norm != nullptr && ctx.ops.all_reduce_norm != nullptr;
  if (fuses && ctx.ops.all_reduce_norm(ctx.queue, *ctx.communicator, out, x, accumulate, *norm)) return;
  ctx.ops.all_reduce(ctx.queue, *ctx.communicator, out, x, accumulate);
  if (norm != nullptr) apply(ctx, *norm, out);
}

namespace {

constexpr int64_t kRowTile = 128;

// The rows of x that travel together. Where more than two ranks divide a sum among them, it does not travel in runs.
int64_t rows_of_a_run(const Ctx& ctx, const Tensor& x) {
  const int64_t rows = x.shape[0];
  if (ctx.ops.begin_sum == nullptr || ctx.communicator->size() != 2 || x.shape.elements() == 0) return rows;
  const int64_t run = kRunBytes / (static_cast<int64_t>(x.bytes()) / rows) / kRowTile * kRowTile;
  return run > 0 && rows >= run + run / 2 ? run : rows;
}

// The scales of 8-bit floats lie behind the last row (take_rows).
bool has_parts(const Tensor& rows) { return rows.dtype != &kFloat8E4M3; }

}  // namespace

// Few kernels add the runs, each as many as it can, so that the last runs travel while the first ones are added.
void all_reduce(Ctx& ctx, Tensor out, Tensor x, bool accumulate,
                const std::function<void(int64_t first, int64_t rows)>& compute, const RowNorm* norm) {
  CHECK(ctx.communicator != nullptr, "a sum over ranks without ranks");
  const int64_t rows = x.shape[0], run = rows_of_a_run(ctx, x);
  if (run == rows) {
    compute(0, rows);
    return all_reduce(ctx, out, x, accumulate, norm);
  }
  int64_t added = 0;
  const auto add = [&](int64_t end) {
    const auto part = [&](const Tensor& t) { return t.slice_rows(added, end - added); };
    const bool whole = end - added == rows, fuses = norm != nullptr && (whole || has_parts(norm->out));
    RowNorm of_part = norm != nullptr ? *norm : RowNorm();
    if (fuses && !whole) of_part.out = part(norm->out);
    all_reduce(ctx, part(out), part(x), accumulate, fuses ? &of_part : nullptr);
    if (norm != nullptr && !fuses && end == rows) apply(ctx, *norm, out);
    added = end;
  };
  int64_t computed = 0;
  for (int64_t first = 0; first < rows; first += run) {
    if (first == computed) {  // at the end, up to half a run belongs to the last matmul
      const int64_t left = rows - first, count = left < run + run / 2 ? left : run;
      compute(first, count);
      computed = first + count;
    }
    const int64_t end = std::min(first + run, rows);
    ctx.ops.begin_sum(ctx.queue, *ctx.communicator, x.slice_rows(first, end - first));
    if (end < rows && end - added == kMostRunsBegun * run) add(first);  // all but the one that has just begun
  }
  add(rows);
}

void all_gather(Ctx& ctx, Tensor out, Tensor x) {
  CHECK(ctx.communicator != nullptr, "columns of all ranks without ranks");
  check_matrix(out, "out", x.shape[0], -1);
  const Share mine = share_of(out.shape[1], ctx.communicator->rank(), ctx.communicator->size());
  check_matrix(x, "x", out.shape[0], mine.count);
  if (out.shape.elements() > 0) ctx.ops.all_gather(ctx.queue, *ctx.communicator, out, x);
}

void all_to_all(Ctx& ctx, Tensor out, Tensor x) {
  CHECK(ctx.communicator != nullptr, "columns of all ranks without ranks");
  check_matrix(x, "x", -1, -1);
  check_matrix(out, "out", x.shape[0], x.shape[1]);
  CHECK(x.shape[1] % ctx.communicator->size() == 0, "{} columns for {} ranks", x.shape[1], ctx.communicator->size());
  if (x.shape.elements() > 0) ctx.ops.all_to_all(ctx.queue, *ctx.communicator, out, x);
}

namespace {

void check_message(const Tensor& x) {
  CHECK(x.dense() && x.bytes() % sizeof(int32_t) == 0, "a message of {} {}", x.shape.str(), x.dtype->name);
}

}  // namespace

void broadcast(Ctx& ctx, Tensor x) {
  Communicator* all = ctx.pipeline != nullptr ? ctx.pipeline : ctx.communicator;
  CHECK(all != nullptr, "a message to all ranks without ranks");
  check_message(x);
  if (x.shape.elements() > 0) ctx.ops.broadcast(ctx.queue, *all, x);
}

void send(Ctx& ctx, int rank, Tensor x) {
  CHECK(ctx.pipeline != nullptr, "a message to rank {} without ranks", rank);
  check_message(x);
  if (x.shape.elements() > 0) ctx.ops.send(ctx.queue, *ctx.pipeline, rank, x);
}

void receive(Ctx& ctx, int rank, Tensor x) {
  CHECK(ctx.pipeline != nullptr, "a message from rank {} without ranks", rank);
  check_message(x);
  if (x.shape.elements() > 0) ctx.ops.receive(ctx.queue, *ctx.pipeline, rank, x);
}

}  // namespace sluice::ops
