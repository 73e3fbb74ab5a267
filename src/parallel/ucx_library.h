// The functions of UCX's library (libucp) that are used, and its contexts. Only for programs that are built with UCX's
// header.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstdint>
#include <mutex>

namespace sluice {

class UcxLibrary {
 public:
  // Opens the library. Throws Error(kInvalidRequest) that names --kv-transfer-backend if it cannot be used.
  UcxLibrary();
  ~UcxLibrary();
  UcxLibrary(const UcxLibrary&) = delete;
  UcxLibrary& operator=(const UcxLibrary&) = delete;

  // How a worker may reach the other process.
  enum class Reach : uint8_t {
    kAnywhere,      // by what works between machines
    kSharedMemory,  // the two share a machine and a user, and see each other's numbers
    kCopies,        // and each can copy the other one's memory
  };
  // What workers are made in. Any thread. Throws Error(kInternal).
  ucp_context_h context(Reach reach);
  // Throws Error(kInternal).
  void check(ucs_status_t status, const char* function) const;

  decltype(&ucp_init_version) init_version = nullptr;
  decltype(&ucp_cleanup) cleanup = nullptr;
  decltype(&ucp_context_query) context_query = nullptr;
  decltype(&ucp_config_read) config_read = nullptr;
  decltype(&ucp_config_modify) config_modify = nullptr;
  decltype(&ucp_config_release) config_release = nullptr;
  decltype(&ucp_worker_create) worker_create = nullptr;
  decltype(&ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&ucp_worker_arm) worker_arm = nullptr;
  decltype(&ucp_worker_progress) worker_progress = nullptr;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&ucp_ep_create) ep_create = nullptr;
  decltype(&ucp_ep_close_nbx) ep_close = nullptr;
  decltype(&ucp_am_send_nbx) am_send = nullptr;
  decltype(&ucp_am_recv_data_nbx) am_recv_data = nullptr;
  decltype(&ucp_am_data_release) am_data_release = nullptr;
  decltype(&ucp_request_check_status) request_check_status = nullptr;
  decltype(&ucp_request_free) request_free = nullptr;
  decltype(&ucs_status_string) status_string = nullptr;

 private:
  ucp_context_h make_context(Reach reach) const;

  std::mutex mutex_;
  std::array<ucp_context_h, 3> contexts_{};  // made when they are first needed
};

}  // namespace sluice
