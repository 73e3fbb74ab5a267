// Formats the memory plan as a table.
#include "engine/memory_plan.h"

#include <fmt/core.h>

#include "base/bytes.h"

namespace sluice {
size_t MemoryPlan::total() const {
  size_t sum = 0;
  for (const Row& row : rows) sum += row.pageable ? 0 : row.bytes;
  return sum;
}

MetricFamily MemoryPlan::metric(const std::string& model) const {
  MetricFamily family{
      "sluice:memory_bytes", "Memory by use; mapped files are not counted.", MetricFamily::Type::kGauge, {}};
  for (const Row& row : rows) {
    if (row.pageable) continue;
    family.samples.push_back(
        {{{"engine", "0"}, {"model_name", model}, {"use", row.what}}, static_cast<double>(row.bytes), {}});
  }
  return family;
}

std::string MemoryPlan::table() const {
  std::string out;
  for (const Row& row : rows) out += fmt::format("  {:<14}{:>12}  {}\n", row.what, format_bytes(row.bytes), row.detail);
  out += fmt::format("  {:<14}{:>12}  of {} available", "total", format_bytes(total()), format_bytes(available_bytes));
  if (mapped_bytes > 0) out += fmt::format("; {} more are read in place from the file", format_bytes(mapped_bytes));
  return out + "\n";
}

}  // namespace sluice
