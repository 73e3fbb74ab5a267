// Benchmarks the sample op: single filters, chains of samplers, and all samplers together.
#include <fmt/core.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "cuda/parts.h"
#include "cuda/timing.h"
#include "ops/sample_chain.h"

namespace sluice::cuda {
namespace {

struct Case {
  std::string_view name;
  ops::SampleRow row;
  std::vector<ops::SamplerStep> chain;
};

std::vector<Case> cases() {
  using enum ops::SamplerKind;
  const ops::SamplerStep temperature{.kind = kTemperature, .a = 1.25},
      dynamic{.kind = kTemperature, .a = 1.25, .b = 0.5f, .c = 1.0f};
  const ops::SamplerStep sigma{.kind = kTopNSigma, .b = 3.0f}, smooth{.kind = kSmoothing, .b = 0.2f, .c = 1.0f};
  const ops::SamplerStep top_k{.kind = kTopK, .count = 1000}, top_p{.kind = kTopP, .a = 0.95};
  const ops::SamplerStep typical{.kind = kTypicalP, .a = 0.95}, min_p{.kind = kMinP, .b = 0.001f};
  const ops::SamplerStep top_a{.kind = kTopA, .b = 0.01f}, epsilon{.kind = kEpsilon, .b = 1e-5f};
  const ops::SamplerStep eta{.kind = kEta, .b = 1e-5f}, xtc{.kind = kXtc, .b = 0.5f, .c = 0.1f};
  const ops::SamplerStep adaptive{.kind = kAdaptiveP, .b = 0.3f}, mirostat{.kind = kMirostat2, .b = 5.0f};
  return {
      {"greedy", {}, {}},
      {"temperature", {.scale = 1.0f}, {}},
      {"top-k, top-p, min-p", {.scale = 1.0f, .count = 50, .least = 0.01f, .mass = 0.9}, {}},
      {"top-k, top-p as a chain", {.scale = 1.0f}, {temperature, top_k, top_p}},
      {"typical-p", {.scale = 1.0f}, {typical}},
      {"mirostat 2", {.scale = 1.0f}, {temperature, mirostat}},
      {"all",
       {.scale = 1.0f},
       {sigma, dynamic, smooth, top_k, typical, top_p, min_p, top_a, epsilon, eta, xtc, adaptive}},
  };
}

template <class T>
Buffer pinned(const std::vector<T>& values) {
  Buffer memory(values.size() * sizeof(T), bench_queue().device().pinned_memory());
  std::memcpy(memory.data(), values.data(), memory.size());
  return memory;
}

// The engine copies chains to the device.
Buffer on_device(const std::vector<ops::SamplerStep>& chain) {
  Buffer memory(chain.size() * sizeof(ops::SamplerStep), device_memory());
  device_memory().copy(memory.data(), reinterpret_cast<const std::byte*>(chain.data()), memory.size());
  return memory;
}

Tensor bytes_of(const Buffer& memory) { return {memory.data(), &kUInt8, {static_cast<int64_t>(memory.size())}}; }

}  // namespace

void bench_sampling() {
  constexpr int64_t kVocab = 128'256, kMostRows = 512;
  // Logits with these standard deviations: a few tokens have nearly all of the probability; thousands have it, and
  // nearly all tokens share it.
  for (const float deviation : {6.0f, 2.5f, 0.25f}) {
    const Random logits(&kFloat32, kMostRows * kVocab, deviation);
    for (const int64_t rows : {1, 8, 32, 128, 256, 512}) {
      for (const Case& c : cases()) {
        std::vector<ops::SampleRow> asked(static_cast<size_t>(rows), c.row);
        for (size_t i = 0; i < asked.size(); ++i) {
          asked[i].row = static_cast<int32_t>(i), asked[i].key[0] = static_cast<uint32_t>(i);
          asked[i].steps = static_cast<int32_t>(c.chain.size());
        }
        const Buffer row_memory = pinned(asked);
        const Buffer chain = c.chain.empty() ? Buffer() : on_device(c.chain);
        Buffer sampled(asked.size() * sizeof(ops::SampledRow), device_memory());
        const ops::SampleArgs args{.logits = Tensor(logits.data(), &kFloat32, {rows, kVocab}),
                                   .rows = bytes_of(row_memory),
                                   .sampled = bytes_of(sampled),
                                   .for_host = {},
                                   .edits = {},
                                   .steps = c.chain.empty() ? Tensor() : bytes_of(chain),
                                   .masks = {},
                                   .top = {}};
        const double s = seconds([&] { sample(launch(), args); });
        fmt::print("sample {:24} {:5} rows of {}, deviation {}: {:8.1f} us\n", c.name, rows, kVocab, deviation,
                   s * 1e6);
      }
    }
  }
}

}  // namespace sluice::cuda
