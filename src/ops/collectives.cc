// Checked calls of the ops between ranks.
#include "ops/checks.h"
#include "parallel/communicator.h"
#include "parallel/share.h"

namespace sluice::ops {

// x may also be rows of output_type(): the sums are in fp32.
void all_reduce(Ctx& ctx, Tensor out, Tensor x, bool accumulate) {
  CHECK(ctx.communicator != nullptr, "a sum over ranks without ranks");
  check_rows(x, "x", -1, -1);
  check_matrix(out, "out", x.shape[0], x.shape[1]);
  if (x.shape.elements() > 0) ctx.ops.all_reduce(ctx.queue, *ctx.communicator, out, x, accumulate);
}

void all_gather(Ctx& ctx, Tensor out, Tensor x) {
  CHECK(ctx.communicator != nullptr, "columns of all ranks without ranks");
  check_matrix(out, "out", x.shape[0], -1);
  const Share mine = share_of(out.shape[1], ctx.communicator->rank(), ctx.communicator->size());
  check_matrix(x, "x", out.shape[0], mine.count);
  if (out.shape.elements() > 0) ctx.ops.all_gather(ctx.queue, *ctx.communicator, out, x);
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
