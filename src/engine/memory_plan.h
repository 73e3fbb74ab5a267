// The sizes of all buffers of the engine, computed before anything is allocated. If the plan does not fit, the error
// shows it as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/metrics.h"

namespace sluice {

struct MemoryPlan {
  struct Row {
    std::string what;
    size_t bytes = 0;
    std::string detail;
    bool pageable = false;  // mapped from a file; not counted, as the kernel can drop and reread its pages
  };
  std::vector<Row> rows;
  size_t mapped_bytes = 0;     // checkpoint pages that are read in place; not counted
  size_t available_bytes = 0;  // memory that the engine may use, before loading

  size_t total() const;
  MetricFamily metric(const std::string& model) const;  // bytes by row, for /metrics
  std::string table() const;  // readable text: one line per row, then the total and the available memory
};

}  // namespace sluice
