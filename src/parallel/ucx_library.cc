// See ucx_library.h.
#if SLUICE_UCX

#include "parallel/ucx_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

#include "parallel/ucx.h"
#include "sluice/error.h"

namespace sluice {
namespace {

// The reader fetches. If the writer stored into the reader's memory, it could do so after the reader gave up.
constexpr std::pair<const char*, const char*> kReaderFetches{"RNDV_SCHEME", "get_zcopy"};
// Where UCX is to report lost peers, it uses neither shared memory (MM) nor copies between processes (CMA), unless told
// that they can do so. Here the connection reports lost peers, and checksums find what a peer took back.
constexpr std::pair<const char*, const char*> kSharedMemoryWorks{"MM_ERROR_HANDLING", "y"};
constexpr std::pair<const char*, const char*> kCopiesWork{"MEMORY_INVALIDATE", "y"};

// UCX's library replaces handlers of signals when it is opened, for backtraces. The program keeps its own.
class KeptSignalHandlers {
 public:
  KeptSignalHandlers() {
    for (int signal = 1; signal < kSignals; ++signal)
      known_[signal] = ::sigaction(signal, nullptr, &actions_[signal]) == 0;
  }
  ~KeptSignalHandlers() {
    for (int signal = 1; signal < kSignals; ++signal) {
      if (known_[signal] && signal != SIGKILL && signal != SIGSTOP) ::sigaction(signal, &actions_[signal], nullptr);
    }
  }
  KeptSignalHandlers(const KeptSignalHandlers&) = delete;
  KeptSignalHandlers& operator=(const KeptSignalHandlers&) = delete;

 private:
  static constexpr int kSignals = 32;
  std::array<bool, kSignals> known_{};
  std::array<struct sigaction, kSignals> actions_{};
};

}  // namespace

UcxLibrary::UcxLibrary() {
  const KeptSignalHandlers kept;
  void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse_ucx(fmt::format("cannot load UCX ({}); install libucx0", dlerror()));
  const auto load = [&](const char* name, auto& symbol) {
    symbol = reinterpret_cast<std::remove_reference_t<decltype(symbol)>>(dlsym(library, name));
    if (symbol == nullptr) refuse_ucx(fmt::format("libucp.so.0 has no {}; UCX 1.13 or later is needed", name));
  };
  load("ucp_init_version", init_version), load("ucp_cleanup", cleanup), load("ucp_context_query", context_query);
  load("ucp_config_read", config_read), load("ucp_config_modify", config_modify);
  load("ucp_config_release", config_release);
  load("ucp_worker_create", worker_create), load("ucp_worker_destroy", worker_destroy);
  load("ucp_worker_get_address", worker_get_address), load("ucp_worker_release_address", worker_release_address);
  load("ucp_worker_get_efd", worker_get_efd), load("ucp_worker_arm", worker_arm);
  load("ucp_worker_progress", worker_progress);
  load("ucp_worker_set_am_recv_handler", worker_set_am_recv_handler);
  load("ucp_ep_create", ep_create), load("ucp_ep_close_nbx", ep_close);
  load("ucp_am_send_nbx", am_send), load("ucp_am_recv_data_nbx", am_recv_data);
  load("ucp_am_data_release", am_data_release);
  load("ucp_request_check_status", request_check_status), load("ucp_request_free", request_free);
  load("ucs_status_string", status_string);
  try {
    context(Reach::kAnywhere);
  } catch (const Error& e) {
    refuse_ucx(e.what());
  }
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_THREAD_MODE;
  if (context_query(contexts_[0], &attributes) != UCS_OK || attributes.thread_mode == UCS_THREAD_MODE_SINGLE) {
    cleanup(contexts_[0]);
    refuse_ucx("this UCX was built without support of threads (--enable-mt)");
  }
}

UcxLibrary::~UcxLibrary() {
  for (const ucp_context_h context : contexts_) {
    if (context != nullptr) cleanup(context);
  }
}

ucp_context_h UcxLibrary::context(Reach reach) {
  const std::scoped_lock lock(mutex_);
  ucp_context_h& context = contexts_[static_cast<size_t>(reach)];
  if (context == nullptr) context = make_context(reach);
  return context;
}

void UcxLibrary::check(ucs_status_t status, const char* function) const {
  if (status == UCS_OK) return;
  throw Error(ErrorCode::kInternal, fmt::format("UCX: {} failed: {}", function, status_string(status)));
}

ucp_context_h UcxLibrary::make_context(Reach reach) const {
  ucp_config_t* config = nullptr;
  check(config_read(nullptr, nullptr, &config), "ucp_config_read");
  const auto set = [&](const auto& setting) { return config_modify(config, setting.first, setting.second); };
  ucs_status_t status = set(kReaderFetches);
  if (std::getenv("UCX_TLS") == nullptr) {  // UCX warns of settings of transports that UCX_TLS leaves out
    if (reach != Reach::kAnywhere) set(kSharedMemoryWorks);
    if (reach == Reach::kCopies) set(kCopiesWork);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  if (status == UCS_OK) status = init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  config_release(config);
  check(status, "ucp_init");
  return context;
}

}  // namespace sluice

#endif
