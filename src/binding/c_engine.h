// The objects behind the handles of the C API.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>

#include "sluice/c.h"
#include "sluice/engine.h"

namespace sluice::binding {

// What a generation keeps of its engine, which may be closed before it is freed.
struct EngineLink {
  std::mutex mutex;
  Engine* engine = nullptr;  // null once closed
};

}  // namespace sluice::binding

struct sluice_engine {
  std::shared_ptr<sluice::binding::EngineLink> link;
  std::unique_ptr<sluice::Engine> engine;
  const pid_t owner = ::getpid();  // the process that has the engine's threads

  bool forked() const { return owner != ::getpid(); }
};
