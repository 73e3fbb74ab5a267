// Options of `sluice route`, declared once: flags, environment variables and docs/options.md are made from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::route {

struct RouteOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> replica{};  // http://HOST:PORT of each
  // Instead of replicas: servers that compute prompts, and those that go on with them.
  std::vector<std::string> prefill{}, decode{};
  int64_t prefill_min_bytes = 2048;  // a shorter body goes to a decode server alone
  std::string policy = "cache";      // cache, least-load, round-robin
  int max_imbalance = 2;             // load that a replica may have above 5/4 of the least loaded one's
  int64_t prefix_table_bytes = 32 << 20;
  int max_retries = 2;  // further replicas that get a request whose replica failed
  int health_interval_ms = 1000;
  int health_timeout_ms = 2000;
  int connect_timeout_ms = 1000;
  int replica_timeout_ms = 600'000;  // without a byte from the replica
  int64_t max_body_bytes = 32 << 20;
  int64_t max_total_body_bytes = 0;  // 0: an eighth of memory, at most 1 GiB
  int max_header_bytes = 64 << 10;
  int max_connections = 16384;
  int max_connections_per_address = 0;  // 0: half of max_connections, without a limit for loopback addresses
  int header_timeout_ms = 10'000;
  int body_timeout_ms = 30'000;
  int keep_alive_timeout_ms = 75'000;
  int shutdown_timeout_ms = 30'000;
  int io_threads = 1;
  std::string ssl_certfile{}, ssl_keyfile{};
  std::vector<std::string> allowed_hosts{};
  std::string log_level = "info";
  std::string log_format = "text";
};

// Calls v(name, reference, "what it is", {allowed values, if the set is closed}) for each option.
template <class V>
void visit(V&& v, RouteOptions& o) {
  v("host", o.host, "addresses to listen on, with commas between them");
  v("port", o.port, "TCP port (0: any free one)");
  v("replica", o.replica, "address of a replica, http://HOST:PORT; repeat it for each replica");
  v("prefill", o.prefill,
    "instead of --replica: address of a server that computes prompts, started with --kv-transfer-listen; repeat it");
  v("decode", o.decode,
    "instead of --replica: address of a server that goes on with these prompts, started with --kv-transfer-peer; "
    "repeat it");
  v("prefill-min-bytes", o.prefill_min_bytes,
    "size of the smallest body whose prompt is computed by a --prefill server");
  v("policy", o.policy,
    "which replica gets a request: cache (the one that knows most of the prompt), least-load or round-robin",
    {"cache", "least-load", "round-robin"});
  v("max-imbalance", o.max_imbalance,
    "load that a replica may have above 5/4 of the least loaded one's and still get a request for its cache or "
    "session");
  v("prefix-table-bytes", o.prefix_table_bytes, "memory for the table of prompts that replicas have computed");
  v("max-retries", o.max_retries,
    "further replicas that get a request if its replica failed before the first byte of an answer");
  v("health-interval-ms", o.health_interval_ms, "time between two requests to a replica's /health");
  v("health-timeout-ms", o.health_timeout_ms, "time limit for the answer of /health");
  v("connect-timeout-ms", o.connect_timeout_ms, "time limit to connect to a replica");
  v("replica-timeout-ms", o.replica_timeout_ms,
    "time limit without a byte from a replica that has a request (0: no limit)");
  v("max-body-bytes", o.max_body_bytes, "maximum size of a request body");
  v("max-total-body-bytes", o.max_total_body_bytes,
    "bodies of all requests together; more get 503 (0: an eighth of memory, at most 1 GiB)");
  v("max-header-bytes", o.max_header_bytes, "maximum size of a request header, and of a replica's answer's header");
  v("max-connections", o.max_connections, "maximum open connections of clients");
  v("max-connections-per-address", o.max_connections_per_address,
    "open connections of one IPv4 address or IPv6 /64 network (0: half of max-connections, none for loopback)");
  v("header-timeout-ms", o.header_timeout_ms, "time limit to receive a request header");
  v("body-timeout-ms", o.body_timeout_ms,
    "time limit without progress in receiving a body or in the client's reading of the answer");
  v("keep-alive-timeout-ms", o.keep_alive_timeout_ms, "how long an idle connection of a client is kept open");
  v("shutdown-timeout-ms", o.shutdown_timeout_ms, "time for running requests to finish after SIGTERM");
  v("io-threads", o.io_threads, "threads for connections");
  v("ssl-certfile", o.ssl_certfile, "TLS certificate chain (PEM)");
  v("ssl-keyfile", o.ssl_keyfile, "TLS private key (PEM)");
  v("allowed-hosts", o.allowed_hosts,
    "names accepted in the Host header besides local ones; *: any. Without it, any name unless bound to loopback");
  v("log-level", o.log_level, "lowest level that is logged", {"debug", "info", "warning", "error", "off"});
  v("log-format", o.log_format, "form of the log: lines of text, or lines of JSON", {"text", "json"});
}

// v(name, value, least, most) for each integer option.
template <class V>
void visit_ranges(V&& v, const RouteOptions& o) {
  constexpr int64_t kDayMs = 86'400'000, kBytes = int64_t{1} << 40;
  v("port", o.port, 0, 65535);
  v("prefill-min-bytes", o.prefill_min_bytes, 0, kBytes);
  v("max-imbalance", o.max_imbalance, 0, 1'000'000);
  v("prefix-table-bytes", o.prefix_table_bytes, 0, kBytes);
  v("max-retries", o.max_retries, 0, 63);
  v("health-interval-ms", o.health_interval_ms, 10, kDayMs);
  v("health-timeout-ms", o.health_timeout_ms, 10, kDayMs);
  v("connect-timeout-ms", o.connect_timeout_ms, 1, kDayMs);
  v("replica-timeout-ms", o.replica_timeout_ms, 0, kDayMs);
  v("max-body-bytes", o.max_body_bytes, 1, kBytes);
  v("max-total-body-bytes", o.max_total_body_bytes, 0, kBytes);
  v("max-header-bytes", o.max_header_bytes, 1, 1 << 24);
  v("max-connections", o.max_connections, 1, 1'000'000);
  v("max-connections-per-address", o.max_connections_per_address, 0, 1'000'000);
  v("header-timeout-ms", o.header_timeout_ms, 1, kDayMs);
  v("body-timeout-ms", o.body_timeout_ms, 1, kDayMs);
  v("keep-alive-timeout-ms", o.keep_alive_timeout_ms, 1, kDayMs);
  v("shutdown-timeout-ms", o.shutdown_timeout_ms, 0, kDayMs);
  v("io-threads", o.io_threads, 1, 256);
}

}  // namespace sluice::route
