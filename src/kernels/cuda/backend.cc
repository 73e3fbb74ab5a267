// Adapts the launch functions to the op table and registers three backends. In "cuda", matmuls and attention run on the
// tensor cores, and the number of rows selects the kernel. The others are batch-invariant, that is, a row's bits depend
// on its own data only. "cuda-invariant" has kernels for the tensor cores that add in a fixed order, and computes in
// fp32 what they do not take. "cuda-exact" computes everything in fp32.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/registry.h"
#include "kernels/cuda/attention/splits.h"
#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/collectives/sums_begun.h"
#include "kernels/cuda/compression.h"
#include "kernels/cuda/copy_rows.h"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul/chain.h"
#include "kernels/cuda/matmul/dense.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/matmul/rows.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/upload.h"
#include "ops/gated_matmul.h"
#include "ops/lora_matmul.h"
#include "ops/sample.h"

namespace sluice::cuda {
namespace {

// The kernels of a backend: the fastest; those for the tensor cores whose sums have a fixed order, and exact ones for
// the rest; or exact ones.
enum class Kernels { kFast, kInvariant, kExact };

constexpr Arithmetic arithmetic(Kernels kernels) {
  return kernels == Kernels::kFast ? Arithmetic::kTensor : Arithmetic::kExact;
}

// The numbers of rows from which matmuls with plain weights use the kernels for many rows instead of the streaming
// kernels. From these numbers on they were more than 3 % faster on an H200 (bench/results/2026-11-cuda-kernels.md).
// kDenseRowsLarge is for matrices of more than kLargeMatrix elements in 16 bits, with matmul/rows.cu; other devices use
// cuBLASLt there, from kLibraryRowsLarge. kDenseRowsSmall is for all other matrices.
constexpr int64_t kDenseRowsLarge = 5, kLibraryRowsLarge = 8, kDenseRowsSmall = 32, kLargeMatrix = int64_t{4096} * 4096;

// The same limit for per-head matrices, which cuBLASLt multiplies as a batch.
constexpr int64_t kDenseRowsOfHeads = 16;

// The fewest rows for which gated units are faster in the matmul than behind it: of all experts or of one matrix, and
// of an expert on average.
constexpr int64_t kGatedRows = 1024, kGatedExpertRows = 8;

int64_t dense_rows(const Launch& l, DType type, int64_t elements) {
  if (type == &kFloat32) return kMostStreamedRows + 1;
  if (elements <= kLargeMatrix) return kDenseRowsSmall;
  return l.compute_capability == 90 ? kDenseRowsLarge : kLibraryRowsLarge;
}

// Returns the Launch for an op that the decode kernel does not know; the recorded ops are launched first.
const Launch& launch(ops::Queue& queue) {
  Queue& own = current(queue);
  if (DecodeKernelBuilder* builder = own.builder()) builder->flush();
  return own.launch();
}
const int32_t* on_device(ops::Queue& queue, const Indices& indices) { return current(queue).on_device(indices); }

// The op of a slot whose launch function takes the same arguments.
template <auto Function, class Op>
struct PlainOp;
template <auto Function, class... Args>
struct PlainOp<Function, void(ops::Queue&, Args...)> {
  static void call(ops::Queue& queue, Args... args) {
    Function(launch(queue), args...);
    current(queue).finish_op();
  }
};

template <class F>
void finish(ops::Queue& queue, F&& body) {
  body(launch(queue));
  current(queue).finish_op();
}

// Launches an op that the persistent decode kernel may execute. While a graph is captured, records it instead.
template <class F>
void launch_or_record(ops::Queue& queue, OpDescription description, F&& body) {
  Queue& own = current(queue);
  if (DecodeKernelBuilder* builder = own.builder()) {
    return builder->record({.description = std::move(description), .launch = std::forward<F>(body)});
  }
  body(own.launch());
  own.finish_op();
}

// The same for an op whose sums that kernel adds in another order.
template <Kernels kernels, class F>
void launch_or_record(ops::Queue& queue, const OpDescription& description, F&& body) {
  if (kernels == Kernels::kFast) return launch_or_record(queue, description, std::forward<F>(body));
  finish(queue, body);
}

void embed_op(ops::Queue& queue, Tensor out, const Tensor& table, Indices ids) {
  const int32_t* at = on_device(queue, ids);
  launch_or_record(queue, GatherOp{out, table, at}, [=](const Launch& l) { embed(l, out, table, at); });
}

void gather_rows_op(ops::Queue& queue, Tensor out, Tensor x, Indices rows) {
  const int32_t* at = on_device(queue, rows);
  launch_or_record(queue, GatherOp{out, x, at}, [=](const Launch& l) { gather_rows(l, out, x, at); });
}

void rms_norm_op(ops::Queue& queue, Tensor out, Tensor x, const float* weight, float eps, float offset) {
  launch_or_record(queue, NormOp{out, x, weight, eps, offset},
                   [=](const Launch& l) { rms_norm(l, out, x, weight, eps, offset); });
}

void glu_op(ops::Queue& queue, Tensor out, Tensor gate_up, ops::Activation activation) {
  launch_or_record(queue, GluOp{out, gate_up, {activation, 0.0f, 0.0f}},
                   [=](const Launch& l) { glu(l, out, gate_up, activation); });
}

void clamped_glu_op(ops::Queue& queue, Tensor out, Tensor gate_up, float alpha, float limit) {
  launch_or_record(queue, GluOp{out, gate_up, {ops::Activation::kSilu, alpha, limit}},
                   [=](const Launch& l) { clamped_glu(l, out, gate_up, alpha, limit); });
}

template <Kernels kernels, auto run, class Args>
void lora_op(ops::Queue& queue, const Args& args) {
  finish(queue, [&](const Launch& l) { run(l, args, on_device(queue, args.slots), arithmetic(kernels)); });
}

void matrix_slots_op(ops::Queue& queue, const ops::MatrixSlotsArgs& args) {
  finish(queue, [&](const Launch& l) { matrix_slots(l, args, on_device(queue, args.slots)); });
}

// The op of a slot between ranks, whose function takes the memory of all ranks in place of the communicator.
template <auto Function, class... Args>
void rank_op(ops::Queue& queue, Communicator& ranks, Args... args) {
  const Launch& l = launch(queue);
  Function(l, current(queue).peers(ranks), args...);
  current(queue).finish_op();
}

CapturedOp captured_sum(const PeerMemory& peers, const Tensor& out, const Tensor& x, bool accumulate) {
  return {.description = SumOp{&peers, out, x, accumulate},
          .launch = [=, &peers](const Launch& l) { all_reduce(l, peers, out, x, accumulate); }};
}

CapturedOp captured_norm(const Tensor& x, const ops::RowNorm& norm) {
  if (norm.centred) {
    const auto launch = [=](const Launch& l) { layer_norm(l, norm.out, x, norm.weight, norm.bias, norm.eps); };
    return {.description = std::monostate(), .launch = launch};
  }
  const auto launch = [=](const Launch& l) { rms_norm(l, norm.out, x, norm.weight, norm.eps, 0.0f); };
  return {.description = NormOp{norm.out, x, norm.weight, norm.eps, 0.0f}, .launch = launch};
}

// The sums that have begun if x is the next one of them, else null.
SumsBegun* awaiting(ops::Queue& queue, Communicator& ranks, const Tensor& x) {
  SumsBegun* begun = current(queue).sums_begun(ranks);
  return begun != nullptr && begun->awaits(x) ? begun : nullptr;
}

void all_reduce_op(ops::Queue& queue, Communicator& ranks, Tensor out, Tensor x, bool accumulate) {
  const PeerMemory& peers = current(queue).peers(ranks);
  if (SumsBegun* begun = awaiting(queue, ranks, x)) {
    begun->finish(launch(queue), out, x, accumulate);
    return current(queue).finish_op();
  }
  const CapturedOp sum = captured_sum(peers, out, x, accumulate);
  launch_or_record(queue, sum.description, sum.launch);
}

// The decode kernel has the sum and the norm as ops of their own.
bool all_reduce_norm_op(ops::Queue& queue, Communicator& ranks, const Tensor& out, const Tensor& x, bool accumulate,
                        const ops::RowNorm& norm) {
  Queue& own = current(queue);
  const PeerMemory& peers = own.peers(ranks);
  if (SumsBegun* begun = awaiting(queue, ranks, x)) {
    if (!begun->finish(launch(queue), out, x, accumulate, norm)) return false;
    own.finish_op();
    return true;
  }
  const auto fused = [=, &peers](const Launch& l) { return all_reduce_one_shot(l, peers, out, x, accumulate, norm); };
  if (DecodeKernelBuilder* builder = own.builder()) {
    CapturedOp sum = captured_sum(peers, out, x, accumulate);
    sum.fused_ops = 2, sum.launch_fused = fused;
    builder->record(std::move(sum)), builder->record(captured_norm(out, norm));
    return true;
  }
  if (!fused(own.launch())) return false;
  own.finish_op();
  return true;
}

void begin_sum_op(ops::Queue& queue, Communicator& ranks, const Tensor& x) {
  SumsBegun* begun = current(queue).sums_begun(ranks);
  // A run that does not begin is summed when it is called. All ranks decide alike.
  if (begun == nullptr || current(queue).launch().captured || x.bytes() > kLandingBytes || !x.dense()) return;
  begun->begin(launch(queue), x);
}

// Whether no pair reads a row that a pair writes.
bool rows_apart(const Indices& pairs) {
  std::vector<int32_t> written;
  for (size_t i = 1; i < pairs.size(); i += 2) written.push_back(pairs[i]);
  std::ranges::sort(written);
  for (size_t i = 0; i < pairs.size(); i += 2) {
    if (std::ranges::binary_search(written, pairs[i])) return false;
  }
  return true;
}

void copy_rows_op(ops::Queue& queue, Tensor to, Tensor from, Indices pairs) {
  const auto copy = to.data == from.data && rows_apart(pairs) ? copy_rows_apart : copy_rows;
  finish(queue, [&](const Launch& l) { copy(l, to, from, on_device(queue, pairs), pairs.size() / 2); });
}

// The decode kernel has the norms of heads and the rotation as ops of their own.
void record_rope(DecodeKernelBuilder& builder, const ops::RopeStoreArgs& args, const int32_t* positions,
                 const int32_t* slots) {
  std::vector<CapturedOp> all;
  each_head_norm(args, [&](const Tensor& x, const ops::HeadNorm& norm) {
    all.push_back(captured_norm(x, {.out = x, .weight = norm.weight, .eps = norm.eps}));
  });
  ops::RopeStoreArgs normed = args;
  normed.q_norm = normed.k_norm = {};
  all.push_back({.description = RopeOp{normed, positions, slots},
                 .launch = [=](const Launch& l) { rope_store(l, normed, positions, slots); }});
  if (all.size() > 1) {
    all[0].fused_ops = all.size();
    all[0].launch_fused = [=](const Launch& l) {
      rope_store(l, args, positions, slots);
      return true;
    };
  }
  for (CapturedOp& op : all) builder.record(std::move(op));
}

void rope_store_op(ops::Queue& queue, const ops::RopeStoreArgs& args) {
  const int32_t *positions = on_device(queue, args.positions), *slots = on_device(queue, args.slots);
  if (DecodeKernelBuilder* builder = current(queue).builder()) return record_rope(*builder, args, positions, slots);
  finish(queue, [&](const Launch& l) { rope_store(l, args, positions, slots); });
}

template <Kernels kernels>
void attention_op(ops::Queue& queue, const ops::AttentionArgs& args) {
  AttentionIndices at{.query_start = on_device(queue, args.query_start),
                      .kv_len = on_device(queue, args.kv_len),
                      .block_table = on_device(queue, args.block_table),
                      .sequences = static_cast<int>(args.kv_len.size())};
  if (args.selected.data != nullptr) {
    return finish(queue, [&](const Launch& l) { attention_selected(l, args, at, arithmetic(kernels)); });
  }
  const int group = args.heads / static_cast<int>(args.k_cache.shape[1]);
  const ops::KeyShare& share = args.share;
  for (size_t s = 0; s < args.kv_len.size(); ++s) {
    const int keys = share.whole() ? args.kv_len[s] : static_cast<int>(share.count(args.kv_len[s]));
    at.count(args.query_start[s + 1] - args.query_start[s], keys, group);
  }
  launch_or_record<kernels>(queue, AttentionOp{args, at}, [=](const Launch& l) {
    if (kernels == Kernels::kFast && attention_tensor(l, args, at)) return;
    if (kernels == Kernels::kInvariant && attention_by_splits(l, args, at)) return;
    attention_exact(l, args, at);
  });
}

template <Kernels kernels>
void select_entries_op(ops::Queue& queue, const ops::SelectEntriesArgs& args) {
  finish(queue, [&](const Launch& l) { select_entries(l, args, arithmetic(kernels)); });
}

template <Kernels kernels>
void entry_attention_op(ops::Queue& queue, const ops::EntryAttentionArgs& args) {
  finish(queue, [&](const Launch& l) { entry_attention(l, args, arithmetic(kernels)); });
}

void feed_sampled_op(ops::Queue& queue, const ops::FeedSampledArgs& args) {
  finish(queue, [&](const Launch& l) { feed_sampled(l, args, on_device(queue, args.from)); });
}

void pooling_op(ops::Queue& queue, const ops::PoolingArgs& args) {
  finish(queue, [&](const Launch& l) { pooling(l, args, on_device(queue, args.query_start)); });
}

template <Kernels kernels>
void matmul_by(const Launch& l, const MatmulProblem& p) {
  if (matmul_quantized(l, p, arithmetic(kernels))) return;
  if (kernels == Kernels::kInvariant && matmul_by_chains(l, p)) return;
  const bool tensor = kernels == Kernels::kFast;
  if (tensor && p.matrices == 1 && p.x.rows() >= dense_rows(l, p.type, p.n * p.k)) {
    if (p.type != &kFloat32 && matmul_plain_rows(l, p)) return;
    if (matmul_dense(l, p)) return;
  }
  const bool heads = tensor && p.matrices > 1 && p.starts == nullptr && p.type != &kFloat32;
  if (heads && p.x.rows() >= kDenseRowsOfHeads && matmul_dense_heads(l, p)) return;
  if (tensor && p.starts != nullptr && p.type != &kFloat32) {
    if (2 * p.x.rows() >= p.matrices && matmul_plain_rows(l, p)) return;
    if (p.x.rows() >= kTiledExpertRows * p.matrices && matmul_plain_by_tiles(l, p)) return;
  }
  if (tensor && p.type != &kFloat32) return matmul_streamed(l, p);
  matmul_exact(l, p);
}

MatmulProblem problem_of(const ops::MatmulArgs& args) {
  return {.out = args.out,
          .x = args.x,
          .type = args.weight->dtype,
          .weight = args.weight->data,
          .n = args.weight->n,
          .k = args.weight->k,
          .bias = args.bias,
          .accumulate = args.accumulate,
          .rounding = args.weight->inputs};
}

template <Kernels kernels>
void matmul_op(ops::Queue& queue, const ops::MatmulArgs& args) {
  const MatmulProblem p = problem_of(args);
  launch_or_record<kernels>(queue, p, [=](const Launch& l) { matmul_by<kernels>(l, p); });
}

bool lora_matmul_op(ops::Queue& queue, const ops::MatmulArgs& args, const ops::LoraShrinkArgs& change) {
  const MatmulProblem p = problem_of(args);
  const Launch& l = launch(queue);
  if (p.x.rows() < dense_rows(l, p.type, p.n * p.k)) return false;
  if (!matmul_lora_rows(l, p, change, on_device(queue, change.slots))) return false;
  current(queue).finish_op();
  return true;
}

// Whether a matmul of so many rows computes gated units itself. `experts`: 0 for a single matrix.
bool gates(const ops::Queue& queue, ops::Activation activation, int64_t rows, int64_t experts) {
  const Launch& l = static_cast<const Queue&>(queue).launch();
  return l.compute_capability == 90 && activation == ops::Activation::kSilu &&
         rows >= std::max(kGatedRows, kGatedExpertRows * experts);
}

bool gated_matmul_op(ops::Queue& queue, const ops::MatmulArgs& args, ops::Activation activation) {
  if (!gates(queue, activation, args.x.rows(), 0) || !matmul_gated(launch(queue), problem_of(args))) return false;
  current(queue).finish_op();
  return true;
}

void route_op(ops::Queue& queue, const ops::RouteArgs& args) {
  launch_or_record(queue, args, [=](const Launch& l) { route(l, args); });
}
void choose_physical_op(ops::Queue& queue, const ops::PhysicalExpertsArgs& args) {
  finish(queue, [&](const Launch& l) { choose_physical(l, args); });
}
void group_by_expert_op(ops::Queue& queue, const ops::GroupByExpertArgs& args) {
  launch_or_record(queue, args, [=](const Launch& l) { group_by_expert(l, args); });
}
void combine_op(ops::Queue& queue, const ops::CombineArgs& args) {
  launch_or_record(queue, args, [=](const Launch& l) { combine(l, args); });
}

// The type that norms and gates write instead of fp32 before a cuBLASLt matmul, see ops::input_type.
DType input_type(const ops::Queue& queue, const ops::Weight& weight, int64_t rows) {
  const auto& own = static_cast<const Queue&>(queue);
  if (own.builder() != nullptr && rows <= kMostDecodeKernelRows) return &kFloat32;  // the decode kernel passes on fp32
  const bool fp8 = weight.dtype == &quant::Fp8::kType;
  const bool rounds = fp8 ? weight.inputs == ops::InputRounding::kFp8PerRow
                          : rows >= dense_rows(own.launch(), weight.dtype, weight.n * weight.k);
  const DType type = fp8 ? &kFloat8E4M3 : weight.dtype;
  return rounds && dense_possible(own.launch(), weight, rows, type, &kFloat32) ? type : &kFloat32;
}

DType output_type(const ops::Queue& queue, const ops::Weight& weight, int64_t rows) {
  if (weight.dtype != &kBFloat16 && weight.dtype != &quant::Fp8::kType) return &kFloat32;
  const auto& own = static_cast<const Queue&>(queue);
  const DType input = input_type(queue, weight, rows);
  return input != &kFloat32 && dense_possible(own.launch(), weight, rows, input, &kBFloat16) ? &kBFloat16 : &kFloat32;
}

// The same for chains, whatever the number of rows (matmul/chain.h).
DType chain_input_type(const ops::Queue& queue, const ops::Weight& weight, int64_t /*rows*/) {
  const Launch& l = static_cast<const Queue&>(queue).launch();
  return has_chains(l, weight.dtype) && weight.k % kSliceElements == 0 ? weight.dtype : &kFloat32;
}

DType chain_output_type(const ops::Queue& queue, const ops::Weight& weight, int64_t /*rows*/) {
  const Launch& l = static_cast<const Queue&>(queue).launch();
  constexpr int64_t kWholeQuads = 8;  // outputs whose halves other ops read four at a time
  return weight.dtype == &kBFloat16 && has_chains(l, weight.dtype) && weight.n % kWholeQuads == 0 ? &kBFloat16
                                                                                                  : &kFloat32;
}

// `n`: the outputs of an expert.
MatmulProblem problem_of(const ops::ExpertMatmulArgs& args, int64_t n) {
  const bool gathers = args.rows.data != nullptr;
  Tensor x = args.x;
  x.shape = Shape{args.out.rows(), args.weight->k};
  return {.out = args.out,
          .x = x,
          .type = args.weight->dtype,
          .weight = args.weight->data,
          .n = n,
          .k = args.weight->k,
          .bias = args.bias,
          .matrices = static_cast<int>(args.starts.shape.elements()) - 1,
          .weight_rows = ops::stacked_outputs(n),
          .bias_step = n,
          .starts = args.starts.as<const int32_t>(),
          .x_rows = gathers ? args.rows.as<const int32_t>() : nullptr,
          .rounding = args.weight->inputs};
}

// Kernels that read 16-bit inputs need whole K-slices, and write four results at a time.
bool gates_experts(const ops::Queue& queue, const ops::GatedExperts& sizes, ops::Activation activation) {
  return gates(queue, activation, sizes.places, sizes.experts) && sizes.units % kSliceElements == 0 &&
         sizes.next_n % 4 == 0;
}
bool takes_gated_experts_op(const ops::Queue& queue, const ops::GatedExperts& sizes, ops::Activation activation) {
  return gates_experts(queue, sizes, activation) && sizes.k % kSliceElements == 0;
}

bool gated_experts_op(ops::Queue& queue, const ops::ExpertMatmulArgs& args, ops::Activation activation,
                      int64_t next_n) {
  const ops::GatedExperts sizes{.experts = args.starts.shape.elements() - 1,
                                .places = args.out.rows(),
                                .units = args.out.shape[1],
                                .k = args.weight->k,
                                .next_n = next_n};
  if (!gates_experts(queue, sizes, activation)) return false;
  if (!matmul_gated(launch(queue), problem_of(args, 2 * sizes.units))) return false;
  current(queue).finish_op();
  return true;
}

template <Kernels kernels>
void expert_matmul_op(ops::Queue& queue, const ops::MatmulKernels&, const ops::ExpertMatmulArgs& args) {
  const MatmulProblem p = problem_of(args, args.out.shape[1]);
  launch_or_record<kernels>(queue, p, [=](const Launch& l) { matmul_by<kernels>(l, p); });
}

template <Kernels kernels>
void head_matmul_op(ops::Queue& queue, const ops::MatmulKernels&, const ops::HeadMatmulArgs& args) {
  finish(queue, [&](const Launch& l) {
    matmul_by<kernels>(l, {.out = args.out,
                           .x = args.x,
                           .type = args.weight->dtype,
                           .weight = args.weight->data,
                           .n = args.n,
                           .k = args.weight->k,
                           .matrices = args.heads,
                           .weight_rows = ops::stacked_outputs(args.n),
                           .x_columns = args.x_stride,
                           .out_columns = args.out_stride});
  });
}

template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(n * padded_k(k)) * Type.block_bytes;
}

// Packs rows: copies them if the types are equal, otherwise converts them. The padding stays zero.
template <const TypeInfo& Type>
void pack(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) {
  CHECK(from.shape.rank() == 2 && from.shape[1] == into.k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, into.k);
  const auto columns = static_cast<size_t>(into.k), row_bytes = columns * Type.block_bytes;
  const size_t pitch = packed_bytes<Type>(1, into.k);
  const size_t source_bytes =
      static_cast<size_t>(from.row_stride) / from.dtype->block_size * static_cast<size_t>(from.dtype->block_bytes);
  const bool as_they_are = from.dtype == &Type && from.dense();
  upload_rows(queue, into.data + static_cast<size_t>(row) * pitch, pitch, row_bytes, from.rows(),
              [&](int64_t begin, int64_t end, std::byte* to) {
                const std::byte* source = from.data + static_cast<size_t>(begin) * source_bytes;
                const auto count = static_cast<size_t>(end - begin);
                if (as_they_are) {
                  std::copy_n(source, count * row_bytes, to);
                  return;
                }
                std::vector<float> values(from.dtype == &Type ? 0 : columns);
                for (size_t i = 0; i < count; ++i, source += source_bytes, to += row_bytes) {
                  if (from.dtype == &Type) {
                    std::copy_n(source, row_bytes, to);
                    continue;
                  }
                  to_float(from.dtype, source, values.data(), columns);
                  from_float(&Type, values.data(), to, columns);
                }
              });
}

template <Kernels kernels, const TypeInfo& Type>
constexpr ops::MatmulKernels kMatmul{
    .packed_bytes = packed_bytes<Type>, .pack = pack<Type>, .matmul = matmul_op<kernels>};

// Sets the input and output types of matmuls whose kernels round their inputs anyway.
template <Kernels kernels>
void add_rounded_types(std::map<DType, ops::MatmulKernels>& all) {
  const auto add = [&](DType type, auto input, auto output) {
    all.at(type).input_type = input, all.at(type).output_type = output;
  };
  if (kernels == Kernels::kFast) {
    for (DType type : {&kBFloat16, &kFloat16, &quant::Fp8::kType}) add(type, input_type, output_type);
  } else if (kernels == Kernels::kInvariant) {
    for (DType type : {&kBFloat16, &kFloat16}) add(type, chain_input_type, chain_output_type);
  }
}

// A panel's rows are packed into the bits that are zero.
void clear_panels(ops::Queue& queue, const ops::Weight& into, int64_t row, int64_t rows) {
  CHECK(row % kPanelOutputs == 0 && rows % kPanelOutputs == 0, "{} rows from {}", rows, row);
  const auto bytes = static_cast<size_t>(panel_kernels(into.dtype)->panel_bytes(into.k));
  const auto first = static_cast<size_t>(row / kPanelOutputs), count = static_cast<size_t>(rows / kPanelOutputs);
  cudaStream_t stream = current(queue).launch().stream;
  check_cuda(cudaMemsetAsync(into.data + first * bytes, 0, count * bytes, stream), "weights");
}

template <Kernels kernels>
std::map<DType, ops::MatmulKernels> matmul_kernels() {
  std::map<DType, ops::MatmulKernels> all = {{&kFloat32, kMatmul<kernels, kFloat32>},
                                             {&kBFloat16, kMatmul<kernels, kBFloat16>},
                                             {&kFloat16, kMatmul<kernels, kFloat16>}};
  for (DType type : Registry<TypeInfo>::all()) {
    const PanelKernels* panels = panel_kernels(type);
    if (panels == nullptr) continue;
    all[type] = {.packed_bytes = panels->packed_bytes,
                 .pack = panels->pack,
                 .clear = clear_panels,
                 .matmul = matmul_op<kernels>};
  }
  add_rounded_types<kernels>(all);
  return all;
}

// The slots that are not plain (ops.h) have functions above.
template <Kernels kernels>
constexpr ops::OpTable op_table() {
  ops::OpTable table{.embed = embed_op,
                     .rms_norm = rms_norm_op,
                     .glu = glu_op,
                     .clamped_glu = clamped_glu_op,
                     .rope_store = rope_store_op,
                     .attention = attention_op<kernels>,
                     .select_entries = select_entries_op<kernels>,
                     .gather_rows = gather_rows_op,
                     .combine = combine_op,
                     .lora_shrink = lora_op<kernels, lora_shrink, ops::LoraShrinkArgs>,
                     .lora_expand = lora_op<kernels, lora_expand, ops::LoraExpandArgs>,
                     .copy_rows = copy_rows_op,
                     .feed_sampled = feed_sampled_op,
                     .pooling = pooling_op,
                     .route = route_op,
                     .choose_physical = choose_physical_op,
                     .group_by_expert = group_by_expert_op,
                     .expert_matmul = expert_matmul_op<kernels>,
                     .head_matmul = head_matmul_op<kernels>,
                     .matrix_slots = matrix_slots_op,
                     .all_reduce = all_reduce_op,
                     .all_gather = rank_op<all_gather, Tensor, Tensor>,
                     .all_to_all = rank_op<all_to_all, Tensor, Tensor>,
                     .broadcast = rank_op<broadcast, Tensor>,
                     .send = rank_op<send, int, Tensor>,
                     .receive = rank_op<receive, int, Tensor>};
#define SLUICE_FILL(name) table.name = PlainOp<name, ops::SlotFunction<&ops::OpTable::name>>::call;
  SLUICE_PLAIN_SLOTS(SLUICE_FILL)
#undef SLUICE_FILL
  return table;
}

template <Kernels kernels>
constinit const ops::OpTable kTable = op_table<kernels>();

template <auto Function, class Args>
void compression_op(ops::Queue& queue, const Args& args) {
  finish(queue, [&](const Launch& l) { Function(l, args); });
}

template <Kernels kernels>
constexpr ops::CompressionOps kCompression{.compress = compression_op<compress, ops::CompressArgs>,
                                           .entry_attention = entry_attention_op<kernels>,
                                           .rotate = compression_op<rotate, ops::RotateArgs>,
                                           .store_keys = compression_op<store_keys, ops::StoreKeysArgs>,
                                           .stream_weights = compression_op<stream_weights, ops::StreamWeightsArgs>};

template <Kernels kernels>
ops::Ops make_ops() {
  // A norm behind a sum adds in another order than one of its own, so a row's bits would depend on the number of rows.
  constexpr bool fuses_norms = kernels == Kernels::kFast;
  return {kTable<kernels>,       matmul_kernels<kernels>(),
          /*gathers_rows=*/true, normalizes_heads,          begin_sum_op, fuses_norms ? all_reduce_norm_op : nullptr,
          &kCompression<kernels>};
}

// Devices are never destroyed: others may hold their streams and memory until the process ends.
template <Kernels kernels>
ops::Device& open(int ordinal) {
  static const ops::Ops& ops = *new ops::Ops(make_ops<kernels>());
  static auto& devices = *new PerDevice<Device*>;
  begin_opening_dense_library();
  return *devices.get(ordinal, [&] { return new Device(ordinal, ops); });
}

template <Kernels kernels>
constexpr ops::Backend backend(std::string_view name, int rank) {
  return {.name = name,
          .rank = rank,
          .devices = device_count,
          .open = open<kernels>,
          .can = {.captures = true,
                  .collectives = true,
                  .batch_invariant = kernels != Kernels::kFast,
                  .rounds_attention = kernels != Kernels::kExact,
                  .narrow_caches = {&kFloat8E4M3, &kFloat8E5M2, &kInt8}},
          .batch_invariant_backend = "cuda-invariant"};
}

// The default backend if there is a device. The others are selected by name, or because of what they can.
const ops::Backend fast = backend<Kernels::kFast>("cuda", 100);
const ops::Backend invariant = backend<Kernels::kInvariant>("cuda-invariant", -1);
const ops::Backend exact = backend<Kernels::kExact>("cuda-exact", -2);
const Registry<ops::Backend> registered[] = {Registry<ops::Backend>{fast}, Registry<ops::Backend>{invariant},
                                             Registry<ops::Backend>{exact}};

const ops::LoraMatmul lora_matmul{.name = "cuda",
                                  .type = &kBFloat16,
                                  .shrink = lora_op<Kernels::kFast, lora_shrink, ops::LoraShrinkArgs>,
                                  .run = lora_matmul_op};
const Registry<ops::LoraMatmul> lora_matmul_registered{lora_matmul};

ops::GatedMatmul gated_matmul(std::string_view name, DType type) {
  return {.name = name,
          .type = type,
          .matmul = matmul_op<Kernels::kFast>,
          .run = gated_matmul_op,
          .takes_experts = takes_gated_experts_op,
          .run_experts = gated_experts_op};
}
const ops::GatedMatmul gated_bf16 = gated_matmul("cuda-bfloat16", &kBFloat16),
                       gated_fp16 = gated_matmul("cuda-float16", &kFloat16);
const Registry<ops::GatedMatmul> gated_registered[] = {Registry<ops::GatedMatmul>{gated_bf16},
                                                       Registry<ops::GatedMatmul>{gated_fp16}};

}  // namespace
}  // namespace sluice::cuda
