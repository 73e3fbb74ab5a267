// Detects CPU features: CPUID leaves 1 and 7 (Intel SDM volume 2, CPUID), XCR0 (volume 1, section 13.3), and Linux's
// permission for AMX.
#include "kernels/cpu/dispatch/features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sluice::kernels {
namespace {

// Bits of EDX in leaf 7. Clang 14's header does not define them.
constexpr unsigned kTilesBf16 = 1u << 22, kTiles = 1u << 24, kTilesInt8 = 1u << 25;

// Tile data is disabled until a process requests it (Linux, Documentation/arch/x86/xstate.rst).
bool permit_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Features detect() {
  unsigned a, b, c, d;
  const auto has = [](unsigned value, unsigned bits) { return (value & bits) == bits; };
  if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return {};
  unsigned saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr unsigned kSavesYmm = 0x06, kSavesZmm = 0xe6, kSavesTiles = 0x60000;
  Features features;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  features.avx2 = has(saved, kSavesYmm) && has(b, bit_AVX2 | bit_BMI2);
  constexpr unsigned kSkylake = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;
  features.avx512 = features.avx2 && has(saved, kSavesZmm) && has(b, kSkylake);
  features.avx512_vnni = features.avx512 && has(c, bit_AVX512VNNI);
  const bool tiles = has(saved, kSavesTiles) && has(d, kTiles | kTilesInt8 | kTilesBf16);
  constexpr unsigned kAvxVnni = 1u << 4, kBf16 = 1u << 5;
  if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return features;
  features.avx2_vnni = features.avx2 && has(a, kAvxVnni);
  features.avx512_bf16 = features.avx512_vnni && has(a, kBf16);
  features.amx = features.avx512_bf16 && tiles && permit_tiles();
  return features;
}

}  // namespace

const Features& features() {
  static const Features detected = detect();
  return detected;
}

}  // namespace sluice::kernels
