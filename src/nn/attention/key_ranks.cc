// Queries to all ranks of a group, results back to the ranks of their heads.
#include "nn/attention/key_ranks.h"

#include "parallel/communicator.h"

namespace sluice {

void attend(ops::Ctx& c, const ops::AttentionArgs& args) {
  if (args.share.whole()) return ops::attention(c, args);
  CHECK(c.key_ranks != nullptr && c.key_ranks->size() == args.share.parts,
        "a part of the keys without the other ranks");
  const Arena::Scope scope(c.arena);
  ops::Ctx among = c;
  among.communicator = c.key_ranks;
  const int64_t rows = args.q.rows(), parts = args.share.parts, heads = parts * args.heads;
  const auto take = [&](int64_t columns) { return c.arena.take(&kFloat32, {rows, columns}); };

  const Tensor queries = take(parts * args.q.shape[1]);
  const Tensor mixed = take(parts * args.out.shape[1]), sums = take(heads);
  ops::all_gather(among, queries, args.q);
  ops::AttentionArgs own = args;
  own.q = queries, own.out = mixed, own.log_sums = sums;
  own.heads = static_cast<int>(heads), own.sinks = nullptr;
  ops::attention(c, own);

  const Tensor all_mixed = take(mixed.shape[1]), all_sums = take(heads);
  ops::all_to_all(among, all_mixed, mixed);
  ops::all_to_all(among, all_sums, sums);
  ops::merge_parts(c, {.out = args.out,
                       .x = all_mixed,
                       .log_sums = all_sums,
                       .parts = args.share.parts,
                       .heads = args.heads,
                       .sinks = args.sinks});
}

int64_t attend_floats(const LoadContext& context, int64_t heads, int64_t head_dim, int64_t value_dim) {
  if (context.key_parts == 1) return 0;
  return context.key_parts * heads * (head_dim + 2 * (value_dim + 1));
}

}  // namespace sluice
