// Loops that do nothing but read, or nothing but multiply and add.
#include "machine.h"

#include <immintrin.h>
#include <time.h>

#include <algorithm>

#include "tensor/tensor.h"

namespace sluice::bench {
namespace {

clockid_t timed_by = CLOCK_MONOTONIC;

constexpr int64_t kRounds = 1 << 20;
constexpr int kChains = 16;  // independent sums: more than latency times throughput of any multiply-add

// Reads every byte once, in four streams, as the kernels read panels.
[[gnu::target("avx2")]] void read_piece(const std::byte* from, int64_t bytes) {
  __m256i sums[4] = {};
  const auto* p = reinterpret_cast<const __m256i*>(from);
  const int64_t quarter = bytes / 4 / 32;
  for (int64_t i = 0; i < quarter; ++i) {
    for (int j = 0; j < 4; ++j) sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(p + j * quarter + i));
  }
  for (auto& sum : sums) __asm__ volatile("" ::"x"(sum));
}

[[gnu::target("avx512f")]] void fma_512(int64_t rounds) {
  __m512 sums[kChains] = {};
  const __m512 x = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(sum, x, x);
      __asm__ volatile("" : "+v"(sum));
    }
  }
}

[[gnu::target("avx2,fma")]] void fma_256(int64_t rounds) {
  __m256 sums[kChains - 4] = {};
  const __m256 x = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(sum, x, x);
      __asm__ volatile("" : "+x"(sum));
    }
  }
}

[[gnu::target("avx512f,avx512bf16")]] void dot_512(int64_t rounds) {
  __m512 sums[kChains] = {};
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, x, x);
      __asm__ volatile("" : "+v"(sum));
    }
  }
}

double peak(ThreadPool& pool, double operations, void (*loop)(int64_t)) {
  const double seconds = fastest(0.1, [&] { pool.run([&](int, int) { loop(kRounds); }); });
  return operations * static_cast<double>(kRounds) * pool.threads() / seconds;
}

}  // namespace

double now() {
  timespec time;
  clock_gettime(timed_by, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void use_cpu_time() { timed_by = CLOCK_THREAD_CPUTIME_ID; }

double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{192} << 20, kPiece = 1 << 18;
  const Buffer memory(kBytes);
  std::fill(memory.data(), memory.data() + kBytes, std::byte{1});
  const double seconds = fastest(0.4, [&] {
    pool.parallel_for(kBytes / kPiece, 1, [&](int64_t begin, int64_t end) {
      read_piece(memory.data() + begin * kPiece, (end - begin) * kPiece);
    });
  });
  return kBytes / seconds;
}

double fma_peak(ThreadPool& pool) {
  if (__builtin_cpu_supports("avx512f")) return peak(pool, kChains * 16 * 2, fma_512);
  return peak(pool, (kChains - 4) * 8 * 2, fma_256);
}

double bf16_peak(ThreadPool& pool) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  return peak(pool, kChains * 32 * 2, dot_512);
}

}  // namespace sluice::bench
