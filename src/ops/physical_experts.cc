// One pass over the entries: there are few, and the counts are exact.
#include "ops/physical_experts.h"

#include <bit>

#include "ops/checks.h"

namespace sluice::ops {
namespace {

// Mixes the bits of a number (the finalizer of MurmurHash3).
uint32_t hash(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x85ebca6bU;
  bits = (bits ^ bits >> 13) * 0xc2b2ae35U;
  return bits ^ bits >> 16;
}

}  // namespace

void choose_physical(Ctx& ctx, const PhysicalExpertsArgs& args) {
  CHECK(ctx.queue.device().memory().host_accessible(), "the device's memory");
  check_matrix(args.logits, "logits", -1, -1);
  const int64_t rows = args.logits.shape[0], choices = args.logits.shape[1];
  CHECK(args.experts.shape.rank() == 2 && args.experts.shape[0] == rows, "experts is {}", args.experts.shape.str());
  check_list(args.experts, "experts", args.experts.shape.elements());
  CHECK(static_cast<int64_t>(args.first.size()) == choices + 1, "{} choices", args.first.size());
  auto* entry = args.experts.as<int32_t>();
  for (int64_t row = 0; row < rows; ++row) {
    const float* logits = args.logits.f32() + row * args.logits.row_stride;
    for (int64_t j = 0; j < args.experts.shape[1]; ++j, ++entry) {
      const auto expert = static_cast<size_t>(*entry);
      const auto begin = static_cast<uint32_t>(args.first[expert]);
      const auto several = static_cast<uint32_t>(args.first[expert + 1]) - begin;
      const uint32_t which = several > 1 ? hash(std::bit_cast<uint32_t>(logits[expert])) % several : 0;
      *entry = args.physical[begin + which];
      ++args.counts[static_cast<size_t>(*entry)];
    }
  }
}

}  // namespace sluice::ops
