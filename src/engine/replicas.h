// Several engines with the same model as one engine (--data-parallel-size). Each request runs on one of them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/replica_slots.h"

namespace sluice {

// Whether these options are for several engines, not for one or one of several.
bool loads_replicas(const EngineOptions& options);

// Loads the replica that these options describe (data_parallel_rank).
using LoadReplica =
    std::function<std::unique_ptr<Engine>(const EngineOptions&, const std::function<void(double)>& progress)>;

// Loads --data-parallel-size replicas: at the same time if each has devices of its own, else one after the other, so
// that each plans with the memory that the others left. `progress` is called by one thread at a time. Limits for a
// whole engine (waiting requests, host memory and disk of the prefix cache) are divided between them; limits of a step
// and --kv-cache-memory-bytes are for each. `load` is also called later, for a replica that failed.
std::unique_ptr<Engine> load_replicas(const EngineOptions& options, const LoadReplica& load,
                                      const std::function<void(double)>& progress);

// The options of one replica.
EngineOptions replica_options(const EngineOptions& options, int replica);

std::unique_ptr<Engine> join_replicas(std::vector<std::unique_ptr<Engine>> engines, ReplicaRestart restart = {});

}  // namespace sluice
