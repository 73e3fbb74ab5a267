// The scalar reference kernels and their op table.
#pragma once

#include "ops/ops.h"

namespace sluice::ops::reference {

// Encodes a vector of an int8 cache to `to`; returns its scale.
float encode_int8(const float* from, int8_t* to, int64_t count);

// The scalar kernel of every slot, and the table of them. A backend that works on host memory uses these for slots that
// it has no kernel for.
#define SLUICE_DECLARE(name) SlotFunction<&OpTable::name> name;
SLUICE_OP_SLOTS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
#define SLUICE_ENTRY(name) .name = name,
inline constexpr OpTable kTable{SLUICE_OP_SLOTS(SLUICE_ENTRY)};
#undef SLUICE_ENTRY

}  // namespace sluice::ops::reference
