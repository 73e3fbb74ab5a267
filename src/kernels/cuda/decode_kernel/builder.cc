// Launches captured ops: runs of them as instructions of the persistent decode kernel, others by themselves.
#include "kernels/cuda/decode_kernel/builder.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "kernels/cuda/attention/cache_maps.h"
#include "kernels/cuda/decode_kernel/dependencies.h"
#include "kernels/cuda/decode_kernel/translate.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
namespace {

using Kind = Instruction::Kind;

// Limits of one captured graph: dependencies.h makes at most two instructions of one. Each has at most one tensor map.
constexpr size_t kMostTranslated = 2048, kMostInstructions = 2 * kMostTranslated;
// Offsets in device memory of the instructions and of the tensor maps of their weights.
constexpr size_t kInstructionsAt = 256, kMapsAt = kInstructionsAt + kMostInstructions * sizeof(Instruction);
static_assert(kMapsAt % alignof(TensorMaps) == 0);
constexpr int kStagesAhead = 3;  // most stages that a producer warp keeps in flight: more only queue behind each other
constexpr int kFewestMatmuls = 2;  // matmuls that make a run worth a kernel

// The tensor maps of plain 16-bit weights, or of fp8 weights, whose rows have their scales behind them.
TensorMaps weight_maps(const MappedWeight& p, int pieces_of_stage) {
  const bool fp8 = p.type == &quant::Fp8::kType;
  const int64_t row_bytes = fp8 ? p.k : padded_k(p.k) * 2, pitch = fp8 ? fp8_row_bytes(p.k) : row_bytes;
  const auto n = static_cast<cuuint64_t>(p.n), pieces = static_cast<cuuint64_t>(row_bytes / 128);
  const auto tile = static_cast<cuuint32_t>(pieces_of_stage);
  TensorMaps maps{};
  maps.weights_or_keys =
      tensor_map<3>(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, {128, n, pieces}, {static_cast<cuuint64_t>(pitch), 128},
                    {128, kPanelOutputs, tile}, CU_TENSOR_MAP_SWIZZLE_128B);
  if (!fp8) return maps;
  maps.scales_or_values =
      tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.weight + p.k, {pieces, n}, {static_cast<cuuint64_t>(pitch)},
                    {tile, kPanelOutputs}, CU_TENSOR_MAP_SWIZZLE_NONE);
  return maps;
}

// Launches the ops from the first one on, until `count` or more are launched. Returns how many these are.
size_t launch_by_themselves(std::span<const CapturedOp> ops, size_t count, const Launch& l) {
  size_t i = 0;
  while (i < count) {
    const CapturedOp& op = ops[i];
    if (op.launch_fused && i + op.fused_ops <= ops.size() && op.launch_fused(l)) {
      i += op.fused_ops;
    } else {
      op.launch(l), ++i;
    }
  }
  return i;
}

}  // namespace

bool DecodeKernelBuilder::usable(const Launch& l) {
  const char* wanted = std::getenv("SLUICE_CUDA_DECODE_KERNEL");
  return l.compute_capability >= 90 && (wanted == nullptr || std::string_view(wanted) != "0");
}

DecodeKernelBuilder::DecodeKernelBuilder(const Launch& l) : launch_(l) {}

DecodeKernelBuilder::~DecodeKernelBuilder() {
  cudaFree(device_);
  for (const auto& [memory, words] : exchanges_) cudaFree(memory);
}

void DecodeKernelBuilder::flush() {
  const std::vector<CapturedOp> ops = std::exchange(ops_, {});
  std::span<const CapturedOp> left = ops;
  while (!left.empty()) {
    const size_t room = kMostTranslated - std::min(kMostTranslated, all_.size());
    const DecodeRun run = translate(left, launch_, room);
    // The op behind the run could not be translated.
    size_t alone = std::min(run.ops + 1, left.size());
    if (run.matmuls >= kFewestMatmuls) {
      launch_run(run);
      left = left.subspan(run.ops), alone -= run.ops;
    }
    left = left.subspan(launch_by_themselves(left, alone, launch_));
  }
}

