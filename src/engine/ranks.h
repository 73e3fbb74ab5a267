// The processes (ranks) that compute a model together. Rank 0 is the process that loads the model, that schedules,
// samples and serves. The others get their options and then every step's batch from it.
//
// --distributed-executor-backend local: rank 0 starts the others on its machine: the same program, with a descriptor of
// shared memory. mpi: mpirun or srun starts all of them, on one machine or several, with the same command line.
#pragma once

#include <functional>
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
// Throws Error(kInvalidRequest) if there are more than a communicator can have.
void check_ranks(const EngineOptions& options);

// Throws Error(kInvalidRequest) if a launcher has to start the ranks (mpi) but run_launched does not run this.
void check_launched(const EngineOptions& options);

// Where a rank is among those of all replicas (--data-parallel-size) on its machine. They share the devices and CPUs.
// With mpi, it is where this process is among those of its machine that have the same CPUs.
struct RankPlace {
  int index = 0;
  int count = 1;
};
RankPlace place_of(const EngineOptions& options, int rank);
// The CPUs of a place; empty: there are fewer CPUs than places.
std::vector<int> cpus_of(const RankPlace& place);

// Starts ranks 1 to ranks_of(options) - 1, or finds those that run_launched has joined, and returns rank 0's
// communicator. When it is destroyed, the ranks end. Throws Error(kInvalidRequest | kInternal) if a rank cannot be
// started, or if the launched ranks follow another model already.
std::shared_ptr<Communicator> start_ranks(const EngineOptions& options);

// The whole life of another rank: gets the options, loads its part of the model and follows rank 0. Returns the exit
// status. Ends by itself if rank 0 is lost.
int run_rank(int fd, int rank);

// The whole life of a process that mpirun or srun started, for a command with these options: rank 0 runs the command,
// in which start_ranks finds the other ranks. They follow rank 0 until the command ends. Returns the exit status.
// Throws what the command throws. Throws Error(kInvalidRequest) if there is no launcher or Open MPI, or if it started
// another number of processes than the options need.
int run_launched(const EngineOptions& options, const std::function<int()>& command);

// The compute threads of a rank: --threads divided by all ranks of all replicas, or its share of the CPUs of this
// process; at least one. 0: as many as there are CPUs.
int threads_of_rank(const EngineOptions& options, int rank);

}  // namespace sluice
