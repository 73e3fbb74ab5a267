// System calls behind the start of a server.
#include "server/startup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/log.h"

namespace sluice::server {
namespace {

// Descriptors that are not connections: the model's files, timers, logs.
constexpr rlim_t kOtherDescriptors = 256;

void warn_about_mode(const char* option, const std::string& file) {
  struct stat status {};
  if (file.empty() || ::stat(file.c_str(), &status) != 0 || (status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  log::warning("--{} {}: other users may read or write this file (mode {:o}); chmod 600 keeps it private", option, file,
               status.st_mode & 0777u);
}

}  // namespace

void open_standard_descriptors() {
  // open() returns the lowest free number, so the loop ends at the first one above 2.
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= 2) continue;
    ::close(fd);
    return;
  }
}

void ignore_file_size_signal() { ::signal(SIGXFSZ, SIG_IGN); }

int fit_connections(int connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return connections;
  const rlim_t room = limit.rlim_cur > 2 * kOtherDescriptors ? limit.rlim_cur - kOtherDescriptors : limit.rlim_cur / 2;
  if (room >= static_cast<rlim_t>(connections)) return connections;
  log::warning("--max-connections {}: only {} fit into the limit of {} open files (ulimit -Hn)", connections, room,
               limit.rlim_cur);
  return std::max(1, static_cast<int>(room));
}

void warn_about(const ServerOptions& options, bool loopback, bool requires_key) {
  warn_about_mode("ssl-keyfile", options.ssl_keyfile);
  warn_about_mode("api-key-file", options.api_key_file);
  if (!loopback && !requires_key) {
    log::warning(
        "--host {}: the network can reach this server, and it needs no API key; set --api-key-file or SLUICE_API_KEY",
        options.host);
  }
}

}  // namespace sluice::server
