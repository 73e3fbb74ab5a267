// A request goes where most of its prompt is cached, or else to the replica with the least to do.
#include "engine/replicas.h"

#include <fmt/core.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/metrics.h"
#include "base/sha256.h"
#include "engine/placement.h"
#include "engine/ranks.h"
#include "engine/row_mover.h"
#include "ops/device.h"

namespace sluice {
namespace {

class Replicas final : public Engine {
 public:
  Replicas(std::vector<std::unique_ptr<Engine>> engines, ReplicaRestart restart)
      : placement_(static_cast<int>(engines.size())),
        info_(info_of(engines)),
        slots_(std::move(engines), std::move(restart), [this](int failed) { placement_.forget_prefixes(failed); }) {}

  const ModelInfo& model() const override { return info_; }
  std::vector<TokenId> tokenize(std::string_view text, bool add_special_tokens) const override {
    return slots_.any()->tokenize(text, add_special_tokens);
  }
  std::string detokenize(std::span<const TokenId> tokens, bool skip_special_tokens) const override {
    return slots_.any()->detokenize(tokens, skip_special_tokens);
  }
  std::string token_text(TokenId token) const override { return slots_.any()->token_text(token); }
  std::string token_bytes(TokenId token) const override { return slots_.any()->token_bytes(token); }
  std::string render_chat(const ChatPrompt& chat) const override { return slots_.any()->render_chat(chat); }
  std::shared_ptr<const PromptVectors> read_prompt_vectors(std::string_view file,
                                                           const std::string& param) const override {
    return slots_.any()->read_prompt_vectors(file, param);
  }
  std::string tokenizer_config() const override { return slots_.any()->tokenizer_config(); }
  PooledText encode(std::string_view text, std::optional<std::string_view> pair,
                    const Truncation& truncation) const override {
    return slots_.any()->encode(text, pair, truncation);
  }
  Request chat_request(ChatRequest chat) const override { return slots_.any()->chat_request(std::move(chat)); }

  RequestId submit(Request request, EventSink sink) override {
    std::string salt = request.adapter + '\0' + request.cache_salt;
    if (request.adapter_scale != 1) salt += fmt::format("{}{}", '\0', request.adapter_scale);
    if (request.prompt_vectors != nullptr) salt += '\0' + hex(sha256(request.prompt_vectors->digests()));
    const std::vector<ChainHash> chain = Placement::chain_of(request.prompt, salt);
    const int64_t load = Placement::load_of(request.n, request.prompt.size());
    return place(chain, load, [&](Engine& engine, std::shared_ptr<const void> entered, bool last) {
      EventSink counted = [sink, entered = std::move(entered)](Event event) { sink(std::move(event)); };
      return engine.submit(last ? std::move(request) : request, std::move(counted));
    });
  }

  RequestId embed(PoolingRequest request, PoolingSink sink) override {
    size_t tokens = 0;
    for (const PooledText& text : request.texts) tokens += text.tokens.size();
    return place(
        {}, Placement::load_of(1, tokens), [&](Engine& engine, std::shared_ptr<const void> entered, bool last) {
          PoolingSink counted = [sink, entered = std::move(entered)](PoolingResult result) { sink(std::move(result)); };
          return engine.embed(last ? std::move(request) : request, std::move(counted));
        });
  }

  void cancel(RequestId id) override { slots_.cancel(id); }

  // All replicas have the same adapters: if one of them cannot load one, none has it.
  void load_adapter(const std::string& name, const std::string& folder) override {
    slots_.with_adapters([&](const auto& engines) {
      for (size_t i = 0; i < engines.size(); ++i) {
        try {
          engines[i]->load_adapter(name, folder);
        } catch (...) {
          for (size_t loaded = 0; loaded < i; ++loaded) engines[loaded]->unload_adapter(name);
          throw;
        }
      }
    });
  }
  bool unload_adapter(std::string_view name) override {
    bool known = false;
    slots_.with_adapters([&](const auto& engines) {
      for (const auto& engine : engines) known |= engine->unload_adapter(name);
    });
    return known;
  }
  std::vector<AdapterInfo> adapters() const override { return slots_.adapters(); }

