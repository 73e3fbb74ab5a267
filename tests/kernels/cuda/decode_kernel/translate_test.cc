// Tests which instructions of the persistent decode kernel captured ops become, and which ops are launched by
// themselves. Needs no device: nothing reads the memory of the tensors.
#include "kernels/cuda/decode_kernel/translate.h"

#include <gmock/gmock.h>

#include <string>

#include "kernels/cuda/decode_kernel/builder.h"
#include "quant/all.h"

namespace sluice::cuda::translate_test {
namespace {

using Kind = Instruction::Kind;
using testing::ElementsAre;

constexpr int kRows = 2, kHidden = 256, kInner = 384, kHeads = 8, kKvHeads = 2, kDim = 64, kBlock = 16;
constexpr int kQueryColumns = kHeads * kDim, kKeyColumns = kKvHeads * kDim;
constexpr int kQkv = kQueryColumns + 2 * kKeyColumns;
constexpr int kExperts = 16, kChoices = 4, kExpertInner = 128, kEntries = kRows * kChoices;
constexpr size_t kRoom = 2048;

// The ops of a decode step, as backend.cc records them. Addresses are made up.
class Step {
  uintptr_t next_ = 0;  // the tensors below take their addresses from it

 public:
  std::vector<CapturedOp> ops;
  std::string launched;  // the names of the ops that were launched by themselves
  PeerMemory peers;

  Tensor rows(int columns, int count = kRows) { return {address(), &kFloat32, {count, columns}}; }
  Tensor ints(int count) { return {address(), &kInt32, {count}}; }
  Tensor x = rows(kHidden), normed = rows(kHidden), qkv = rows(kQkv), mixed = rows(kQueryColumns),
         gate_up = rows(2 * kInner), gated = rows(kInner), part = rows(kHidden);

  CapturedOp& add(char name, OpDescription description) {
    ops.push_back({.description = std::move(description), .launch = [this, name](const Launch&) { launched += name; }});
    return ops.back();
  }
  void unknown() { add('?', {}); }
  void embed() { add('e', GatherOp{x, Tensor(address(), &kBFloat16, {100, kHidden}), ids()}); }
  void norm(const Tensor& out, const Tensor& from) { add('n', NormOp{out, from, weights(), 1e-5f, 0.0f}); }
  MatmulProblem& matmul(const Tensor& out, const Tensor& from, bool accumulate = false) {
    return std::get<MatmulProblem>(add('m', MatmulProblem{.out = out,
                                                          .x = from,
                                                          .type = &kBFloat16,
                                                          .weight = static_cast<std::byte*>(address()),
                                                          .n = out.shape[1],
                                                          .k = from.shape[1],
                                                          .accumulate = accumulate})
                                       .description);
  }
  void glu(const Tensor& out, const Tensor& from) { add('g', GluOp{out, from, {ops::Activation::kSilu, 0.0f, 0.0f}}); }
  void sum(const Tensor& out, const Tensor& from) { add('s', SumOp{&peers, out, from, true}); }

