// Processes long texts with several threads, where that does not change the result.
#pragma once

#include <cstddef>
#include <functional>

namespace sluice::tokenizer {

struct Threads {
  int most = 0;                    // 0: every CPU of the process
  size_t share = size_t{1} << 18;  // bytes of text per thread that justify starting it

  // Returns how many threads to use for a text of `bytes` bytes; 1: only the caller.
  int for_text(size_t bytes) const;
};

// Runs part(0) to part(count - 1), each on its own thread, the last one on the caller's. If parts throw, the exception
// of the first of them is thrown after all have ended.
void run_parts(int count, const std::function<void(int part)>& part);

}  // namespace sluice::tokenizer
