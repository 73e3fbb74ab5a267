// Open MPI behind the interface of a link. A mutex lets one thread call the library at a time, and no call waits.
#include "parallel/mpi.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "sluice/error.h"

#if SLUICE_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif

namespace sluice {
namespace {

#if SLUICE_MPI

// What Open MPI's launcher and Slurm with PMIx tell the processes that they start.
bool launched() {
  constexpr std::array kVariables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"};
  return std::ranges::any_of(kVariables, [](const char* name) { return std::getenv(name) != nullptr; });
}

// The functions and objects of the library that are used.
struct Library {
  decltype(&MPI_Init_thread) init_thread = nullptr;
  decltype(&MPI_Finalize) finalize = nullptr;
  decltype(&MPI_Comm_rank) comm_rank = nullptr;
  decltype(&MPI_Comm_size) comm_size = nullptr;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler = nullptr;
  decltype(&MPI_Comm_split_type) comm_split_type = nullptr;
  decltype(&MPI_Comm_free) comm_free = nullptr;
  decltype(&MPI_Bcast) bcast = nullptr;
  decltype(&MPI_Allgather) allgather = nullptr;
  decltype(&MPI_Sendrecv) sendrecv = nullptr;
  decltype(&MPI_Isend) isend = nullptr;
  decltype(&MPI_Improbe) improbe = nullptr;
  decltype(&MPI_Imrecv) imrecv = nullptr;
  decltype(&MPI_Test) test = nullptr;
  decltype(&MPI_Get_count) get_count = nullptr;
  decltype(&MPI_Error_string) error_string = nullptr;
  MPI_Comm world = nullptr;
  MPI_Datatype byte = nullptr;
  MPI_Errhandler errors_return = nullptr;
  MPI_Info no_info = nullptr;
  int (**show_help)(const char*, const char*, int, ...) = nullptr;  // null: this version has none