  Tensor q() const { return qkv.slice_columns(0, kQueryColumns); }
  Tensor k() const { return qkv.slice_columns(kQueryColumns, kKeyColumns); }
  Tensor v() const { return qkv.slice_columns(kQueryColumns + kKeyColumns, kKeyColumns); }
  // The norm of each head's vector in place.
  NormOp& head_norm(Tensor vectors) {
    vectors.shape = Shape{kRows, vectors.shape[1] / kDim, kDim};
    return std::get<NormOp>(add('h', NormOp{vectors, vectors, weights(), 1e-6f, 0.0f}).description);
  }
  RopeOp& rope() {
    keys_ = Tensor(address(), &kBFloat16, {100, kKvHeads, kBlock, kDim});
    values_ = Tensor(address(), &kBFloat16, {100, kKvHeads, kBlock, kDim});
    ops::RopeStoreArgs args;
    args.q = q(), args.k = k(), args.v = v(), args.cos_sin = cos_sin_, args.k_cache = keys_, args.v_cache = values_;
    return std::get<RopeOp>(add('r', RopeOp{args, positions_, slots_}).description);
  }
  AttentionOp& attention(int window = 0) {
    ops::AttentionArgs args;
    args.out = mixed, args.q = q(), args.k_cache = keys_, args.v_cache = values_, args.value_dim = kDim;
    args.block_table_stride = 8, args.heads = kHeads, args.window = window;
    const AttentionIndices at{.query_start = positions_,
                              .kv_len = positions_,
                              .block_table = slots_,
                              .sequences = kRows,
                              .decode_rows = 1,
                              .decode_keys = 100,
                              .decode_tokens = kRows};
    return std::get<AttentionOp>(add('a', AttentionOp{args, at}).description);
  }
  void mixer(bool head_norms = false) {
    norm(normed, x), matmul(qkv, normed);
    if (head_norms) head_norm(q()), head_norm(k());
    rope(), attention();
    matmul(x, mixed, true);
  }
  void layer(bool head_norms = false) {
    mixer(head_norms);
    norm(normed, x), matmul(gate_up, normed), glu(gated, gate_up), matmul(x, gated, true);
  }
  // The six ops behind a router, and what the last one writes.
  void experts(const Tensor& out, bool accumulate = true) {
    const Tensor logits = rows(kExperts);
    matmul(logits, normed);
    const ops::RouteArgs choice{.experts = ints(kEntries),
                                .weights = rows(kChoices),
                                .logits = logits,
                                .routing = {.top_k = kChoices, .normalize = true}};
    const ops::GroupByExpertArgs order{.experts = choice.experts,
                                       .entries = ints(kEntries),
                                       .rows = ints(kEntries),
                                       .places = ints(kEntries),
                                       .starts = ints(kExperts + 1)};
    const Tensor in = rows(2 * kExpertInner, kEntries), inner = rows(kExpertInner, kEntries);
    const Tensor chosen = rows(kHidden, kEntries);
    Tensor each_x = normed;
    each_x.shape = Shape{kEntries, kHidden};
    add('o', choice), add('b', order);
    expert_matmul(in, each_x, order).x_rows = order.rows.as<const int32_t>();
    glu(inner, in);
    expert_matmul(chosen, inner, order);
    add('c', ops::CombineArgs{
                 .out = out, .x = chosen, .weights = choice.weights, .places = order.places, .accumulate = accumulate});
  }

  DecodeRun run(size_t from = 0, size_t room = kRoom) const {
    return translate(std::span(ops).subspan(from), launch(), room);
  }
  static Launch launch() {
    Launch l;
    l.sm_count = 132, l.compute_capability = 90, l.workspace_bytes = size_t{96} << 20;
    return l;
  }
  // The names of the ops that a builder launches, if no run is worth a kernel.
  std::string flush() {
    const Launch l = launch();
    DecodeKernelBuilder builder(l);
    for (const CapturedOp& op : ops) builder.record(op);
    builder.flush();
    return launched;
  }

 private:
  void* address() { return reinterpret_cast<void*>(next_ += size_t{1} << 20); }
  const float* weights() { return static_cast<const float*>(address()); }
  const int32_t* ids() { return static_cast<const int32_t*>(address()); }
  MatmulProblem& expert_matmul(const Tensor& out, const Tensor& from, const ops::GroupByExpertArgs& order) {
    MatmulProblem& p = matmul(out, from);
    p.matrices = kExperts, p.weight_rows = p.bias_step = p.n, p.starts = order.starts.as<const int32_t>();
    return p;
  }

  Tensor cos_sin_ = Tensor(address(), &kFloat32, {100, kDim}), keys_, values_;
  const int32_t *positions_ = ids(), *slots_ = ids();
};

std::vector<Kind> kinds(const DecodeRun& run) {
  std::vector<Kind> all;
  for (const Instruction& in : run.instructions) all.push_back(in.kind);
  return all;
}

TEST(Translate, ALayerWithAGatedUnit) {
  Step step;
  step.embed();
  step.layer(), step.layer();
  const DecodeRun run = step.run();
  EXPECT_EQ(run.ops, step.ops.size());
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kGather, Kind::kNorm, Kind::kMatmul, Kind::kAttention, Kind::kMatmul,
                                      Kind::kNorm, Kind::kMatmul, Kind::kMatmul, Kind::kNorm, Kind::kMatmul,
                                      Kind::kAttention, Kind::kMatmul, Kind::kNorm, Kind::kMatmul, Kind::kMatmul));
  EXPECT_EQ(run.matmuls, 8);
  EXPECT_EQ(run.types.plain, &kBFloat16);
  EXPECT_EQ(run.types.quantized, nullptr);
  const MatmulInstruction &gate = run.instructions[6].matmul, &down = run.instructions[7].matmul;
  EXPECT_EQ(gate.out, step.gate_up.f32());
  EXPECT_EQ(gate.gated, step.gated.f32());
  EXPECT_EQ(down.x, step.gated.f32());
  EXPECT_EQ(down.gated, nullptr);
  EXPECT_TRUE(down.accumulate);
  const AttentionInstruction &a = run.instructions[3].attention, &b = run.instructions[10].attention;
  EXPECT_EQ(a.rotation.q, step.qkv.f32());
  EXPECT_EQ(a.norms.q_weight, nullptr);
  EXPECT_EQ(a.place, 0);
  EXPECT_EQ(b.place, 0) << "both see the same positions";
}

