// Measures machine limits with loops that only read, or only multiply and add.
#include "kernels/cpu/dispatch/machine.h"

#include <fmt/core.h>
#include <immintrin.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "kernels/cpu/dispatch/features.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace sluice::kernels {
namespace {

clockid_t timed_by = CLOCK_MONOTONIC;

constexpr int64_t kRounds = 1 << 18;
constexpr int kChains = 16;        // independent sums: more than latency times throughput of any multiply-add
constexpr int kNarrowChains = 12;  // independent sums on instruction sets with sixteen registers

// Reads every byte once in four streams, as the kernels read panels.
[[gnu::target("avx2")]] void read_piece(const std::byte* from, int64_t bytes) {
  __m256i sums[4] = {};
  const auto* p = reinterpret_cast<const __m256i*>(from);
  const int64_t quarter = bytes / 4 / 32;
  for (int64_t i = 0; i < quarter; ++i) {
    for (int j = 0; j < 4; ++j) sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(p + j * quarter + i));
  }
  for (auto& sum : sums) __asm__ volatile("" ::"x"(sum));
}

[[gnu::target("avx512f")]] void fma_512() {
  __m512 sums[kChains] = {};
  const __m512 x = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < kRounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(sum, x, x);
      __asm__ volatile("" : "+v"(sum));
    }
  }
}

[[gnu::target("avx2,fma")]] void fma_256() {
  __m256 sums[kNarrowChains] = {};
  const __m256 x = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < kRounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(sum, x, x);
      __asm__ volatile("" : "+x"(sum));
    }
  }
}

[[gnu::target("avx512f,avx512bf16")]] void bf16_512() {
  __m512 sums[kChains] = {};
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  for (int64_t i = 0; i < kRounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, x, x);
      __asm__ volatile("" : "+v"(sum));
    }
  }
}

[[gnu::target("avx512f,avx512vnni")]] void int8_512() {
  __m512i sums[kChains] = {};
  const __m512i x = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < kRounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, x, x);
      __asm__ volatile("" : "+v"(sum));
    }
  }
}

[[gnu::target("avx2,avxvnni")]] void int8_256() {
  __m256i sums[kNarrowChains] = {};
  const __m256i x = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < kRounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm256_dpbusd_avx_epi32(sum, x, x);
      __asm__ volatile("" : "+x"(sum));
    }
  }
}

// Configures eight tiles of sixteen rows of 64 bytes.
struct [[gnu::packed]] TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Replaces _tile_loadconfig: GCC 12's declares that it reads only eight bytes, so stores to the others may be dropped.
void load(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }

// Computes four sums of 2 x 2 operands, like a GEMM. All tiles are zero.
[[gnu::target("amx-tile,amx-bf16")]] void bf16_tiles() {
  load(TileConfig());
  for (int64_t i = 0; i < kRounds / 16; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

[[gnu::target("amx-tile,amx-int8")]] void int8_tiles() {
  load(TileConfig());
  for (int64_t i = 0; i < kRounds / 16; ++i) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_release();
}

// Measures operations per second of a loop in which one thread does `operations`.
double peak(ThreadPool& pool, bool usable, double operations, void (*loop)()) {
  if (!usable) return 0;
  return operations * pool.threads() / fastest(0.1, [&] { pool.run([&](int, int) { loop(); }); });
}

double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kPiece = 1 << 18;
  const int64_t pieces = uncached_bytes() / kPiece;
  // A container may have too little memory.
  if (static_cast<size_t>(2 * pieces * kPiece) > host_memory().available()) return 0;
  const Buffer memory(static_cast<size_t>(pieces * kPiece));
  const auto each = [&](auto&& piece) {
    pool.parallel_for(
        pieces, 1, [&](int64_t begin, int64_t end) { piece(memory.data() + begin * kPiece, (end - begin) * kPiece); });
  };
  each([](std::byte* at, int64_t bytes) { std::fill(at, at + bytes, std::byte{1}); });
  const double seconds = fastest(0.4, [&] { each(read_piece); });
  return static_cast<double>(pieces * kPiece) / seconds;
}

// Reads the first line of a sysfs file; empty when the file does not exist.
std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Returns the total size of the last-level caches of the CPUs this process may run on; 0 when the system does not
// report it.
int64_t last_level_bytes() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 0;
  std::map<std::string, int64_t> caches;  // keyed by the CPUs that share the cache
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &cpus)) continue;
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache/index3/", cpu);
    // E.g. "32768K".
    caches[read_line(folder + "shared_cpu_list")] = std::atoll(read_line(folder + "size").c_str()) << 10;
  }
  int64_t bytes = 0;
  for (const auto& [shared_by, size] : caches) bytes += size;
  return bytes;
}

}  // namespace

int64_t uncached_bytes() {
  constexpr int64_t kLeast = int64_t{192} << 20, kMost = int64_t{4} << 30;
  return std::clamp(3 * last_level_bytes(), kLeast, kMost);
}

double now() {
  timespec time;
  clock_gettime(timed_by, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void use_cpu_time() { timed_by = CLOCK_THREAD_CPUTIME_ID; }

MachineLimits measure_machine(ThreadPool& pool) {
  const Features& cpu = features();
  const double rounds = static_cast<double>(kRounds), tile_products = rounds / 16 * 4 * 16 * 16;
  return {.read_bandwidth = read_bandwidth(pool),
          .fma = cpu.avx512 ? peak(pool, true, rounds * kChains * 16 * 2, fma_512)
                            : peak(pool, cpu.avx2, rounds * kNarrowChains * 8 * 2, fma_256),
          .bf16_dot = peak(pool, cpu.avx512_bf16, rounds * kChains * 32 * 2, bf16_512),
          .int8_dot = cpu.avx512_vnni ? peak(pool, true, rounds * kChains * 64 * 2, int8_512)
                                      : peak(pool, cpu.avx2_vnni, rounds * kNarrowChains * 32 * 2, int8_256),
          .amx_bf16 = peak(pool, cpu.amx, tile_products * 32 * 2, bf16_tiles),
          .amx_int8 = peak(pool, cpu.amx, tile_products * 64 * 2, int8_tiles)};
}

}  // namespace sluice::kernels
