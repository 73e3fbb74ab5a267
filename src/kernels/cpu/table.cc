// Defines the kernel table of this instruction set, from which dispatch selects.
#include "kernels/cpu/kernels.h"

namespace sluice::SLUICE_ISA {

extern constinit const kernels::CpuKernels kKernels;
constinit const kernels::CpuKernels kKernels{
    .embed = embed,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .match_rms = match_rms,
    .gaussian_top_k = gaussian_top_k,
    .glu = glu,
    .clamped_glu = clamped_glu,
    .unary = unary,
    .xielu = xielu,
    .map = map,
    .copy = copy,
    .add = add,
    .multiply = multiply,
    .softplus = softplus,
    .rope_store = rope_store,
    .latent_store = latent_store,
    .attention = attention,
    .causal_conv = causal_conv,
    .selective_scan = selective_scan,
    .head_scan = head_scan,
    .delta_rule = delta_rule,
    .gated_lru = gated_lru,
    .gather_rows = gather_rows,
    .combine = combine,
    .matmul_f32 = matmul_f32,
    .matmul_bf16 = matmul_bf16,
    .matmul_fp16 = matmul_fp16,
    .matmul_blocks = matmul_blocks,
    .matmul_int8 = matmul_int8,
#ifdef __AVX512BF16__
    .rounding_attention = true,
#else
    .rounding_attention = false,
#endif
};

}  // namespace sluice::SLUICE_ISA
