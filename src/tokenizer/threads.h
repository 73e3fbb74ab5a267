// Long texts are worked on by several threads, where that cannot change the result.
#pragma once

#include <cstddef>
#include <functional>

namespace sluice::tokenizer {

struct Threads {
  int most = 0;                    // 0: every CPU of the process
  size_t share = size_t{1} << 18;  // bytes of text that a thread is worth being started for

  // How many to take for so many bytes; 1: the caller alone.
  int for_text(size_t bytes) const;
};

// Runs part(0) to part(count - 1), each on a thread of its own, the last one on the caller's. When parts throw, what
// the first of them threw is thrown, after all have ended.
void run_parts(int count, const std::function<void(int part)>& part);

}  // namespace sluice::tokenizer
