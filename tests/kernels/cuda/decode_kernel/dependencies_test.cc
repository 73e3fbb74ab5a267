// Tests which instructions of a decode step wait at a grid barrier, what they pass on through Exchanges, and what they
// write to memory. Needs no device.
#include "kernels/cuda/decode_kernel/dependencies.h"

#include <gmock/gmock.h>

#include <cstring>

namespace sluice::cuda::dependencies_test {
namespace {

using Kind = Instruction::Kind;
using testing::ElementsAre;

constexpr int kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2, kDim = 16;
constexpr int kExperts = 10, kChoices = 3;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kDim;

Instruction blank(Kind kind) {
  Instruction in;
  std::memset(static_cast<void*>(&in), 0, sizeof in);
  in.kind = kind;
  return in;
}

// A run of ops over tensors of one row, as DecodeKernelBuilder captures it.
class Captured {
 public:
  std::vector<float> x = rows(kHidden), normed = x, qkv = rows(kQkv), mixed = x, gate_up = rows(2 * kInner),
                     gated = rows(kInner), chosen = rows(kChoices * kInner), router_logits = rows(kExperts), last = x,
                     logits = rows(100);
  std::vector<Instruction> ops;

  void embed() {
    Instruction in = blank(Kind::kGather);
    in.gather = {.out = x.data(),
                 .table = table_.data(),
                 .ids = nullptr,
                 .out_stride = kHidden,
                 .table_stride = kHidden,
                 .rows = 1,
                 .columns = kHidden,
                 .bytes = 2};
    ops.push_back(in);
  }
  void norm(std::vector<float>& out, std::vector<float>& from, int groups = 1) {
    Instruction in = blank(Kind::kNorm);
    in.norm = {.out = out.data(),
               .x = from.data(),
               .weight = nullptr,
               .out_stride = 0,
               .x_stride = 0,
               .rows = 1,
               .groups = groups,
               .columns = static_cast<int>(from.size()) / groups,
               .eps = 1e-5f,
               .offset = 0,
               .in_packs = true};
    ops.push_back(in);
  }
  MatmulInstruction& matmul(std::vector<float>& out, std::vector<float>& from, bool accumulate = false) {
    Instruction in = blank(Kind::kMatmul);
    MatmulInstruction& p = in.matmul;
    p.x = from.data(), p.out = out.data(), p.rows = 1, p.accumulate = accumulate;
    p.n = static_cast<int>(out.size()), p.k = static_cast<int>(from.size());
    p.keeps_out = p.keeps_gated = true;
    ops.push_back(in);
    return ops.back().matmul;
  }
  void attention() {
    Instruction in = blank(Kind::kAttention);
    AttentionInstruction& a = in.attention;
    a.params.out = mixed.data(), a.params.out_type = RowType::kFloat, a.params.q = qkv.data();
    a.params.heads = kHeads, a.params.kv_heads = kKvHeads, a.params.head_dim = a.params.value_dim = kDim;
    a.rotation.q = qkv.data(), a.rotation.k = qkv.data() + kHeads * kDim;
    a.rotation.v = qkv.data() + (kHeads + kKvHeads) * kDim;
    a.rotation.rows = 1, a.rotation.heads = kHeads, a.rotation.kv_heads = kKvHeads;
    a.rotation.head_dim = a.rotation.value_dim = kDim;
    a.sequences = 1, a.keeps_out = true;
    ops.push_back(in);
  }
  void layer() {
    mixer();
    norm(normed, x), matmul(gate_up, normed).gated = gated.data();
    matmul(x, gated, true);
  }
  void head() { norm(last, x), matmul(logits, last); }
  // A layer up to its feed-forward network.
  void mixer() {
    norm(normed, x), matmul(qkv, normed);
    attention();
    matmul(x, mixed, true);
  }
  // A router and the two instructions of a row's experts, as the builder makes them.
  void experts() {
    norm(normed, x), matmul(router_logits, normed);
    MatmulInstruction& in = matmul(gate_up, normed);
    in.out = nullptr, in.gated = chosen.data(), in.gated_stride = kChoices * kInner;
    in.experts.part = ExpertPart::kIn, in.experts.count = kExperts, in.experts.choice.top_k = kChoices;
    MatmulInstruction& out = matmul(x, chosen, true);
    out.x_stride = kChoices * kInner;
    out.experts = in.experts, out.experts.part = ExpertPart::kOut;
  }

