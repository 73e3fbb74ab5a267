// The processes (ranks) of one machine that compute a model together. Rank 0 is the process that loads the model, that
// schedules, samples and serves. It starts the others: the same program, with a descriptor of shared memory. They get
// their options and then every step's batch through that memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "sluice/options.h"

namespace sluice {

// Says how this program is started as a rank: by its first argument, followed by run_rank's descriptor and rank.
// Without this call, for example in a program that uses Sluice as a library, start_ranks throws.
void set_rank_command(std::string command);

// The processes that compute a model together: the stages of a pipeline, each divided between ranks.
int ranks_of(const EngineOptions& options);

// Where a rank is among those of all replicas (--data-parallel-size). They share the devices and CPUs.
struct RankPlace {
  int index = 0;
  int count = 1;
};
RankPlace place_of(const EngineOptions& options, int rank);
// The CPUs of a place; empty: there are fewer CPUs than places.
std::vector<int> cpus_of(const RankPlace& place);

// Starts ranks 1 to ranks_of(options) - 1 and returns rank 0's communicator. When it is destroyed, the ranks
// end. Throws Error(kInvalidRequest | kInternal) if a rank cannot be started.
std::shared_ptr<Communicator> start_ranks(const EngineOptions& options);

// The whole life of another rank: gets the options, loads its part of the model and follows rank 0. Returns the exit
// status. Ends by itself if rank 0 is lost.
int run_rank(int fd, int rank);

// The compute threads of a rank: --threads, or the CPUs of this process, divided by all ranks of all replicas; at least
// one. 0: as many as there are CPUs.
int threads_of_rank(const EngineOptions& options, int rank);

}  // namespace sluice