// Sets the addresses of the tensor maps. The dependency pass keeps the order of the matmuls.
void DecodeKernelBuilder::place_maps(std::vector<Instruction>& instructions, const DecodeRun& run) {
  const auto keep = [&](const TensorMaps& maps) {
    maps_.push_back(maps);
    return reinterpret_cast<const TensorMaps*>(device() + kMapsAt) + maps_.size() - 1;
  };
  const int pieces = decode_kernel(run.types)->stage_pieces;
  auto weight = run.mapped.begin();
  for (Instruction& in : instructions) {
    if (in.kind == Kind::kMatmul && in.matmul.panels == nullptr) in.matmul.maps = keep(weight_maps(*weight++, pieces));
    if (in.kind != Kind::kAttention) continue;
    const CacheMaps tiles = cache_maps(in.attention.params, 2, in.attention.tile_keys);
    in.attention.maps = keep({tiles.keys, tiles.values});
  }
}

void DecodeKernelBuilder::launch_run(const DecodeRun& run) {
  DecodeKernelPlan plan = resolve_dependencies(run.instructions);
  std::vector<Instruction>& instructions = plan.instructions;
  place_exchanges(plan, exchange(kExchanges * plan.exchange_words));
  place_maps(instructions, run);
  const DecodeKernel& kernel = *decode_kernel(run.types);
  DecodeKernelLaunch l{.instructions = reinterpret_cast<const Instruction*>(device() + kInstructionsAt) + all_.size(),
                       .count = static_cast<int>(instructions.size()),
                       .first_fed = -1,
                       .places = {},
                       .stages = 0,
                       .ahead = 0,
                       .scratch_bytes = run.scratch_bytes,
                       .peers = run.peers != nullptr ? *run.peers : PeerMemory(),
                       .sums = run.sums,
                       .arrivals = reinterpret_cast<uint32_t*>(device())};
  l.stages = std::min((kDecodeSharedBytes - kBookkeepingBytes - l.scratch_bytes) / kernel.stage_bytes, kMostStages);
  l.stages -= l.stages % kProducerWarps;
  l.ahead = std::min(l.stages / kProducerWarps, kStagesAhead);
  std::ranges::fill(l.places, -1);
  int* next = &l.first_fed;
  for (int i = 0; i < l.count; ++i) {
    Instruction& in = instructions[i];
    if (in.kind == Kind::kAttention) {
      int& place = l.places[in.attention.place];
      if (place < 0) place = i;
    } else if (in.kind != Kind::kMatmul) {
      continue;
    }
    *next = i;
    next = &in.next;
    *next = -1;
  }
  all_.insert(all_.end(), instructions.begin(), instructions.end());
  kernel.launch(launch_, l);
}

std::byte* DecodeKernelBuilder::device() {
  if (device_ == nullptr) {
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, kMapsAt + kMostInstructions * sizeof(TensorMaps)), "persistent decode kernel");
    device_ = static_cast<std::byte*>(data);
  }
  return device_;
}

// Returns a device buffer of at least `words` words.
uint2* DecodeKernelBuilder::exchange(size_t words) {
  if (exchanges_.empty() || exchanges_.back().second < words) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, words * sizeof(uint2)), "persistent decode kernel");
    exchanges_.emplace_back(static_cast<uint2*>(memory), words);
  }
  return exchanges_.back().first;
}

void DecodeKernelBuilder::finish() {
  if (device_ == nullptr) return;
  check_cuda(cudaMemset(device_, 0, kInstructionsAt), "persistent decode kernel");
  for (const auto& [memory, words] : exchanges_) {
    check_cuda(cudaMemset(memory, 0, words * sizeof(uint2)), "persistent decode kernel");
  }
  const auto copy = [&](size_t at, const auto& values) {
    check_cuda(cudaMemcpy(device_ + at, values.data(), values.size() * sizeof(values[0]), cudaMemcpyHostToDevice),
               "persistent decode kernel");
  };
  copy(kInstructionsAt, all_);
  copy(kMapsAt, maps_);
}

}  // namespace sluice::cuda
