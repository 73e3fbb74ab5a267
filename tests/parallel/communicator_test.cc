// Collectives between processes, between threads and between machines: equal bits on all ranks, any sizes, many rounds;
// and ranks that are killed, that end, or that go another way.
#include "parallel/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

#include "parallel/collectives.h"
#include "sluice/error.h"

namespace sluice::communicator_test {
namespace {

using namespace collectives;
using Clock = std::chrono::steady_clock;
using Body = std::function<void(Communicator&)>;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Processes of ranks 1, 2, ... that run a body and exit with 0, or with 1 if it throws or a check in it fails.
class Processes {
 public:
  Processes(Communicator& leader, const Body& body) {
    for (int rank = 1; rank < leader.size(); ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) ::_exit(run(leader.fd(), rank, body));
      if (pid < 0) throw std::runtime_error("fork failed");
      running_[rank] = pid;
    }
  }
  ~Processes() {
    for (const auto& [rank, pid] : running_) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void kill(int rank) const { ::kill(running_.at(rank), SIGKILL); }
  // Waits for a rank and returns its exit status; -1 if a signal ended it.
  int join(int rank) {
    int status = 0;
    ::waitpid(running_.at(rank), &status, 0);
    running_.erase(rank);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void expect_success() {
    while (!running_.empty()) {
      const int rank = running_.begin()->first;
      EXPECT_EQ(join(rank), 0) << "rank " << rank;
    }
  }

 private:
  static int run(int fd, int rank, const Body& body) {
    try {
      const std::unique_ptr<Communicator> communicator = Communicator::join(fd, rank);
      body(*communicator);
      return ::testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception&) {
      return 1;
    }
  }

  std::map<int, pid_t> running_;
};

// Runs a body on every rank: rank 0 in this process, the others in their own.
void on_processes(int size, const Body& body) {
  const std::unique_ptr<Communicator> leader = Communicator::create(size);
  Processes processes(*leader, body);
  body(*leader);
  processes.expect_success();
}

void on_threads(int size, const Body& body) {
  std::vector<std::thread> threads;
  for (std::unique_ptr<Communicator>& rank : Communicator::of_threads(size)) {
    threads.emplace_back([&body, mine = std::move(rank)] { body(*mine); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Communicator, SumsHaveEqualBitsOnAllProcesses) {
  for (const int size : {1, 2, 3, 5}) on_processes(size, [](Communicator& c) { sums_of_many_sizes(c); });
}

TEST(Communicator, SumsHaveEqualBitsOnAllThreads) {
  on_threads(4, [](Communicator& c) { sums_of_many_sizes(c); });
}

TEST(Communicator, ManyRoundsOfAllCollectivesInTurn) {
  on_processes(3, [](Communicator& c) { mixed_rounds(c); });
  on_threads(2, [](Communicator& c) { mixed_rounds(c); });
}

TEST(Communicator, LargeMessagesGoInPieces) { on_processes(3, large_messages); }

// A rank that is killed while others wait for it, or while nobody does, is named within two seconds.
TEST(Communicator, AKilledRankIsAnErrorOnAllOthers) {
  const std::unique_ptr<Communicator> leader = Communicator::create(3);
  Processes processes(*leader, [](Communicator& c) {
    for (int round = 0; round < 10; ++round) c.barrier();
    if (c.rank() == 2) ::pause();
    try {
      c.barrier();
    } catch (const Error& error) {
      if (std::string_view(error.what()).find("rank 2 of 3") != std::string_view::npos) ::_exit(42);
    }
  });
  for (int round = 0; round < 10; ++round) leader->barrier();
  EXPECT_EQ(leader->lost(), std::nullopt);
  const auto begin = Clock::now();
  processes.kill(2);
  try {
    leader->barrier();
    FAIL() << "the barrier returned without rank 2";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kInternal);
    EXPECT_STREQ(error.what(), "rank 2 of 3 was lost: its process ended");
  }
  EXPECT_EQ(processes.join(1), 42);
  EXPECT_LT(seconds_since(begin), 2.0);
  EXPECT_EQ(leader->lost(), "rank 2 of 3 was lost: its process ended");
  EXPECT_THROW(leader->barrier(), Error) << "a lost rank stays lost";
}

TEST(Communicator, ALossIsSeenWithoutACollective) {
  const std::unique_ptr<Communicator> leader = Communicator::create(2);
  Processes processes(*leader, [](Communicator& c) {
    c.barrier();
    ::pause();
  });
  leader->barrier();
  EXPECT_EQ(leader->lost(), std::nullopt);
  processes.kill(1);
  const auto begin = Clock::now();
  while (!leader->lost() && seconds_since(begin) < 2.0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(leader->lost(), "rank 1 of 2 was lost: its process ended");
}

// A rank that kills itself between two rounds is named by both others.
TEST(Communicator, AllOthersNameTheSameRank) {
  const std::unique_ptr<Communicator> leader = Communicator::create(3);
  Processes processes(*leader, [](Communicator& c) {
    if (c.rank() == 1) {
      for (int round = 0; round < 5; ++round) c.barrier();
      ::raise(SIGKILL);
    }
    try {
      for (int round = 0; round < 6; ++round) c.barrier();
    } catch (const Error& error) {
      if (std::string_view(error.what()).starts_with("rank 1 of 3")) ::_exit(42);
    }
  });
  EXPECT_THROW(for (int round = 0; round < 6; ++round) leader->barrier(), Error);
  EXPECT_EQ(processes.join(2), 42);
}

TEST(Communicator, ARankCanSayWhyItEnds) {
  const std::unique_ptr<Communicator> leader = Communicator::create(2);
  Processes processes(*leader, [](Communicator& c) {
    c.barrier();
    c.fail("its disk is full");
  });
  leader->barrier();
  try {
    leader->barrier();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 of 2 was lost: its disk is full");
  }
}

TEST(Communicator, GroupsAndMessages) {
  on_processes(4, [](Communicator& c) { groups_and_messages(c); });
  on_threads(4, [](Communicator& c) { groups_and_messages(c); });
}

TEST(Communicator, PairsInGroups) {
  on_processes(8, [](Communicator& c) { pairs_in_groups(c, 4); });
  on_threads(8, [](Communicator& c) { pairs_in_groups(c, 4); });
}

// A sender may be ahead of its receiver by kLetters pieces.
TEST(Communicator, MessagesWaitInARing) {
  on_processes(2, [](Communicator& c) {
    const size_t size = Communicator::kLetters * Communicator::kOutboxBytes;
    std::vector<std::byte> message(size);
    for (size_t i = 0; i < size; ++i) message[i] = static_cast<std::byte>(i % 241);
    if (c.rank() == 0) c.send(1, message);
    c.barrier();  // nothing was received yet
    for (int more = 0; more < 3; ++more) {
      std::vector<std::byte> got(size);
      if (c.rank() == 1) {
        c.receive(0, got);
        ASSERT_TRUE(got == message) << more;
      } else if (more < 2) {
        c.send(1, message);
      }
    }
  });
}

TEST(Communicator, AnUnexpectedMessageIsAnError) {
  on_threads(2, [](Communicator& c) {
    std::vector<std::byte> message(c.rank() == 0 ? 8 : 9);
    if (c.rank() == 0) return c.send(1, message);
    try {
      c.receive(0, message);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 0 of 2 was lost: it sends something else than rank 1 expects");
    }
  });
}

TEST(Communicator, ARankThatWaitsForAMessageNoticesALoss) {
  const std::unique_ptr<Communicator> leader = Communicator::create(3);
  Processes processes(*leader, [](Communicator& c) {
    if (c.rank() == 1) ::pause();
    std::vector<std::byte> message(1);
    try {
      c.receive(0, message);  // which itself waits for rank 1
    } catch (const Error& error) {
      if (std::string_view(error.what()).find("rank 1 of 3") != std::string_view::npos) ::_exit(42);
    }
  });
  while (!leader->joined(1) || !leader->joined(2)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = Clock::now();
  processes.kill(1);
  std::vector<std::byte> message(1);
  EXPECT_THROW(leader->receive(1, message), Error);
  EXPECT_EQ(processes.join(2), 42);
  EXPECT_LT(seconds_since(begin), 2.0);
}

TEST(Communicator, RanksThatCallDifferentCollectivesAreAnError) {
  on_threads(2, [](Communicator& c) {
    std::vector<float> values(static_cast<size_t>(c.rank() + 1));
    EXPECT_THROW(c.all_reduce_sum(values), Error);
  });
}

TEST(Communicator, JoiningIsChecked) {
  const std::unique_ptr<Communicator> leader = Communicator::create(2);
  EXPECT_FALSE(leader->joined(1));
  EXPECT_THROW(Communicator::join(::dup(leader->fd()), 2), Error);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_THROW(Communicator::join(pipe[0], 1), Error);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace sluice::communicator_test
