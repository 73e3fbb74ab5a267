// What the processor can do and the operating system lets programs use.
#pragma once

namespace sluice::kernels {

struct Features {
  bool avx2 = false;         // with FMA, F16C and BMI2
  bool avx2_vnni = false;    // and dots of bytes in vectors of 256 bits (AVX-VNNI)
  bool avx512 = false;       // Skylake's set: F, BW, DQ, VL, CD
  bool avx512_vnni = false;  // and dots of bytes
  bool avx512_bf16 = false;  // and dots of bf16
  bool amx = false;          // tiles with int8 and bf16 products, and the kernel's permission to use them
};
// Asked once; asking also gets this process the permission for AMX, where there is one to get.
const Features& features();

}  // namespace sluice::kernels
