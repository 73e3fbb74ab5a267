// Translates the server's options and checks their ranges.
#include "server/transport_options.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "base/cgroup.h"
#include "sluice/error.h"

namespace sluice::server {
namespace {

// An eighth of the memory that the process may use, between 64 MiB and 1 GiB, and always one body.
int64_t default_total_body_bytes(int64_t max_body_bytes) {
  const auto machine = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  const size_t group = cgroup_memory().total;
  const int64_t memory = group < static_cast<size_t>(machine) ? static_cast<int64_t>(group) : machine;
  return std::max(max_body_bytes, std::clamp<int64_t>(memory / 8, 64 << 20, 1 << 30));
}

}  // namespace

HttpServerOptions transport_options(const ServerOptions& o) {
  if (o.ssl_certfile.empty() != o.ssl_keyfile.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "--ssl-certfile and --ssl-keyfile need each other", "ssl-certfile", "");
  }
  visit_ranges(
      [](const char* name, int64_t value, int64_t least, int64_t most) {
        if (value >= least && value <= most) return;
        throw Error(ErrorCode::kInvalidRequest,
                    fmt::format("--{}: {} is out of range (expected {} to {})", name, value, least, most), name, "");
      },
      o);
  if (o.max_total_body_bytes > 0 && o.max_total_body_bytes < o.max_body_bytes) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--max-total-body-bytes: {} is less than --max-body-bytes ({}), so no such body would fit",
                            o.max_total_body_bytes, o.max_body_bytes),
                "max-total-body-bytes", "");
  }
  HttpServerOptions out;
  out.host = o.host;
  out.port = o.port;
  out.certificate_file = o.ssl_certfile;
  out.key_file = o.ssl_keyfile;
  out.limits.header_bytes = o.max_header_bytes;
  out.limits.body_bytes = o.max_body_bytes;
  out.total_body_bytes =
      o.max_total_body_bytes > 0 ? o.max_total_body_bytes : default_total_body_bytes(o.max_body_bytes);
  out.max_connections = o.max_connections;
  out.max_connections_per_address = o.max_connections_per_address;
  out.threads = o.io_threads;
  out.header_timeout = std::chrono::milliseconds(o.header_timeout_ms);
  out.body_timeout = std::chrono::milliseconds(o.body_timeout_ms);
  out.body_total_timeout = std::chrono::milliseconds(o.body_total_timeout_ms);
  out.keep_alive_timeout = std::chrono::milliseconds(o.keep_alive_timeout_ms);
  return out;
}

}  // namespace sluice::server
