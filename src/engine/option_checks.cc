#include "engine/option_checks.h"

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "engine/packed_cache.h"
#include "engine/transfer_rules.h"
#include "scheduler/policy.h"
#include "sluice/error.h"
#include "sluice/request.h"
#include "speculative/options.h"

namespace sluice {

void check_options(const EngineOptions& o) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) throw Error(ErrorCode::kInvalidRequest, fmt::format("--{} must be at least 1", name));
  };
  if (o.max_num_seqs < 0) throw Error(ErrorCode::kInvalidRequest, "--max-num-seqs must not be negative");
  positive("max-num-queued-reqs", o.max_num_queued_reqs);
  find_policy(o.scheduling_policy);  // throws for an unknown name
  if (o.block_size != 8 && o.block_size != 16 && o.block_size != 32 && o.block_size != 64) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--block-size: unsupported value {} (expected one of: 8, 16, 32, 64)", o.block_size));
  }
  if (o.max_num_batched_tokens < 0 || o.max_num_batched_tokens > 1 << 20) {
    throw Error(ErrorCode::kInvalidRequest, "--max-num-batched-tokens is out of range (expected 0 to 1048576)");
  }
  if (!(o.gpu_memory_utilization > 0 && o.gpu_memory_utilization <= 1)) {
    throw Error(ErrorCode::kInvalidRequest, "--gpu-memory-utilization is out of range (expected above 0, at most 1)");
  }
  if (o.prefix_cache_eviction != "lru" && o.prefix_cache_eviction != "lfu") {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("--prefix-cache-eviction: unknown value '{}' (expected one of: "
                                                        "lru, lfu)",
                                                        o.prefix_cache_eviction));
  }
  if (o.context_keep < -1) {
    throw Error(ErrorCode::kInvalidRequest, "--context-keep is out of range (expected -1, 0 or more tokens)");
  }
  if (o.contrastive_search_tokens < 0) {
    throw Error(ErrorCode::kInvalidRequest, "--contrastive-search-tokens is out of range (expected 0 or more tokens)");
  }
  if (o.session_ttl < 1 || o.session_ttl > kMostSessionSeconds) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--session-ttl is out of range (expected 1 to {} seconds)", kMostSessionSeconds));
  }
  if (!(o.session_cache_share >= 0 && o.session_cache_share <= 1)) {
    throw Error(ErrorCode::kInvalidRequest, "--session-cache-share is out of range (expected 0 to 1)");
  }
  packed_file_check(o, {});  // throws for an unknown value
  if (o.kv_disk_bytes > 0 && o.kv_disk.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "--kv-disk-bytes needs --kv-disk, the folder of the file");
  }
  TransferRules{o};  // throws for a malformed address
  if (o.kv_transfer_backend != "tcp" && o.kv_transfer_backend != "ucx") {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--kv-transfer-backend: unknown value '{}' (expected tcp, ucx)", o.kv_transfer_backend));
  }
  if (o.kv_transfer_backend != "tcp" && o.kv_transfer_listen.empty() && o.kv_transfer_peer.empty()) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--kv-transfer-backend {} needs --kv-transfer-listen or --kv-transfer-peer",
                            o.kv_transfer_backend));
  }
  if (!o.kv_transfer_listen.empty() && o.data_parallel_size > 1) {
    throw Error(ErrorCode::kInvalidRequest,
                "--kv-transfer-listen cannot be used with --data-parallel-size: the replicas would share an address; "
                "start a server for each");
  }
  if (o.data_parallel_size < 1 || o.data_parallel_rank < -1 || o.data_parallel_rank >= o.data_parallel_size) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--data-parallel-rank {} is out of range (expected -1 to {}, below --data-parallel-size)",
                            o.data_parallel_rank, o.data_parallel_size - 1));
  }
  if (o.data_parallel_size > 1 && o.numa != "auto" && o.numa != "off") {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--numa {} cannot be used with --data-parallel-size {}: every replica's memory is one part",
                            o.numa, o.data_parallel_size));
  }
  if (o.max_num_seqs > 1 << 16) throw Error(ErrorCode::kInvalidRequest, "--max-num-seqs must be at most 65536");
}

void refuse_with_ranks(const EngineOptions& o, const ops::Backend& backend) {
  const auto refuse_with = [](const char* ranks, int size, const std::string& option, std::string_view why) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{} cannot be used with --{}-parallel-size {}: {}", option, ranks, size, why));
  };
  const auto refuse = [&](const std::string& option, std::string_view why) {
    const bool tensor = o.tensor_parallel_size > 1;
    refuse_with(tensor ? "tensor" : "pipeline", tensor ? o.tensor_parallel_size : o.pipeline_parallel_size, option,
                why);
  };
  if (!backend.can.collectives) {
    refuse(fmt::format("--backend {}", backend.name), "it has no operations between ranks");
  }
  if (!o.kv_transfer_listen.empty()) refuse("--kv-transfer-listen", "every rank has a part of the keys and values");
  if (!o.kv_transfer_peer.empty()) refuse("--kv-transfer-peer", "every rank has a part of the keys and values");
  if (const auto drafts = parse_speculative_config(o.speculative_config)) {
    if (drafts->own_layers && o.pipeline_parallel_size > 1) {
      refuse_with("pipeline", o.pipeline_parallel_size, "--speculative-config with the method mtp",
                  "only the last stage has the model's hidden states");
    }
  }
  if (o.numa != "auto" && o.numa != "off") refuse("--numa " + o.numa, "every rank's memory is one part");
}

}  // namespace sluice