TEST(Translate, NormsOfHeadsAreAPartOfTheAttention) {
  Step step;
  step.layer(true);
  const DecodeRun run = step.run();
  EXPECT_EQ(run.ops, step.ops.size());
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kNorm, Kind::kMatmul, Kind::kAttention, Kind::kMatmul, Kind::kNorm,
                                      Kind::kMatmul, Kind::kMatmul));
  const HeadNorms& norms = run.instructions[2].attention.norms;
  EXPECT_EQ(norms.q_weight, std::get<NormOp>(step.ops[2].description).weight);
  EXPECT_EQ(norms.k_weight, std::get<NormOp>(step.ops[3].description).weight);
  EXPECT_EQ(norms.eps, 1e-6f);
}

TEST(Translate, OtherNormsBeforeARotationStayInstructions) {
  Step step;
  step.matmul(step.qkv, step.normed);
  step.head_norm(step.q()), step.head_norm(step.k()).eps = 1e-3f;
  step.rope(), step.attention();
  EXPECT_THAT(kinds(step.run()), ElementsAre(Kind::kMatmul, Kind::kNorm, Kind::kNorm, Kind::kAttention));
}

TEST(Translate, ExpertsAreTwoMatmulsBehindTheirRouter) {
  Step step;
  step.mixer();
  step.norm(step.normed, step.x), step.experts(step.x);
  step.matmul(step.gate_up, step.normed), step.glu(step.gated, step.gate_up), step.matmul(step.x, step.gated, true);
  const DecodeRun run = step.run();
  EXPECT_EQ(run.ops, step.ops.size());
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kNorm, Kind::kMatmul, Kind::kAttention, Kind::kMatmul, Kind::kNorm,
                                      Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kMatmul));
  const MatmulInstruction &in = run.instructions[6].matmul, &out = run.instructions[7].matmul;
  EXPECT_EQ(run.instructions[5].matmul.experts.part, ExpertPart::kNone);
  EXPECT_EQ(in.experts.part, ExpertPart::kIn);
  EXPECT_EQ(in.experts.count, kExperts);
  EXPECT_EQ(in.rows, kRows);
  EXPECT_EQ(in.x, step.normed.f32());
  EXPECT_EQ(in.out, nullptr);
  EXPECT_EQ(in.gated_stride, kChoices * kExpertInner);
  EXPECT_EQ(out.experts.part, ExpertPart::kOut);
  EXPECT_EQ(out.experts.choice.top_k, kChoices);
  EXPECT_EQ(out.x, in.gated);
  EXPECT_EQ(out.k, kChoices * kExpertInner);
  EXPECT_EQ(out.out, step.x.f32());
  EXPECT_TRUE(out.accumulate);
  // A tensor map sees the weights of all experts.
  ASSERT_EQ(run.mapped.size(), 7u);
  EXPECT_EQ(run.mapped[3].n, 2 * kExpertInner * kExperts);
  EXPECT_EQ(run.mapped[4].n, kHidden * kExperts);
}

TEST(Translate, SumsOverRanksAreAPartOfTheirMatmul) {
  Step step;
  step.matmul(step.part, step.mixed), step.sum(step.x, step.part);
  step.norm(step.normed, step.x), step.experts(step.part, false), step.sum(step.x, step.part);
  step.norm(step.normed, step.x);
  const DecodeRun run = step.run();
  EXPECT_EQ(run.ops, step.ops.size());
  EXPECT_THAT(kinds(run),
              ElementsAre(Kind::kMatmul, Kind::kNorm, Kind::kMatmul, Kind::kMatmul, Kind::kMatmul, Kind::kNorm));
  EXPECT_EQ(run.sums, 2);
  EXPECT_EQ(run.peers, &step.peers);
  for (const auto& [at, sum] : {std::pair(0, 1), std::pair(4, 2)}) {
    const MatmulInstruction& matmul = run.instructions[at].matmul;
    EXPECT_EQ(matmul.sum, sum);
    EXPECT_EQ(matmul.out, step.x.f32()) << "nothing else reads the summands";
    EXPECT_TRUE(matmul.accumulate);
  }
}

