// How a large sum over ranks is cut, so that its rows travel while later ones are computed (Ops::begin_sum). The
// all_reduce that follows takes one run, or several that began one after another.
#pragma once

#include <cstdint>

namespace sluice::ops {

inline constexpr int64_t kRunBytes = int64_t{16} << 20;  // at most; what two waves of tiles of a GPU's matmul write
inline constexpr int kMostRunsBegun = 4;                 // runs that have begun and are not added yet

}  // namespace sluice::ops
