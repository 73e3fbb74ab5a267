// Starts, feeds and ends the processes of the ranks.
#include "engine/ranks.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "engine/load.h"
#include "engine/runner.h"
#include "parallel/mpi.h"
#include "parallel/share.h"
#include "sluice/error.h"

extern char** environ;

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRankFd = 3;  // the descriptor of the shared memory in a new rank
constexpr auto kStartLimit = std::chrono::seconds(30);
constexpr auto kEndLimit = std::chrono::seconds(2);
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr auto kWatchEvery = std::chrono::milliseconds(250);

std::string& rank_command() {
  static std::string command;
  return command;
}

struct OptionWriter {
  Json& json;
  template <class T>
  void operator()(const char* name, const T& value, const char*, const std::vector<std::string>& = {}) const {
    json[name] = value;
  }
};

struct OptionReader {
  const Json& json;
  template <class T>
  void operator()(const char* name, T& value, const char*, const std::vector<std::string>& = {}) const {
    value = json.at(name).get<T>();
  }
};

// The options as a message. The table of sluice/options.h names all but the model.
std::vector<std::byte> to_message(EngineOptions options) {
  Json json = {{"model", options.model}};
  visit(OptionWriter{json}, options);
  const std::string text = dump_json(json);
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

EngineOptions options_of(const std::vector<std::byte>& message) {
  const Json json = parse_json({reinterpret_cast<const char*>(message.data()), message.size()});
  EngineOptions options;
  options.model = json.at("model").get<std::string>();
  visit(OptionReader{json}, options);
  return options;
}

// Tells the ranks that wait for a batch to end: that is what the empty message means.
void end_ranks(Communicator& communicator) {
  try {
    std::vector<std::byte> end;
    if (!communicator.lost()) communicator.broadcast(end, 0);
  } catch (const Error& e) {
    log::debug("{}", e.what());  // a rank that is lost has ended, too
  }
}

// The other ranks' processes, as seen by rank 0.
class RankProcesses {
 public:
  explicit RankProcesses(const EngineOptions& options) : communicator_(Communicator::create(ranks_of(options))) {
    try {
      for (int rank = 1; rank < communicator_->size(); ++rank) processes_[rank] = start(rank);
      wait_until_joined();
      std::vector<std::byte> message = to_message(options);
      communicator_->broadcast(message, 0);
    } catch (...) {
      kill_all();
      throw;
    }
  }

  // Ranks that wait for a batch end at once. A rank that does not end is killed.
  ~RankProcesses() {
    end_ranks(*communicator_);
    const auto limit = Clock::now() + kEndLimit;
    while (!processes_.empty() && Clock::now() < limit) {
      std::erase_if(processes_, [](const auto& process) { return ::waitpid(process.second, nullptr, WNOHANG) != 0; });
      if (!processes_.empty()) std::this_thread::sleep_for(kPoll);
    }
    kill_all();
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  Communicator& communicator() const { return *communicator_; }

 private:
  pid_t start(int rank) const {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, communicator_->fd(), kRankFd);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, kRankFd + 1);
    std::string name = "sluice", command = rank_command(), fd = std::to_string(kRankFd), number = std::to_string(rank);
    char* words[] = {name.data(), command.data(), fd.data(), number.data(), nullptr};
    pid_t pid = -1;
    const int failure = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, words, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (failure != 0 || pid <= 0) {
      throw Error(ErrorCode::kInternal, fmt::format("rank {} could not be started: {}", rank, std::strerror(failure)));
    }
    return pid;
  }

  void wait_until_joined() {
    const auto limit = Clock::now() + kStartLimit;
    for (auto process = processes_.begin(); process != processes_.end();) {
      const auto [rank, pid] = *process;
      if (communicator_->joined(rank)) {
        ++process;
        continue;
      }
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) != 0) {
        processes_.erase(process);
        throw Error(ErrorCode::kInternal, fmt::format("rank {} ended at its start, with status {}", rank,
                                                      WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)));
      }
      if (Clock::now() > limit) {
        throw Error(ErrorCode::kInternal, fmt::format("rank {} did not start within {} s", rank, kStartLimit.count()));
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

  void kill_all() {
    for (const auto& [rank, pid] : processes_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    processes_.clear();
  }

  std::unique_ptr<Communicator> communicator_;
  std::map<int, pid_t> processes_;  // by rank; those that have not ended
};

// Ends this process if another rank is lost while no collective would notice, for example while weights are loaded.
class Watch {
 public:
  explicit Watch(const Communicator& communicator) : thread_([this, &communicator] { run(communicator); }) {}
  ~Watch() {
    {
      const std::scoped_lock lock(mutex_);
      over_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run(const Communicator& communicator) {
    std::unique_lock lock(mutex_);
    const auto over = [this] { return over_; };
    while (!wake_.wait_for(lock, kWatchEvery, over)) {
      if (!communicator.lost()) continue;
      if (!wake_.wait_for(lock, 4 * kWatchEvery, over)) ::_exit(1);  // the rank had time to end in good order
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

// What rank 0 knows of the ranks that a launcher started.
struct Launched {
  std::shared_ptr<Communicator> communicator{};  // null: no launcher started this process
  RankPlace place{};
  bool follow_model = false;  // the others have got the options of a model
};

Launched& launched() {
  static Launched ranks;
  return ranks;
}

// Throws unless a launcher started as many processes as the options need.
void check_world(const EngineOptions& options, int processes) {
  if (processes == ranks_of(options)) return;
  refuse_mpi(fmt::format(
      "the launcher started {} process{}, but --tensor-parallel-size {} x --pipeline-parallel-size {} needs {}",
      processes, processes == 1 ? "" : "es", options.tensor_parallel_size, options.pipeline_parallel_size,
      ranks_of(options)));
}

bool by_launcher(const EngineOptions& options) { return options.distributed_executor_backend == "mpi"; }

// Ends the launched ranks. Their communicator stays, for the end of the processes.
void end_launched(Communicator* communicator) { end_ranks(*communicator); }

// Hands the options to the launched ranks. They end with the returned communicator.
std::shared_ptr<Communicator> lead_launched(const EngineOptions& options) {
  check_launched(options);
  Launched& ranks = launched();
  if (ranks.follow_model) refuse_mpi("the launched ranks compute one model (expected one, loaded once)");
  check_world(options, ranks.communicator->size());
  ranks.follow_model = true;
  std::vector<std::byte> message = to_message(options);
  ranks.communicator->broadcast(message, 0);
  return {ranks.communicator.get(), end_launched};
}

// Binds this process to its share of the CPUs, so that the ranks' pinned threads do not meet on one.
void bind_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

int ranks_of(const EngineOptions& options) { return options.tensor_parallel_size * options.pipeline_parallel_size; }

void check_ranks(const EngineOptions& options) {
  if (ranks_of(options) <= Communicator::kMostRanks) return;
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("--tensor-parallel-size {} with --pipeline-parallel-size {}: {} ranks (expected at most {})",
                          options.tensor_parallel_size, options.pipeline_parallel_size, ranks_of(options),
                          Communicator::kMostRanks));
}

void check_launched(const EngineOptions& options) {
  if (!by_launcher(options) || launched().communicator != nullptr) return;
  refuse_mpi("only a command of the sluice program, with this option in its command line, can join launched ranks");
}

RankPlace place_of(const EngineOptions& options, int rank) {
  if (by_launcher(options)) return launched().place;
  const int ranks = ranks_of(options);
  return {std::max(options.data_parallel_rank, 0) * ranks + rank, options.data_parallel_size * ranks};
}

std::vector<int> cpus_of(const RankPlace& place) {
  const std::vector<int> cpus = cpus_by_node();
  const Share share = share_of(static_cast<int64_t>(cpus.size()), place.index, place.count);
  return {cpus.begin() + share.begin, cpus.begin() + share.begin + share.count};
}

void set_rank_command(std::string command) { rank_command() = std::move(command); }

int threads_of_rank(const EngineOptions& options, int rank) {
  const RankPlace place = place_of(options, rank);
  int64_t total = options.threads;
  if (total != 0 && by_launcher(options)) {
    return static_cast<int>(std::max<int64_t>(1, share_of(total, rank, ranks_of(options)).count));
  }
  if (total == 0) {
    if (place.count == 1) return 0;  // as many as the pool wants
    total = static_cast<int64_t>(cpus_by_node().size());
  }
  return static_cast<int>(std::max<int64_t>(1, share_of(total, place.index, place.count).count));
}

std::shared_ptr<Communicator> start_ranks(const EngineOptions& options) {
  if (by_launcher(options)) return lead_launched(options);
  if (rank_command().empty()) {
    const std::string_view option =
        options.tensor_parallel_size > 1 ? "tensor-parallel-size" : "pipeline-parallel-size";
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--{}: only the sluice program can start further ranks (expected 1)", option),
                option == "tensor-parallel-size" ? "tensor_parallel_size" : "pipeline_parallel_size", "invalid_option");
  }
  auto processes = std::make_shared<RankProcesses>(options);
  Communicator* communicator = &processes->communicator();
  return {std::move(processes), communicator};
}

namespace {

// Signals to the whole group are for rank 0, which ends the others when its requests are done. It also says what there
// is to say.
void leave_signals_and_log_to_rank_0() {
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
  log::set_level(log::Level::kError);
}

int follow(const std::shared_ptr<Communicator>& communicator) {
  const int rank = communicator->rank();
  try {
    std::vector<std::byte> message;
    communicator->broadcast(message, 0);
    if (message.empty()) return 0;  // rank 0 ends without a model
    const EngineOptions options = options_of(message);
    const Watch watch(*communicator);
    const int threads = threads_of_rank(options, rank);
    bind_to(cpus_of(place_of(options, rank)));
    ThreadPool pool(threads);
    LoadedModel loaded = load_model(options, pool, {}, communicator);
    const auto make_rows = [&] {
      return std::make_unique<RankRows>(
          options, loaded, [] {}, nullptr);
    };
    Runner(loaded).follow(make_rows);
    return 0;
  } catch (const std::exception& e) {
    const bool mine = !communicator->lost();
    communicator->fail(e.what());
    if (mine) log::error("rank {}: {}", rank, e.what());
    return 1;
  }
}

}  // namespace

int run_rank(int fd, int rank) {
  leave_signals_and_log_to_rank_0();
  return follow(Communicator::join(fd, rank));
}

namespace {

// Where this process is among those of its machine that may use the same CPUs. Launchers often give each process CPUs
// of its own.
RankPlace place_among(Communicator& communicator, const std::vector<int>& machines) {
  struct Cpus {
    int machine = 0;
    cpu_set_t set = {};
  };
  std::vector<Cpus> all(machines.size());
  const auto me = static_cast<size_t>(communicator.rank());
  Cpus mine{.machine = machines[me]};
  CHECK(::sched_getaffinity(0, sizeof mine.set, &mine.set) == 0, "sched_getaffinity: {}", std::strerror(errno));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  RankPlace place{.index = 0, .count = 0};
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].machine != mine.machine || CPU_EQUAL(&all[i].set, &mine.set) == 0) continue;
    place.index += i < me ? 1 : 0;
    ++place.count;
  }
  return place;
}

// Rank 0's command; ends the other ranks if it loaded no model that they follow. With a model they have ended.
int lead(const std::shared_ptr<Communicator>& communicator, const std::function<int()>& command) {
  const auto end = [&] {
    if (!launched().follow_model) end_ranks(*communicator);
  };
  try {
    const int status = command();
    end();
    return status;
  } catch (...) {
    end();
    throw;
  }
}

// A launcher ends all processes when one of them fails. Before that, rank 0 has time to end its requests and to say
// what happened.
constexpr auto kTimeForRank0 = std::chrono::seconds(3);
}  // namespace

int run_launched(const EngineOptions& options, const std::function<int()>& command) {
  if (options.data_parallel_size > 1) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--data-parallel-size {} cannot be used with --distributed-executor-backend mpi: launch a "
                            "server for each replica, behind sluice route",
                            options.data_parallel_size));
  }
  check_ranks(options);
  const std::shared_ptr<Mpi> mpi = Mpi::start();
  const bool leads = mpi->rank() == 0;
  if (!leads) leave_signals_and_log_to_rank_0();
  const std::vector<int> machines = mpi->machines();
  if (mpi->size() != ranks_of(options)) {  // all processes see that, and rank 0 says it
    mpi->finish();
    if (leads) check_world(options, mpi->size());
    return 0;  // a launcher ends all processes after the first failure, and rank 0's message could be lost
  }
  const std::shared_ptr<Communicator> communicator = Communicator::connect(mpi, machines);
  launched() = {.communicator = communicator, .place = place_among(*communicator, machines)};
  const auto leave = [&] {
    launched() = {};
    if (!communicator->lost()) {
      communicator->leave();
      mpi->finish();
    } else if (!leads) {
      std::this_thread::sleep_for(kTimeForRank0);
    }
  };
  try {
    const int status = leads ? lead(communicator, command) : follow(communicator);
    leave();
    return status;
  } catch (...) {
    leave();
    throw;
  }
}

}  // namespace sluice