TEST(Translate, ASumOfOthersEndsTheRun) {
  Step step;
  step.matmul(step.part, step.mixed), step.matmul(step.gated, step.mixed);
  step.sum(step.x, step.part);
  EXPECT_EQ(step.run().ops, 2u) << "its summands are not the last result";
  PeerMemory others;
  Step two;
  two.matmul(two.part, two.mixed), two.sum(two.x, two.part);
  two.matmul(two.part, two.mixed), two.add('s', SumOp{&others, two.x, two.part, true});
  EXPECT_EQ(two.run().ops, 3u) << "a launch knows one group of ranks";
}

TEST(Translate, ExpertsWithoutTheirSumAreLaunchedByThemselves) {
  Step step;
  step.norm(step.normed, step.x), step.experts(step.x);
  step.ops.pop_back();
  step.layer();
  const DecodeRun run = step.run();
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kNorm, Kind::kMatmul));
  for (size_t alone = run.ops; alone < run.ops + 3; ++alone) EXPECT_EQ(step.run(alone).ops, 0u) << alone;
  EXPECT_EQ(step.run(run.ops + 5).ops, 9u) << "the layer behind them";
}

TEST(Translate, ExpertsInGroupsAreLaunchedByThemselves) {
  Step step;
  step.norm(step.normed, step.x), step.experts(step.x);
  std::get<ops::RouteArgs>(step.ops[2].description).routing.groups = 4;
  EXPECT_EQ(step.run().ops, 2u);
}

// The kernel for int4 has no code for experts, even for those in bf16.
TEST(Translate, ExpertsAndInt4AreNotInOneRun) {
  Step after, before;
  after.norm(after.normed, after.x), after.experts(after.x);
  after.matmul(after.x, after.mixed, true).type = &quant::Int4G128::kType;
  EXPECT_EQ(after.run().ops, 8u);
  before.matmul(before.x, before.mixed, true).type = &quant::Int4G128::kType;
  before.experts(before.x);
  EXPECT_EQ(before.run().ops, 2u);
}

TEST(Translate, AGateOfAnotherTensorIsAnInstructionOfItsOwn) {
  Step step;
  step.matmul(step.gate_up, step.normed);
  step.glu(step.gated, step.rows(2 * kInner));
  const DecodeRun run = step.run();
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kMatmul, Kind::kGlu));
  EXPECT_EQ(run.instructions[0].matmul.gated, nullptr);
}

TEST(Translate, AttentionWithoutItsRotationEndsTheRun) {
  Step step;
  step.matmul(step.qkv, step.normed);
  step.rope().args.q = step.mixed;
  step.attention();
  const DecodeRun run = step.run();
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kMatmul, Kind::kRope));
  EXPECT_EQ(run.ops, 2u);
}

// The attention does not store rotated queries. Gates beside them, in the same rows, may be read later.
TEST(Translate, ARotationWhoseQueriesAreReadLaterStaysAnOp) {
  Step twice, gate, next_layer;
  twice.norm(twice.normed, twice.x), twice.matmul(twice.qkv, twice.normed), twice.rope(), twice.attention();
  twice.attention(4);
  EXPECT_THAT(kinds(twice.run()), ElementsAre(Kind::kNorm, Kind::kMatmul, Kind::kRope));
  gate.rope(), gate.attention(), gate.matmul(gate.x, gate.q());
  EXPECT_THAT(kinds(gate.run()), ElementsAre(Kind::kRope));
  next_layer.rope(), next_layer.attention(), next_layer.norm(next_layer.normed, next_layer.v());
  next_layer.matmul(next_layer.qkv, next_layer.normed), next_layer.rope(), next_layer.attention();
  EXPECT_THAT(kinds(next_layer.run()), ElementsAre(Kind::kAttention, Kind::kNorm, Kind::kMatmul, Kind::kAttention));
}

