// cuBLASLt, which is opened at run time.
#pragma once

namespace sluice::cuda {

// Starts to open the library, once for the process. This takes a tenth of a second, in which a device's context can be
// created. Meanwhile the program can open no other libraries, nor look for its own parts (base/build_id.h).
void begin_opening_dense_library();

}  // namespace sluice::cuda
