// Ranks that mpirun starts: this program again, with the tests named DISABLED_, which all ranks run at the same time.
// They are on one machine, but some tests act as if they were on two, so that their data goes through Open MPI.
#include "parallel/mpi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "parallel/collectives.h"
#include "parallel/communicator.h"
#include "sluice/error.h"

namespace sluice::mpi_test {
namespace {

using namespace collectives;

struct Outcome {
  int status = -1;  // exit status
  std::string output{};
};

Outcome run(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  return outcome;
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// Runs a disabled test on so many ranks.
void expect_success(int ranks, const std::string& test) {
  if (run("command -v mpirun").status != 0) GTEST_SKIP() << "mpirun is not installed (openmpi-bin has it)";
  if (run("ldconfig -p | grep -q libmpi.so.40").status != 0) GTEST_SKIP() << "libmpi.so.40 is not installed";
  // Open MPI and its plugins do not free all of their memory.
  const std::string mpirun =
      "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 "
      "mpirun --oversubscribe -np ";
  // Open MPI needs a host name and a network interface, which some containers lack.
  if (const Outcome probe = run(mpirun + "2 true"); probe.status != 0) {
    GTEST_SKIP() << "mpirun cannot start two processes here: " << probe.output;
  }
  const Outcome outcome =
      run(mpirun + std::to_string(ranks) + " " + this_program() +
          " --gtest_color=no --gtest_also_run_disabled_tests --gtest_filter=MpiRank.DISABLED_" + test);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ::testing::HasSubstr("[  PASSED  ] 1 test."));
}

TEST(Mpi, RanksOfOneMachineShareMemory) { expect_success(3, "OneMachine"); }
TEST(Mpi, TwoRanksOfTwoMachines) { expect_success(2, "TwoMachines"); }
TEST(Mpi, FourRanksOfTwoMachines) { expect_success(4, "TwoMachines"); }

TEST(Mpi, WithoutALauncherIsRefused) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) GTEST_SKIP() << "mpirun started this program";
  try {
    Mpi::start();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidRequest);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--distributed-executor-backend mpi: "));
  }
}

void all_collectives(Communicator& c) {
  sums_of_many_sizes(c, 50);
  mixed_rounds(c, 500);
  large_messages(c);
  if (c.size() == 4) groups_and_messages(c, 60);
}

TEST(MpiRank, DISABLED_OneMachine) {
  const std::shared_ptr<Mpi> mpi = Mpi::start();
  const std::vector<int> machines = mpi->machines();
  EXPECT_EQ(machines, std::vector<int>(static_cast<size_t>(mpi->size()), 0));
  const auto communicator = Communicator::connect(mpi, machines);
  all_collectives(*communicator);
  communicator->leave();
  mpi->finish();
}

TEST(MpiRank, DISABLED_TwoMachines) {
  const std::shared_ptr<Mpi> mpi = Mpi::start();
  std::vector<int> machines(static_cast<size_t>(mpi->size()));
  for (size_t rank = 0; rank < machines.size(); ++rank) machines[rank] = rank < machines.size() / 2 ? 0 : 1;
  const auto communicator = Communicator::connect(mpi, machines);
  all_collectives(*communicator);
  communicator->leave();
  mpi->finish();
}

}  // namespace
}  // namespace sluice::mpi_test
