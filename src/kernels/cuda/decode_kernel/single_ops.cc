#include "kernels/cuda/decode_kernel/single_ops.h"

#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {

bool few_rows(const Tensor& x) { return x.dtype == &kFloat32 && x.rows() >= 1 && x.rows() <= kMostDecodeKernelRows; }

bool in_packs(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.shape[-1] % 4 == 0 && x.row_stride % 4 == 0;
}

GatherInstruction gather_of(const GatherOp& op) {
  return {.out = op.out.f32(),
          .table = op.table.data,
          .ids = op.ids,
          .out_stride = op.out.row_stride,
          .table_stride = op.table.row_stride,
          .rows = static_cast<int>(op.out.rows()),
          .columns = static_cast<int>(op.out.shape[1]),
          .bytes = static_cast<int>(op.table.dtype->block_bytes)};
}

NormInstruction norm_of(const NormOp& op) {
  return {.out = op.out.f32(),
          .x = op.x.f32(),
          .weight = op.weight,
          .out_stride = op.out.row_stride,
          .x_stride = op.x.row_stride,
          .rows = static_cast<int>(op.x.rows()),
          .groups = static_cast<int>(op.x.shape.rank() == 3 ? op.x.shape[1] : 1),
          .columns = static_cast<int>(op.x.shape[-1]),
          .eps = op.eps,
          .offset = op.offset,
          .in_packs = in_packs(op.x) && reinterpret_cast<uintptr_t>(op.weight) % 16 == 0};
}

GluInstruction glu_of(const GluOp& op) {
  return {.out = op.out.f32(),
          .gate_up = op.gate_up.f32(),
          .out_stride = op.out.row_stride,
          .gate_up_stride = op.gate_up.row_stride,
          .rows = static_cast<int>(op.out.rows()),
          .columns = static_cast<int>(op.out.shape[1]),
          .gate = op.gate};
}

RopeInstruction rope_of(const RopeOp& op) {
  const ops::RopeStoreArgs& a = op.args;
  const Tensor& cache = a.k_cache;
  const bool stores = a.k.data != nullptr, rotates = a.cos_sin.data != nullptr;
  const auto head_dim = static_cast<int>(cache.shape[3]);
  return {.q = a.q.f32(),
          .k = stores ? a.k.f32() : nullptr,
          .v = stores ? a.v.f32() : nullptr,
          .cos_sin = rotates ? a.cos_sin.f32() : nullptr,
          .k_cache = cache.data,
          .v_cache = a.v_cache.data,
          .positions = op.positions,
          .slots = op.slots,
          .q_stride = a.q.row_stride,
          .k_stride = a.k.row_stride,
          .v_stride = a.v.row_stride,
          .cos_sin_stride = a.cos_sin.row_stride,
          .rows = static_cast<int>(a.q.rows()),
          .heads = static_cast<int>(a.q.shape[1] / head_dim),
          .kv_heads = static_cast<int>(cache.shape[1]),
          .head_dim = head_dim,
          .value_dim = stores ? static_cast<int>(a.v_cache.shape[3]) : 0,
          .rotary = rotates ? static_cast<int>(a.cos_sin.shape[1]) : 0,
          .block_size = static_cast<int>(cache.shape[2]),
          .interleaved = a.interleaved};
}

MatmulInstruction matmul_of(const MatmulProblem& p) {
  const bool panels = is_quantized(p.type) && p.type != &quant::Fp8::kType;
  return {.maps = nullptr,
          .panels = panels ? p.weight : nullptr,
          .pitch = panels ? static_cast<int64_t>(panel_kernels(p.type)->packed_bytes(kPanelOutputs, p.k)) : 0,
          .x = p.x.f32(),
          .out = p.out.f32(),
          .bias = p.bias,
          .x_stride = p.x.row_stride,
          .out_stride = p.out.row_stride,
          .norm_weight = nullptr,
          .eps = 0.0f,
          .norm_offset = 0.0f,
          .gated = nullptr,
          .gated_stride = 0,
          .gate = {},
          .rows = static_cast<int>(p.x.rows()),
          .n = static_cast<int>(p.n),
          .k = static_cast<int>(p.k),
          .slices = static_cast<int>(panel_slices(p.k)),
          .sum = 0,
          .quantized = is_quantized(p.type),
          .accumulate = p.accumulate,
          .norms = false,
          .keeps_out = true,
          .keeps_gated = true,
          .in = {},
          .put = {},
          .experts = {}};
}

}  // namespace sluice::cuda
