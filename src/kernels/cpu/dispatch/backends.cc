// Registers the CPU backends: one per instruction set for which the kernels were compiled. A backend is usable when the
// processor has the instructions and the operating system saves their registers.
#include "base/registry.h"
#include "kernels/cpu/dispatch/features.h"
#include "kernels/cpu/dispatch/grouped_matmul.h"
#include "kernels/cpu/dispatch/pack.h"
#include "kernels/cpu/dispatch/pack_int8.h"
#include "kernels/cpu/kernels.h"
#include "ops/reference.h"
#include "quant/all.h"

namespace sluice {

namespace cpu_avx2 {
extern const kernels::CpuKernels kKernels;
}
namespace cpu_avx512 {
extern const kernels::CpuKernels kKernels;
}
namespace cpu_avx512_bf16 {
extern const kernels::CpuKernels kKernels;
}

namespace cpu_avx2_vnni {
kernels::Matmul matmul_int8(DType format);
}
namespace cpu_avx512_vnni {
kernels::Matmul matmul_int8(DType format);
}
namespace cpu_amx {
void matmul_bf16(ThreadPool&, const ops::MatmulArgs&);
kernels::Matmul matmul_int8(DType format);
}  // namespace cpu_amx

namespace kernels {
namespace {

template <const TypeInfo& Type>
ops::MatmulKernels with_pack(void (*matmul)(ThreadPool&, const ops::MatmulArgs&)) {
  return {.packed_bytes = packed_bytes<Type>, .pack = pack<Type>, .matmul = matmul};
}

// Returns the int8 kernels of a block format. Formats without int8 kernels get the generic ones.
template <class Codec>
ops::MatmulKernels block_kernels(const CpuKernels& kernels) {
  ops::MatmulKernels found = int8_packing(&Codec::kType);
  if (found.pack == nullptr) {
    return {.packed_bytes = packed_block_bytes<Codec::kType>,
            .pack = pack_blocks,
            .matmul = kernels.matmul_blocks(&Codec::kType)};
  }
  found.matmul = kernels.matmul_int8(&Codec::kType);
  return found;
}

template <class... Codecs>
void add_blocks(ops::Ops& ops, const CpuKernels& kernels, quant::CodecList<Codecs...>) {
  ((ops.matmul[&Codecs::kType] = block_kernels<Codecs>(kernels)), ...);
}

template <const CpuKernels& Kernels>
ops::Ops make_table() {
  ops::Ops ops{.embed = Kernels.embed,
               .rms_norm = Kernels.rms_norm,
               .layer_norm = Kernels.layer_norm,
               .match_rms = Kernels.match_rms,
               .gaussian_top_k = Kernels.gaussian_top_k,
               .glu = Kernels.glu,
               .clamped_glu = Kernels.clamped_glu,
               .unary = Kernels.unary,
               .xielu = Kernels.xielu,
               .map = Kernels.map,
               .copy = Kernels.copy,
               .add = Kernels.add,
               .multiply = Kernels.multiply,
               .softplus = Kernels.softplus,
               .rope_store = Kernels.rope_store,
               .latent_store = Kernels.latent_store,
               .attention = Kernels.attention,
               .causal_conv = Kernels.causal_conv,
               .selective_scan = Kernels.selective_scan,
               .head_scan = Kernels.head_scan,
               .delta_rule = Kernels.delta_rule,
               .gated_lru = Kernels.gated_lru,
               .gather_rows = Kernels.gather_rows,
               .copy_rows = ops::reference::copy_rows,
               .sample = ops::reference::sample,
               .feed_sampled = ops::reference::feed_sampled,
               .pooling = ops::reference::pooling,
               .route = ops::reference::route,
               .group_by_expert = ops::reference::group_by_expert,
               .expert_matmul = expert_matmul,
               .head_matmul = head_matmul,
               .combine = Kernels.combine,
               .rounding_attention = Kernels.rounding_attention,
               .matmul = {{&kFloat32, with_pack<kFloat32>(Kernels.matmul_f32)},
                          {&kBFloat16, with_pack<kBFloat16>(Kernels.matmul_bf16)},
                          {&kFloat16, with_pack<kFloat16>(Kernels.matmul_fp16)}}};
  add_blocks(ops, Kernels, quant::AllCodecs{});
  return ops;
}

template <const CpuKernels& Kernels>
const ops::Ops& table() {
  static const ops::Ops ops = make_table<Kernels>();
  return ops;
}

// Returns a copy of an op table with another int8 matmul.
ops::Ops with_int8(ops::Ops made, Matmul (*matmul_int8)(DType)) {
  for (auto& [type, kernels] : made.matmul) {
    if (kernels.int8_block > 0) kernels.matmul = matmul_int8(type);
  }
  return made;
}

template <const CpuKernels& Kernels, Matmul (*MatmulInt8)(DType)>
const ops::Ops& table() {
  static const ops::Ops ops = with_int8(make_table<Kernels>(), MatmulInt8);
  return ops;
}

// Returns AVX-512's op table with the AMX matmuls.
const ops::Ops& amx_table() {
  static const ops::Ops ops = [] {
    ops::Ops made = with_int8(make_table<cpu_avx512_bf16::kKernels>(), cpu_amx::matmul_int8);
    made.matmul.at(&kBFloat16).matmul = cpu_amx::matmul_bf16;
    return made;
  }();
  return ops;
}

ops::Backend backend(std::string_view name, int rank, bool (*usable)(), const ops::Ops& (*table)()) {
  return {.name = name,
          .rank = rank,
          .usable = usable,
          .table = table,
          .narrow_caches = {&kFloat8E4M3, &kFloat8E5M2, &kInt8}};
}

struct Registered {
  ops::Backend backend;
  Registry<ops::Backend> entry{backend};
};
const Registered registered[] = {
    {backend(
        "cpu-avx2", 10, [] { return features().avx2; }, table<cpu_avx2::kKernels>)},
    {backend(
        "cpu-avx2-vnni", 15, [] { return features().avx2_vnni; },
        table<cpu_avx2::kKernels, cpu_avx2_vnni::matmul_int8>)},
    {backend(
        "cpu-avx512", 20, [] { return features().avx512; }, table<cpu_avx512::kKernels>)},
    {backend(
        "cpu-avx512-vnni", 25, [] { return features().avx512_vnni; },
        table<cpu_avx512::kKernels, cpu_avx512_vnni::matmul_int8>)},
    {backend(
        "cpu-avx512-bf16", 30, [] { return features().avx512_bf16; }, table<cpu_avx512_bf16::kKernels>)},
    {backend(
        "cpu-amx", 40, [] { return features().amx; }, amx_table)}};

}  // namespace
}  // namespace kernels
}  // namespace sluice
