// Reports which instruction sets the processor has and the operating system supports.
#pragma once

namespace sluice::kernels {

struct Features {
  bool avx2 = false;         // includes FMA, F16C and BMI2
  bool avx2_vnni = false;    // adds int8 dot products (AVX-VNNI) in vectors of 256 bits
  bool avx512 = false;       // Skylake's subset: F, BW, DQ, VL, CD
  bool avx512_vnni = false;  // adds int8 dot products (VNNI)
  bool avx512_bf16 = false;  // adds bf16 dot products
  bool amx = false;          // tiles with int8 and bf16 matmuls, with the kernel's permission to use them
};
// Detects the features on the first call. This also requests the permission for AMX, if the CPU has it.
const Features& features();

}  // namespace sluice::kernels