 private:
  static std::vector<float> rows(int columns) { return std::vector<float>(static_cast<size_t>(columns)); }
  std::vector<std::byte> table_ = std::vector<std::byte>(256);
};

std::vector<Kind> kinds(const DecodeKernelPlan& plan) {
  std::vector<Kind> all;
  for (const Instruction& in : plan.instructions) all.push_back(in.kind);
  return all;
}
std::vector<int> grid_barriers(const DecodeKernelPlan& plan) {
  std::vector<int> all;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    if (plan.instructions[i].grid_barrier) all.push_back(static_cast<int>(i));
  }
  return all;
}

TEST(Dependencies, LayersPassResultsOnWithoutGridBarriers) {
  Captured run;
  run.embed();
  for (int i = 0; i < 3; ++i) run.layer();
  const DecodeKernelPlan plan = resolve_dependencies(run.ops);
  // The last norm may be read after the kernel, so it remains an instruction; all others are fused into their matmul.
  EXPECT_THAT(kinds(plan), ElementsAre(Kind::kGather, Kind::kPut, Kind::kMatmul, Kind::kAttention, Kind::kMatmul,
                                       Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kAttention, Kind::kMatmul,
                                       Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kAttention, Kind::kMatmul,
                                       Kind::kNorm, Kind::kPut, Kind::kMatmul, Kind::kMatmul));
  // Barriers come after the embedding and around the last norm.
  EXPECT_THAT(grid_barriers(plan), ElementsAre(1, 15, 16));
  for (size_t i = 2; i < 14; ++i) {
    const Instruction& in = plan.instructions[i];
    const Exchange& from = in.kind == Kind::kMatmul ? in.matmul.in : in.attention.in;
    EXPECT_EQ(from.step, static_cast<int>(i) - 1) << i;
  }
}

TEST(Dependencies, ResidualsStayWithTheirBlocks) {
  Captured run;
  run.embed();
  run.layer(), run.layer();
  const std::vector<Instruction> all = resolve_dependencies(run.ops).instructions;
  // 0 embed, 1 put, 2 qkv, 3 attention, 4 out, 5 gate and up, 6 down, 7 qkv, 8 attention, 9 out
  for (const int i : {4, 6, 9}) {
    EXPECT_TRUE(all[i].matmul.keeps_out) << i;
    EXPECT_FALSE(all[i].grid_barrier) << i;
  }
}

TEST(Dependencies, OthersNeedAGridBarrierBeforeTheyTouchAResidual) {
  Captured run;
  run.embed();
  run.layer();
  run.matmul(run.x, run.mixed);  // overwrites x
  run.matmul(run.x, run.gated, true);
  const std::vector<Instruction> all = resolve_dependencies(run.ops).instructions;
  // ..., down, put, the new x, put, the matmul that adds to it
  const size_t last = all.size() - 1;
  ASSERT_TRUE(all[last].matmul.accumulate);
  EXPECT_TRUE(all[last].grid_barrier || all[last - 1].grid_barrier);
  EXPECT_TRUE(all[last - 2].grid_barrier || all[last - 3].grid_barrier);
}

TEST(Dependencies, NormWeightsAreAppliedWhereTheInputIsWritten) {
  Captured run;
  run.embed();
  run.layer(), run.layer();
  for (Instruction& in : run.ops) {
    if (in.kind == Kind::kNorm) in.norm.weight = run.last.data(), in.norm.offset = 1.0f;
  }
  const std::vector<Instruction> all = resolve_dependencies(run.ops).instructions;
  // 0 embed, 1 put, 2 qkv, 3 attention, 4 out, 5 gate and up, 6 down
  for (const Put& put : {all[1].put.put, all[4].matmul.put}) {
    EXPECT_TRUE(put.quads);
    EXPECT_EQ(put.weight, run.last.data());
    EXPECT_EQ(put.offset, 1.0f);
  }
  EXPECT_FALSE(all[2].matmul.put.quads) << "attention takes fp32";
  EXPECT_TRUE(all[5].matmul.put.quads);
  EXPECT_EQ(all[5].matmul.put.weight, nullptr);
}

TEST(Dependencies, OnlyWhatIsReadIsWritten) {
  Captured run;
  run.embed();
  run.layer(), run.layer();
  run.head();
  const std::vector<Instruction> all = resolve_dependencies(run.ops).instructions;
  EXPECT_FALSE(all[2].matmul.keeps_out) << "qkv is written again in the next layer";
  EXPECT_FALSE(all[3].attention.keeps_out);
  EXPECT_FALSE(all[5].matmul.keeps_gated);
  ASSERT_EQ(all[7].kind, Kind::kMatmul);
  EXPECT_TRUE(all[7].matmul.keeps_out) << "the last qkv may be read after the kernel";
  // ..., down, the head's norm, put, head
  const Instruction& down = all[all.size() - 4];
  ASSERT_EQ(down.kind, Kind::kMatmul);
  EXPECT_TRUE(down.matmul.keeps_out) << "the last norm reads x";
}

TEST(Dependencies, HeadNormsNeedTheirVectorsWritten) {
  Captured run;
  run.embed();
  for (int i = 0; i < 2; ++i) {
    run.norm(run.normed, run.x), run.matmul(run.qkv, run.normed);
    run.norm(run.qkv, run.qkv, kQkv / kDim);
    run.attention();
    run.matmul(run.x, run.mixed, true);
  }
  const std::vector<Instruction> all = resolve_dependencies(run.ops).instructions;
  // 0 embed, 1 put, 2 qkv, 3 norm, 4 attention, 5 out, 6 qkv
  EXPECT_TRUE(all[2].matmul.keeps_out);
  EXPECT_TRUE(all[3].grid_barrier);
  EXPECT_TRUE(all[4].grid_barrier);
  EXPECT_EQ(all[4].attention.in.stride, 0);
  EXPECT_FALSE(all[5].grid_barrier) << "what the attention gives is passed on";
}

TEST(Dependencies, AnInputOfTwoMatmulsIsNormalizedForBoth) {
  Captured run;
  run.embed();
  for (int i = 0; i < 2; ++i) {
    run.norm(run.normed, run.x);
    run.matmul(run.qkv, run.normed), run.matmul(run.gate_up, run.normed);
  }
  const DecodeKernelPlan plan = resolve_dependencies(run.ops);
  EXPECT_THAT(kinds(plan), ElementsAre(Kind::kGather, Kind::kNorm, Kind::kPut, Kind::kMatmul, Kind::kPut, Kind::kMatmul,
                                       Kind::kNorm, Kind::kPut, Kind::kMatmul, Kind::kPut, Kind::kMatmul));
}

TEST(Dependencies, ExpertsReadWhatTheirRouterReadsAndItsLogits) {
  Captured run;
  run.embed();
  for (int i = 0; i < 3; ++i) run.mixer(), run.experts();
  DecodeKernelPlan plan = resolve_dependencies(run.ops);
  EXPECT_THAT(kinds(plan),
              ElementsAre(Kind::kGather, Kind::kPut, Kind::kMatmul, Kind::kAttention, Kind::kMatmul, Kind::kMatmul,
                          Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kAttention, Kind::kMatmul, Kind::kMatmul,
                          Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kAttention, Kind::kMatmul, Kind::kNorm,
                          Kind::kPut, Kind::kMatmul, Kind::kMatmul, Kind::kMatmul))
      << "the last norm may be read after the kernel";
  EXPECT_THAT(grid_barriers(plan), ElementsAre(1, 17, 18));
  EXPECT_GE(plan.exchange_words, size_t{kChoices * kInner / 2});
  for (const size_t first : {4, 10}) {  // the attention's matmul, the router, in, out
    const MatmulInstruction &before = plan.instructions[first].matmul, &router = plan.instructions[first + 1].matmul,
                            &in = plan.instructions[first + 2].matmul, &out = plan.instructions[first + 3].matmul;
    const auto step = static_cast<int>(first);
    EXPECT_TRUE(before.put.quads);
    for (const MatmulInstruction* p : {&router, &in}) {
      EXPECT_TRUE(p->norms);
      EXPECT_EQ(p->in.step, step);
      EXPECT_EQ(p->x, run.x.data());
    }
    EXPECT_FALSE(router.put.quads) << "logits are fp32";
    EXPECT_EQ(router.put.to.stride, kExperts);
    EXPECT_EQ(in.experts.logits.step, step + 1);
    EXPECT_EQ(in.experts.logits.stride, kExperts);
    EXPECT_TRUE(in.put.quads);
    EXPECT_EQ(out.in.step, step + 2);
    EXPECT_EQ(out.experts.logits.step, step + 1);
    EXPECT_EQ(out.experts.logits.stride, kExperts);
    EXPECT_FALSE(in.keeps_out);
  }
  EXPECT_FALSE(plan.instructions[6].matmul.keeps_gated) << "the next layer's experts overwrite it";
  EXPECT_FALSE(plan.instructions[5].matmul.keeps_out);
  std::vector<uint2> memory(kExchanges * plan.exchange_words);
  place_exchanges(plan, memory.data());
  EXPECT_EQ(plan.instructions[6].matmul.experts.logits.words, memory.data() + 5 * plan.exchange_words);
}

// Shared experts come behind the others and add to the same residual.
TEST(Dependencies, SharedExpertsReadWhatTheRouterReads) {
  Captured run;
  run.embed();
  for (int i = 0; i < 2; ++i) {
    run.mixer(), run.experts();
    run.matmul(run.gate_up, run.normed).gated = run.gated.data();
    run.matmul(run.x, run.gated, true);
  }
  const std::vector<Instruction> all = resolve_dependencies(run.ops).instructions;
  // 0 embed, 1 put, 2 qkv, 3 attention, 4 out, 5 router, 6 in, 7 out, 8 gate and up, 9 down, 10 qkv
  const MatmulInstruction &router = all[5].matmul, &shared = all[8].matmul, &down = all[9].matmul;
  EXPECT_EQ(router.in.step, 4);
  EXPECT_TRUE(shared.norms);
  EXPECT_EQ(shared.in.step, 4) << "what it reads is the residual before the experts";
  EXPECT_TRUE(all[8].grid_barrier);
  EXPECT_EQ(all[7].matmul.put.to.stride, 0) << "nothing reads the sum of the experts alone";
  EXPECT_EQ(down.in.step, 8);
  EXPECT_FALSE(all[9].grid_barrier);
  EXPECT_EQ(all[10].matmul.in.step, 9);
}

// The norm's result stays in memory if something else reads it.
TEST(Dependencies, ANormThatOthersReadIsNotFusedIntoExperts) {
  Captured run;
  run.embed();
  run.experts();
  run.matmul(run.qkv, run.normed);
  const DecodeKernelPlan plan = resolve_dependencies(run.ops);
  EXPECT_THAT(kinds(plan), ElementsAre(Kind::kGather, Kind::kNorm, Kind::kPut, Kind::kMatmul, Kind::kMatmul,
                                       Kind::kMatmul, Kind::kPut, Kind::kMatmul));
  EXPECT_EQ(plan.instructions[4].matmul.in.step, 2);
  EXPECT_EQ(plan.instructions[4].matmul.x, run.normed.data());
}

TEST(Dependencies, ExchangesAreUsedAgainOnlyWhenNobodyReadsThem) {
  Captured run;
  run.embed();
  for (int i = 0; i < 4; ++i) run.layer();
  DecodeKernelPlan plan = resolve_dependencies(run.ops);
  EXPECT_GE(plan.exchange_words, size_t{kQkv});
  std::vector<uint2> memory(kExchanges * plan.exchange_words);
  place_exchanges(plan, memory.data());
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& in = plan.instructions[i];
    if (in.kind != Kind::kMatmul) continue;
    const Exchange& from = in.matmul.in;
    EXPECT_EQ(from.step, static_cast<int>(i) - 1);
    EXPECT_EQ(from.words, memory.data() + from.step % kExchanges * plan.exchange_words);
  }
}

}  // namespace
}  // namespace sluice::cuda::dependencies_test