TEST(Translate, AttentionThatLeavesOutTheFirstPositionsEndsTheRun) {
  Step step;
  step.mixer();
  for (CapturedOp& op : step.ops) {
    if (auto* attention = std::get_if<AttentionOp>(&op.description)) attention->args.first = 1;
  }
  EXPECT_THAT(kinds(step.run()), ElementsAre(Kind::kNorm, Kind::kMatmul, Kind::kRope));
}

TEST(Translate, ALaunchKnowsTwoKindsOfPositions) {
  Step step;
  for (const int window : {0, 64, 0, 128, 0}) step.matmul(step.qkv, step.normed), step.rope(), step.attention(window);
  const DecodeRun run = step.run();
  EXPECT_THAT(kinds(run), ElementsAre(Kind::kMatmul, Kind::kAttention, Kind::kMatmul, Kind::kAttention, Kind::kMatmul,
                                      Kind::kAttention, Kind::kMatmul, Kind::kRope));
  EXPECT_EQ(run.instructions[3].attention.place, 1);
  EXPECT_EQ(run.instructions[5].attention.place, 0);
}

TEST(Translate, AnOpThatTheKernelDoesNotKnowEndsTheRun) {
  Step step;
  step.matmul(step.gate_up, step.normed), step.unknown(), step.glu(step.gated, step.gate_up);
  EXPECT_EQ(step.run().ops, 1u);
  EXPECT_EQ(step.run(1).ops, 0u);
  EXPECT_THAT(kinds(step.run(2)), ElementsAre(Kind::kGlu));
}

TEST(Translate, AnotherQuantizedTypeEndsTheRun) {
  Step step;
  step.matmul(step.x, step.mixed).type = &quant::Fp8::kType;
  step.matmul(step.x, step.gated);
  step.matmul(step.x, step.mixed).type = &quant::Int4G128::kType;
  const DecodeRun run = step.run();
  EXPECT_EQ(run.ops, 2u);
  EXPECT_EQ(run.types.plain, &kBFloat16);
  EXPECT_EQ(run.types.quantized, &quant::Fp8::kType);
  EXPECT_EQ(run.mapped.size(), 2u);
  const DecodeRun panels = step.run(2);
  EXPECT_EQ(panels.ops, 1u);
  EXPECT_NE(panels.instructions[0].matmul.panels, nullptr);
  EXPECT_TRUE(panels.mapped.empty());
}

TEST(Translate, ManyRowsAreLaunchedByThemselves) {
  Step step;
  step.norm(step.rows(kHidden, 5), step.rows(kHidden, 5));
  step.matmul(step.rows(kHidden, 5), step.rows(kHidden, 5));
  EXPECT_EQ(step.run().ops, 0u);
  EXPECT_EQ(step.run(1).ops, 0u);
}

TEST(Translate, ARunHasNoMoreInstructionsThanThereIsRoomFor) {
  Step step;
  for (int i = 0; i < 9; ++i) step.norm(step.normed, step.x);
  EXPECT_EQ(step.run(0, 7).ops, 7u);
  EXPECT_EQ(step.run(0, 0).ops, 0u);
  Step experts;
  experts.experts(experts.x);
  EXPECT_EQ(experts.run(0, 2).ops, 1u) << "experts take two instructions besides the router";
  EXPECT_EQ(experts.run(0, 3).ops, 7u);
}

TEST(Builder, RunsOfOneMatmulAreLaunchedOpByOp) {
  Step step;
  step.norm(step.normed, step.x), step.matmul(step.gate_up, step.normed), step.unknown();
  step.glu(step.gated, step.gate_up), step.unknown(), step.unknown(), step.matmul(step.x, step.gated, true);
  EXPECT_EQ(step.flush(), "nm?g??m");
}

TEST(Builder, OpsThatOneKernelComputesAreLaunchedTogether) {
  for (const bool supported : {true, false}) {
    Step step;
    step.unknown();
    CapturedOp& first = step.add('s', SumOp{&step.peers, step.x, step.part, true});
    first.fused_ops = 2;
    first.launch_fused = [&](const Launch&) {
      if (supported) step.launched += 'f';
      return supported;
    };
    step.norm(step.normed, step.x), step.matmul(step.gate_up, step.normed);
    EXPECT_EQ(step.flush(), supported ? "?fm" : "?snm");
  }
}

}  // namespace
}  // namespace sluice::cuda::translate_test
