// Parts of the scalar reference that have files of their own.
#pragma once

#include "ops/ops.h"

namespace sluice::ops::reference {

// Codes of a vector in an int8 cache; returns their scale.
float encode_int8(const float* from, int8_t* to, int64_t count);

// The scalar kernel of every slot, and their table. What a backend has no kernel of its own for it takes from here,
// if it works on the host's memory.
#define SLUICE_DECLARE(name) SlotFunction<&OpTable::name> name;
SLUICE_OP_SLOTS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
#define SLUICE_ENTRY(name) .name = name,
inline constexpr OpTable kTable{SLUICE_OP_SLOTS(SLUICE_ENTRY)};
#undef SLUICE_ENTRY

}  // namespace sluice::ops::reference
