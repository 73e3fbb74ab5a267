// cuda_bench: times the CUDA backends' kernels at the shapes of an 8B model. Prints time, bandwidth and arithmetic rate
// against the device's limits, and the error of the tensor-core kernels against the batch-invariant ones on the same
// data. Launches are replayed from a CUDA graph over rotating weights, so neither launch gaps nor the L2 cache affect
// results.
#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "cuda/parts.h"
#include "cuda/timing.h"
#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {
namespace {

// Without arguments runs everything, else the named parts:
// plain; many: rows of one matrix; quantized (fp8: only 8-bit floats; fp4: only NVFP4 and NF4);
// attention (attention8: over 8-bit caches; decode8, prefill8: its parts for 8-bit floats; wide: eight heads
// for a kv head; divided: to a part of the keys; latent: over latent caches);
// selection: of tokens by an indexer, and attention to them;
// heads; steps (whole: of whole models); rows; sampling;
// ranks: between two GPUs, or two processes on one; transfers: of the KV cache to pinned memory and back;
// tiles, experts: many rows (experts4, experts8, experts16: only MXFP4, 8-bit floats, bf16).
int run(const std::vector<std::string_view>& parts) {
  if (device_count() == 0) {
    fmt::print("no CUDA device that these kernels were compiled for\n");
    return 1;
  }
  const auto wanted = [&](std::string_view part) {
    return parts.empty() || std::ranges::find(parts, part) != parts.end();
  };
  if (!parts.empty() && wanted("other-rank")) return run_other_rank(), 0;
  if (!parts.empty() && wanted("ranks")) bench_ranks();
  if (!parts.empty() && wanted("transfers")) bench_transfers();
  bench_queue().reserve_workspace(size_t{1} << 30);
  if (parts.empty()) bench_copy();
  if (wanted("plain")) bench_plain_matmuls();
  if (wanted("many")) bench_matmuls_of_many_rows();
  if (wanted("quantized")) bench_quantized_matmuls({&quant::Int4G128::kType, &quant::Fp8::kType}, true);
  if (!parts.empty() && wanted("fp8")) bench_quantized_matmuls({&quant::Fp8::kType}, false);
  if (!parts.empty() && wanted("fp4")) bench_quantized_matmuls({&quant::ScaledNVFP4::kType, &quant::NF4::kType}, false);
  if (wanted("tiles")) bench_tiles({&quant::Int4G128::kType, &quant::Q4_K::kType, &quant::Fp8::kType});
  if (wanted("experts")) bench_all_experts();
  if (!parts.empty() && wanted("experts4")) bench_fp4_experts();
  if (!parts.empty() && wanted("experts8")) bench_experts_of(&quant::Fp8::kType);
  if (!parts.empty() && wanted("experts16")) bench_experts_of(&kBFloat16);
  if (wanted("attention")) bench_attentions();
  const std::vector<DType> caches{&kBFloat16, &kFloat8E4M3, &kInt8};
  if (wanted("attention8")) bench_narrow_decode(caches), bench_narrow_prefill(caches);
  if (!parts.empty() && wanted("decode8")) bench_narrow_decode({&kFloat8E4M3, &kBFloat16, &kInt8});
  if (!parts.empty() && wanted("prefill8")) bench_narrow_prefill({&kFloat8E4M3});
  if (!parts.empty() && wanted("wide")) bench_wide_decode();
  if (!parts.empty() && wanted("divided")) bench_key_parts();
  if (wanted("latent")) bench_latent();
  if (!parts.empty() && wanted("selection")) bench_selections();
  if (wanted("heads")) bench_head_matmuls();
  if (wanted("sampling")) bench_sampling();
  if (wanted("steps")) bench_steps();
  if (!parts.empty() && wanted("steps32")) bench_step_of_32();
  if (wanted("whole")) bench_whole_steps();
  for (const int64_t rows : {1, 32, 256, 8192}) {
    if (!wanted("rows")) continue;
    bench_rows(rows);
    for (DType type : {&kFloat32, &kBFloat16}) bench_rotation(type, rows);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::cuda

int main(int count, char** arguments) { return sluice::cuda::run({arguments + 1, arguments + count}); }