  // The plugins of Open MPI find its symbols only if they are global.
  Library() {
    void* library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) refuse_mpi(fmt::format("cannot load Open MPI ({}); install libopenmpi3", dlerror()));
    const auto load = [&](const char* name, auto& symbol) {
      symbol = reinterpret_cast<std::remove_reference_t<decltype(symbol)>>(dlsym(library, name));
      if (symbol == nullptr) refuse_mpi(fmt::format("libmpi.so.40 has no {}", name));
    };
    load("MPI_Init_thread", init_thread), load("MPI_Finalize", finalize);
    load("MPI_Comm_rank", comm_rank), load("MPI_Comm_size", comm_size);
    load("MPI_Comm_set_errhandler", comm_set_errhandler);
    load("MPI_Comm_split_type", comm_split_type), load("MPI_Comm_free", comm_free);
    load("MPI_Bcast", bcast), load("MPI_Allgather", allgather), load("MPI_Sendrecv", sendrecv);
    load("MPI_Isend", isend), load("MPI_Improbe", improbe), load("MPI_Imrecv", imrecv);
    load("MPI_Test", test), load("MPI_Get_count", get_count), load("MPI_Error_string", error_string);
    load("ompi_mpi_comm_world", world), load("ompi_mpi_byte", byte);
    load("ompi_mpi_errors_return", errors_return), load("ompi_mpi_info_null", no_info);
    show_help = reinterpret_cast<decltype(show_help)>(dlsym(library, "opal_show_help"));
  }
};

int explain_nothing(const char*, const char*, int, ...) { return 0; }

class OpenMpi final : public Mpi {
 public:
  OpenMpi() {
    int provided = 0;
    check(mpi_.init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) refuse_mpi("this Open MPI cannot be called by several threads");
    mpi_.comm_set_errhandler(mpi_.world, mpi_.errors_return);
    // When a connection breaks, Open MPI 4 explains it through the launcher, inside of whatever call comes next. That
    // call does not return if the launcher is ending the ranks, and rank 0 could not end its requests.
    if (mpi_.show_help != nullptr) *mpi_.show_help = explain_nothing;
    check(mpi_.comm_rank(mpi_.world, &rank_), "MPI_Comm_rank");
    check(mpi_.comm_size(mpi_.world, &size_), "MPI_Comm_size");
    connect_all();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<int> machines() override {
    const std::scoped_lock lock(mutex_);
    MPI_Comm local = nullptr;
    check(mpi_.comm_split_type(mpi_.world, MPI_COMM_TYPE_SHARED, rank_, mpi_.no_info, &local), "MPI_Comm_split_type");
    int first = rank_;  // rank 0 of the machine names it
    check(mpi_.bcast(&first, sizeof first, mpi_.byte, 0, local), "MPI_Bcast");
    check(mpi_.comm_free(&local), "MPI_Comm_free");
    std::vector<int> all(static_cast<size_t>(size_));
    check(mpi_.allgather(&first, sizeof first, mpi_.byte, all.data(), sizeof first, mpi_.byte, mpi_.world),
          "MPI_Allgather");
    return all;
  }

  void finish() override {
    const std::scoped_lock lock(mutex_);
    check(mpi_.finalize(), "MPI_Finalize");
  }

  void send(int to, Channel channel, std::span<const std::byte> message) override {
    const std::scoped_lock lock(mutex_);
    MPI_Request request = nullptr;
    check(mpi_.isend(message.data(), static_cast<int>(message.size()), mpi_.byte, to, static_cast<int>(channel),
                     mpi_.world, &request),
          "MPI_Isend");
    if (!done(request)) sending_[static_cast<size_t>(channel)].push_back(request);
  }

  bool sent(Channel channel) override {
    const std::scoped_lock lock(mutex_);
    std::vector<MPI_Request>& requests = sending_[static_cast<size_t>(channel)];
    size_t left = 0;
    for (MPI_Request request : requests) {
      if (!done(request)) requests[left++] = request;
    }
    requests.resize(left);
    return left == 0;
  }

  std::optional<size_t> receive(int from, Channel channel, std::span<std::byte> buffer) override {
    const std::scoped_lock lock(mutex_);
    Receiving& receiving = receiving_[{from, channel}];
    if (receiving.request == nullptr && !begin(from, channel, buffer, receiving)) return std::nullopt;
    if (!done(receiving.request)) return std::nullopt;
    receiving.request = nullptr;
    receiving.dropped.clear();
    return receiving.size;
  }

 private:
  struct Receiving {
    MPI_Request request = nullptr;
    size_t size = 0;
    std::vector<std::byte> dropped{};  // a message that is longer than its buffer
  };

  bool begin(int from, Channel channel, std::span<std::byte> buffer, Receiving& receiving) {
    int found = 0, bytes = 0;
    MPI_Message message = nullptr;
    MPI_Status status = {};
    check(mpi_.improbe(from, static_cast<int>(channel), mpi_.world, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return false;
    check(mpi_.get_count(&status, mpi_.byte, &bytes), "MPI_Get_count");
    receiving.size = static_cast<size_t>(bytes);
    if (receiving.size > buffer.size()) {
      receiving.dropped.resize(receiving.size);
      buffer = receiving.dropped;
    }
    check(mpi_.imrecv(buffer.data(), bytes, mpi_.byte, &message, &receiving.request), "MPI_Imrecv");
    return true;
  }

  // Open MPI connects two processes when one first sends to the other, which takes several calls of both. Later sends
  // must not wait for that.
  void connect_all() {
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
      char sent = 0, got = 0;
      check(mpi_.sendrecv(&sent, 1, mpi_.byte, to, kChannels, &got, 1, mpi_.byte, from, kChannels, mpi_.world,
                          MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
    }
  }

  bool done(MPI_Request& request) const {
    int finished = 0;
    check(mpi_.test(&request, &finished, MPI_STATUS_IGNORE), "MPI_Test");
    return finished != 0;
  }

  void check(int status, const char* function) const {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    mpi_.error_string(status, text, &length);
    throw Error(ErrorCode::kInternal, fmt::format("{} failed: {}", function, text));
  }

  const Library mpi_;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;
  std::array<std::vector<MPI_Request>, kChannels> sending_;
  std::map<std::pair<int, Channel>, Receiving> receiving_;
};

#endif

}  // namespace

void refuse_mpi(const std::string& why) {
  throw Error(ErrorCode::kInvalidRequest, "--distributed-executor-backend mpi: " + why, "distributed_executor_backend",
              "invalid_option");
}

std::unique_ptr<Mpi> Mpi::start() {
#if SLUICE_MPI
  if (!launched()) refuse_mpi("no launcher started this process; start it by 'mpirun -np RANKS' or 'srun --mpi=pmix'");
  return std::make_unique<OpenMpi>();
#else
  refuse_mpi("this program was built without Open MPI (install libopenmpi-dev and build it again, or use local)");
#endif
}

}  // namespace sluice
