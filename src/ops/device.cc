// Queues for host memory, and the selection of a backend.
#include "ops/device.h"

#include <fmt/core.h>

#include <cstring>
#include <string>

#include "base/check.h"
#include "base/registry.h"
#include "sluice/error.h"

namespace sluice::ops {
namespace {

std::string usable_names() {
  std::string names;
  for (const Backend* backend : Registry<Backend>::all()) {
    if (backend->usable()) names += fmt::format("{}{}", names.empty() ? "" : ", ", backend->name);
  }
  return names;
}

const Backend* best_usable(auto&& accepts) {
  const Backend* best = nullptr;
  for (const Backend* backend : Registry<Backend>::all()) {
    if (!accepts(*backend) || !backend->usable()) continue;
    if (best == nullptr || backend->rank > best->rank) best = backend;
  }
  return best;
}

}  // namespace

void Queue::copy_async(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::unique_ptr<CapturedGraph> Queue::capture(const std::function<void()>&) {
  CHECK(false, "this device captures no graphs");
}

std::unique_ptr<Queue> Device::make_queue(ThreadPool& threads) { return std::make_unique<Queue>(*this, threads); }

const Backend& select_backend(std::string_view name, bool deterministic) {
  const Backend* best = best_usable([&](const Backend& b) { return name.empty() || b.name == name; });
  if (best != nullptr && deterministic && !best->can.batch_invariant) {
    if (name.empty()) return select_backend(best->batch_invariant_backend, true);
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("deterministic: backend '{}' chooses kernels by the number of rows; use '{}'", best->name,
                            best->batch_invariant_backend));
  }
  if (best != nullptr) return *best;
  const char* reason = Registry<Backend>::find(name) != nullptr ? "is not usable on this machine" : "is unknown";
  throw Error(ErrorCode::kUnsupportedModel,
              fmt::format("backend '{}' {} (usable here: {})", name, reason, usable_names()));
}

const Backend& select_host_backend() {
  const Backend* best =
      best_usable([](const Backend& b) { return b.usable() && b.open(0).memory().host_accessible(); });
  CHECK(best != nullptr, "no backend for host memory");  // the reference is one
  return *best;
}

}  // namespace sluice::ops
