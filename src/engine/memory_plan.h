// Every buffer of the engine, sized before the first byte is allocated. What does not fit is refused with this table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct MemoryPlan {
  struct Row {
    std::string what;
    size_t bytes = 0;
    std::string detail;
    bool pageable = false;  // of a file: the kernel may drop its pages and read them again, so it is not counted
  };
  std::vector<Row> rows;
  size_t mapped_bytes = 0;     // pages of the checkpoint that are read in place, not counted either
  size_t available_bytes = 0;  // on this machine, before loading

  size_t total() const;
  std::string table() const;  // for people: one line per row, then the total and what is available
};

}  // namespace sluice
