// What a process does before it serves: standard descriptors, the limit on open files, and warnings about options that
// are legal but unsafe.
#pragma once

#include "sluice/options.h"

namespace sluice::server {

// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed. Otherwise a socket could get such a number,
// and log lines would go to a client.
void open_standard_descriptors();

// Writing beyond a limit on file sizes (ulimit -f) becomes an error of the write instead of ending the process.
void ignore_file_size_signal();

// Raises the limit on open files as far as the system allows. Returns how many of `connections` fit into it, at least
// 1, and logs a warning if that is fewer.
int fit_connections(int connections);

// Logs a warning for each: keys or TLS keys in files that other users may read, and a server without API keys that the
// network reaches (`loopback` is false).
void warn_about(const ServerOptions& options, bool loopback, bool requires_key);

}  // namespace sluice::server
