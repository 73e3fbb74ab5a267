// The table of what instructions of the persistent decode kernel read from memory and write to it: one entry per kind.
// The dependency pass (dependencies.h) follows it. Caches of keys and values are left out: no instruction of a run
// reads what another one stores there.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/decode_kernel/instructions.h"

namespace sluice::cuda {

// Rows of fp32 in memory.
struct Span {
  const float* begin = nullptr;
  const float* end = nullptr;
  int64_t stride = 0;
  int rows = 0, columns = 0;

  bool overlaps(const Span& o) const {
    return begin != nullptr && o.begin != nullptr && begin < o.end && o.begin < end;
  }
  bool operator==(const Span& o) const {
    return begin == o.begin && end == o.end && stride == o.stride && rows == o.rows && columns == o.columns;
  }
};

// A span that an instruction writes, and the flag that says whether it does.
struct Write {
  Span span;
  bool* keeps = nullptr;  // null: it always writes

  bool kept() const { return keeps == nullptr || *keeps; }
};

struct Effects {
  std::vector<Span> reads;  // without what comes from an Exchange
  std::vector<Write> writes;
};
// The flags are those of `in`, which must outlive the result.
Effects effects_of(Instruction& in);

// The spans of single operands.
Span input_of(const MatmulInstruction& p);
Span out_of(const MatmulInstruction& p);
Span gated_of(const MatmulInstruction& p);
Span out_of(const NormInstruction& n);
Span out_of(const AttentionInstruction& a);

}  // namespace sluice::cuda
