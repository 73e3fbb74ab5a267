// Registers the CPU backends: one per instruction set for which the kernels were compiled. A backend is usable when the
// processor has the instructions and the operating system saves their registers.
#include "base/registry.h"
#include "kernels/cpu/dispatch/features.h"
#include "kernels/cpu/dispatch/pack.h"
#include "kernels/cpu/dispatch/pack_int8.h"
#include "kernels/cpu/kernels.h"
#include "ops/compression.h"
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
void matmul_bf16(ops::Queue&, const ops::MatmulArgs&);
kernels::Matmul matmul_int8(DType format);
}  // namespace cpu_amx

namespace kernels {
namespace {

template <const TypeInfo& Type>
ops::MatmulKernels with_pack(void (*matmul)(ops::Queue&, const ops::MatmulArgs&)) {
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

ops::Ops make_ops(const CpuKernels& kernels) {
  ops::Ops ops{kernels.ops,
               {{&kFloat32, with_pack<kFloat32>(kernels.matmul_f32)},
                {&kBFloat16, with_pack<kBFloat16>(kernels.matmul_bf16)},
                {&kFloat16, with_pack<kFloat16>(kernels.matmul_fp16)}}};
  add_blocks(ops, kernels, quant::AllCodecs{});
  ops.compression = &ops::reference::kCompression;
  return ops;
}

// Returns a copy of the ops with another int8 matmul.
ops::Ops with_int8(ops::Ops made, Matmul (*matmul_int8)(DType)) {
  for (auto& [type, kernels] : made.matmul) {
    if (kernels.int8_block > 0) kernels.matmul = matmul_int8(type);
  }
  return made;
}

// Returns the ops of AVX-512 with the matmuls of AMX.
ops::Ops amx_ops() {
  ops::Ops made = with_int8(make_ops(cpu_avx512_bf16::kKernels), cpu_amx::matmul_int8);
  made.matmul.at(&kBFloat16).matmul = cpu_amx::matmul_bf16;
  return made;
}

template <const CpuKernels& Kernels>
ops::Ops plain_ops() {
  return make_ops(Kernels);
}

template <const CpuKernels& Kernels, Matmul (*MatmulInt8)(DType)>
ops::Ops int8_ops() {
  return with_int8(make_ops(Kernels), MatmulInt8);
}

// One device per backend: the host.
template <ops::Ops (*Make)()>
ops::Device& open(int) {
  static const ops::Ops ops = Make();
  static ops::HostDevice device(ops);
  return device;
}

template <ops::Ops (*Make)(), bool Features::*Feature>
ops::Backend backend(std::string_view name, int rank, bool rounds_attention = false) {
  return {.name = name,
          .rank = rank,
          .devices = [] { return features().*Feature ? 1 : 0; },
          .open = open<Make>,
          .can = {.collectives = true,
                  .rounds_attention = rounds_attention,
                  .narrow_caches = {&kFloat8E4M3, &kFloat8E5M2, &kInt8}}};
}

struct Registered {
  ops::Backend backend;
  Registry<ops::Backend> entry{backend};
};
const Registered registered[] = {
    {backend<plain_ops<cpu_avx2::kKernels>, &Features::avx2>("cpu-avx2", 10)},
    {backend<int8_ops<cpu_avx2::kKernels, cpu_avx2_vnni::matmul_int8>, &Features::avx2_vnni>("cpu-avx2-vnni", 15)},
    {backend<plain_ops<cpu_avx512::kKernels>, &Features::avx512>("cpu-avx512", 20)},
    {backend<int8_ops<cpu_avx512::kKernels, cpu_avx512_vnni::matmul_int8>, &Features::avx512_vnni>("cpu-avx512-vnni",
                                                                                                   25)},
    {backend<plain_ops<cpu_avx512_bf16::kKernels>, &Features::avx512_bf16>("cpu-avx512-bf16", 30, true)},
    {backend<amx_ops, &Features::amx>("cpu-amx", 40, true)}};

}  // namespace
}  // namespace kernels
}  // namespace sluice
