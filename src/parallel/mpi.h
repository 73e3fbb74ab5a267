// The processes that a launcher of MPI started (mpirun, srun), and messages between them. Open MPI's library is opened
// when it is first needed, so that the program starts where it is not installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/link.h"

namespace sluice {

// Throws Error(kInvalidRequest), which names the option that asks for MPI.
[[noreturn]] void refuse_mpi(const std::string& why);

class Mpi : public Link {
 public:
  // Joins the other processes; all of them call it. A process can do so once. Throws Error(kInvalidRequest) if no
  // launcher started this process, if the library is missing, or if the program was built without its headers.
  static std::unique_ptr<Mpi> start();

  // Returns a number for the machine of each rank, equal for ranks on one machine. All ranks call it.
  virtual std::vector<int> machines() = 0;
  // Leaves in good order; returns when all ranks have called it. A process that ends without it is a failure to the
  // launcher, which ends all others.
  virtual void finish() = 0;
};

}  // namespace sluice