  void end_session(std::string_view tenant, std::string_view session) override {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (const auto engine = slots_.engine(i)) engine->end_session(tenant, session);
    }
  }
  // Only the one that had the last turn knows the session.
  void prefetch_session(std::string_view tenant, std::string_view session) override {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (const auto engine = slots_.engine(i)) engine->prefetch_session(tenant, session);
    }
  }
  void reset_prefix_cache() override {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (const auto engine = slots_.engine(i)) engine->reset_prefix_cache();
      placement_.forget_prefixes(static_cast<int>(i));
    }
  }

  bool overloaded() const override {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const auto engine = slots_.engine(i);
      if (engine != nullptr && !engine->overloaded()) return false;
    }
    return true;
  }
  void stop_accepting() override { slots_.stop_accepting(); }

  Health health() const override { return slots_.health(); }

  // The label "engine" is the replica.
  std::vector<MetricFamily> metrics() const override {
    std::vector<MetricFamily> all = slots_.metrics();
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (const auto engine = slots_.engine(i)) merge_metrics(all, engine->metrics(), "engine", std::to_string(i));
    }
    return all;
  }

 private:
  static ModelInfo info_of(const std::vector<std::unique_ptr<Engine>>& engines) {
    ModelInfo info = engines.front()->model();
    info.kv_cache_tokens = 0;
    for (const auto& engine : engines) {
      info.kv_cache_tokens += engine->model().kv_cache_tokens;
      info.max_model_len = std::min(info.max_model_len, engine->model().max_model_len);
    }
    return info;
  }

  // Calls submit(engine, what counts the load, whether no other engine is left) for one replica after the other until
  // one is not overloaded. Those that have failed are not asked, unless all have.
  template <class Submit>
  RequestId place(std::span<const ChainHash> chain, int64_t load, Submit&& submit) {
    ReplicaMask allowed = slots_.working();
    if (allowed == 0) allowed = slots_.all();
    for (;;) {
      const int chosen = placement_.choose(chain, allowed);
      allowed &= ~(ReplicaMask{1} << chosen);
      try {
        return slots_.submit(static_cast<size_t>(chosen), [&](Engine& engine) {
          return submit(engine, placement_.enter(chosen, chain, load), allowed == 0);
        });
      } catch (const Error& e) {
        if (e.code != ErrorCode::kOverloaded || allowed == 0) throw;
      }
    }
  }

  Placement placement_;
  const ModelInfo info_;
  ReplicaSlots slots_;
};

// A part of a limit, at least one; 0 stays what it means.
template <class T>
T part_of(T limit, int replica, int replicas) {
  if (limit <= 0) return limit;
  return std::max<T>(1, limit / replicas + (replica < limit % replicas ? 1 : 0));
}

}  // namespace

bool loads_replicas(const EngineOptions& options) {
  return options.data_parallel_size > 1 && options.data_parallel_rank < 0;
}

EngineOptions replica_options(const EngineOptions& options, int replica) {
  const int replicas = options.data_parallel_size;
  EngineOptions one = options;
  one.data_parallel_rank = replica;
  one.max_num_queued_reqs = part_of(options.max_num_queued_reqs, replica, replicas);
  one.max_num_queued_tokens = part_of(options.max_num_queued_tokens, replica, replicas);
  if (keeps_rows(options)) {
    one.kv_host_memory_bytes = part_of(static_cast<int64_t>(host_row_bytes(options)), replica, replicas);
  }
  if (!options.kv_disk.empty()) {
    one.kv_disk_bytes = part_of(file_row_bytes(options), replica, replicas);
    one.kv_disk = fmt::format("{}/replica-{}", options.kv_disk, replica);
  }
  // Otherwise equal requests on two replicas would get equal random numbers.
  one.seed = static_cast<int64_t>(static_cast<uint64_t>(options.seed) + (static_cast<uint64_t>(replica) << 32));
  return one;
}

std::unique_ptr<Engine> load_replicas(const EngineOptions& options, const LoadReplica& load,
                                      const std::function<void(double)>& progress) {
  const auto replicas = static_cast<size_t>(options.data_parallel_size);
  const int devices = ops::select_backend(options.backend, options.deterministic).devices();
  const bool apart = devices >= place_of(options, 0).count;
  std::mutex mutex;
  std::vector<double> shares(replicas);
  const auto load_one = [&](size_t replica) {
    return load(replica_options(options, static_cast<int>(replica)), [&, replica](double share) {
      if (!progress) return;
      const std::scoped_lock lock(mutex);
      shares[replica] = share;
      progress(std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(replicas));
    });
  };
  std::vector<std::future<std::unique_ptr<Engine>>> coming;
  for (size_t i = 0; i < replicas; ++i) {
    coming.push_back(std::async(apart ? std::launch::async : std::launch::deferred, load_one, i));
  }
  std::vector<std::unique_ptr<Engine>> engines;
  for (auto& engine : coming) {
    engines.push_back(engine.get());
    log::info("replica {} of {} is loaded", engines.size(), replicas);
  }
  const auto anew = [options, load](int replica, int max_model_len, const std::function<void(double)>& loading) {
    EngineOptions one = replica_options(options, replica);
    one.max_model_len = max_model_len;
    return load(one, loading);
  };
  return join_replicas(std::move(engines), {.load = anew});
}

std::unique_ptr<Engine> join_replicas(std::vector<std::unique_ptr<Engine>> engines, ReplicaRestart restart) {
  return std::make_unique<Replicas>(std::move(engines), std::move(restart));
}

}  // namespace sluice
