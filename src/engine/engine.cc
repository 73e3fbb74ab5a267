// The engine for text generation. One thread owns all sequences. Other threads reach it through an inbox of commands;
// its results leave through the front end.
#include "sluice/engine.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <variant>

#include "base/json.h"
#include "base/log.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "engine/adapter_table.h"
#include "engine/best_of.h"
#include "engine/cache_config.h"
#include "engine/drafting.h"
#include "engine/fingerprint.h"
#include "engine/frontend.h"
#include "engine/grammar_constraint.h"
#include "engine/health.h"
#include "engine/hidden_pooler.h"
#include "engine/hidden_similarity.h"
#include "engine/inbox.h"
#include "engine/load.h"
#include "engine/metrics.h"
#include "engine/packed_cache.h"
#include "engine/pooling_engine.h"
#include "engine/prompt_modules.h"
#include "engine/prompt_vectors.h"
#include "engine/rank_rows.h"
#include "engine/ranks.h"
#include "engine/replicas.h"
#include "engine/runner.h"
#include "engine/sampling_texts.h"
#include "engine/text_engine.h"
#include "engine/text_vectors.h"
#include "engine/transfer_rules.h"
#include "engine/validate.h"
#include "hub/cache.h"
#include "sampling/sampler.h"
#include "scheduler/scheduler.h"
#include "sluice/context.h"

namespace sluice {
namespace {

struct Submit {
  RequestId id;
  Request request;
  std::unique_ptr<Constraint> constraint{};  // of request.grammar
  RequestAdapter adapter{};                  // request.adapter
};
// A request ended before the scheduler saw it.
struct EndEarly {
  RequestId id;
  int n;  // choices
  Finish finish;
};
struct Cancel {
  RequestId id;
};
struct StopChoice {  // the front end found a stop string
  RequestId id;
  int index;
};
struct EndSession {
  std::string session;
};
struct PrefetchSession {
  std::string session;
};
struct ForgetPrefixes {};
struct RowsMoved {};  // transfers of the mover are done
struct AdapterRead {
  std::shared_ptr<const Adapter> adapter;
};
// Another server wants rows, wants them no more, or has those of a prompt.
struct ForgetWant {
  uint64_t number;
};
struct ReleaseRows {
  std::string id;
};
using Command = std::variant<Submit, EndEarly, Cancel, StopChoice, EndSession, PrefetchSession, ForgetPrefixes,
                             RowsMoved, AdapterRead, RowWant, ForgetWant, ReleaseRows>;

// Tenants are hashes of keys, without a line break.
std::string session_key(std::string_view tenant, std::string_view session) {
  return fmt::format("{}\n{}", tenant, session);
}

SchedulerOptions scheduler_options(const EngineOptions& o, const LoadedModel& loaded, const RankRows* rows,
                                   Drafting* drafting, AdapterSlots::Place place_adapter) {
  const LoadPlan& plan = loaded.plan;
  SchedulerOptions s;
  s.adapter_slots = plan.adapters.slots;
  s.place_adapter = std::move(place_adapter);
  s.max_num_seqs = plan.max_num_seqs;
  s.state_slots = plan.state_slots;
  s.max_num_batched_tokens = plan.step_tokens;
  s.max_logit_rows = plan.logit_rows;
  s.max_model_len = plan.max_model_len;
  s.block_size = plan.block_size;
  s.blocks = plan.blocks;
  s.groups = plan.kv.groups;
  s.policy = o.scheduling_policy;
  s.prefix_caching = o.enable_prefix_caching;
  s.eviction = o.prefix_cache_eviction == "lfu" ? Eviction::kLfu : Eviction::kLru;
  s.session_blocks = static_cast<int>(plan.blocks * o.session_cache_share);
  s.jump_ahead = o.jump_ahead;
  s.context_shift = o.context_shift;
  s.context_keep = o.context_keep;
  s.hidden_rows = plan.hidden_rows;
  if (drafting != nullptr) s.draft = drafting->source();
  s.max_queued_sequences = o.max_num_queued_reqs;
  s.max_queued_tokens = o.max_num_queued_tokens;
  s.fingerprint = model_fingerprint(plan);
  s.seed = static_cast<uint64_t>(o.seed);
  s.eos_token_ids = plan.checkpoint->generation.eos_token_ids;
  if (rows != nullptr) s.row_store = rows->store_options();
  s.exports_held_for = std::chrono::milliseconds(o.kv_transfer_timeout_ms);
  return s;
}

// How often the engine asks other ranks for the rows that they have moved, if it has nothing else to do.
constexpr std::chrono::milliseconds kRowsPoll{1};

// A step has few masks that take long. More threads would only take turns on the CPUs with the server's.
int mask_threads(const ThreadPool& pool) { return std::min(pool.threads(), 8); }

class EngineImpl final : public TextEngine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<ThreadPool> pool, LoadedModel loaded, TextEnds text,
             const std::function<void(double)>& progress)
      : TextEngine(std::move(pool), std::move(loaded), std::move(text)),
        adapters_(loaded_, options.max_cpu_loras,
                  [this](std::shared_ptr<const Adapter> adapter) { inbox_.push(AdapterRead{std::move(adapter)}); }),
        transfer_rules_(options),
        runner_(loaded_),
        rows_(keeps_rows(options) ? make_rows(options) : nullptr),
        drafting_(loaded_.plan.drafts ? std::make_unique<Drafting>(loaded_, runner_) : nullptr),
        scheduler_options_(scheduler_options(
            options, loaded_, rows_.get(), drafting_.get(),
            [this](const Adapter& adapter, int slot, float scale) { runner_.place_adapter(adapter, slot, scale); })),
        no_modules_(why_no_modules(loaded_.plan, loaded_.draft != nullptr)),
        scheduler_(scheduler_options_),
        waits_(loaded_.plan.device->memory().host_accessible()),
        mask_threads_(waits_ ? nullptr : std::make_unique<ThreadPool>(mask_threads(*pool_), /*pin=*/false)),
        sampler_(*loaded_.plan.queue, loaded_.plan.logit_rows, loaded_.plan.shape.vocab,
                 waits_ ? pool_.get() : mask_threads_.get()),
        metrics_(info_.name, info_.max_model_len),
        session_ttl_(options.session_ttl),
        frontend_(*tokenizer_, metrics_,
                  [this](RequestId id, int index) {
                    inbox_.push(StopChoice{id, index});
                  }),
        constraints_(std::make_unique<Constraints>(*tokenizer_, info_.vocab_size, info_.eos_token_ids)) {
    for (const std::string& module : options.lora_modules) {
      const auto [name, folder] = parse_lora_module(module);
      adapters_.load(name, folder);
    }
    if (rows_ != nullptr) {
      for (const RowFile::Kept& kept : rows_->take_kept()) scheduler_.row_store().restore(kept.row, kept.slot);
      if (const TcpAddress* address = rows_->address()) {
        info_.kv_transfer_host = address->host;
        info_.kv_transfer_port = address->port;
      }
    }
    info_.context_shift = options.context_shift;
    if (const auto pooling = loaded_.plan.embedding_pooling) {
      pooler_ = std::make_unique<HiddenPooler>(*loaded_.plan.device, *pooling, loaded_.plan.max_num_seqs,
                                               loaded_.plan.shape.hidden);
      vectors_ = std::make_unique<TextVectors>(
          info_, *pooling, scheduler_.queue_limit(),
          [this](Request request, EventSink sink) { return start(std::move(request), std::move(sink), {}); },
          [this](RequestId id) { cancel_one(id); });
    }
    if (const int rows = loaded_.plan.hidden_rows; rows > 0) {
      similarity_ = std::make_unique<HiddenSimilarity>(*loaded_.plan.device, rows, loaded_.plan.shape.hidden,
                                                       waits_ ? *pool_ : *mask_threads_);
    }
    loaded_.plan.phases.end("engine");
    runner_.prepare();
    if (drafting_ != nullptr) drafting_->prepare();
    loaded_.plan.phases.end("graphs");
    loaded_.finish_weights(progress);
    loaded_.plan.phases.end("rest of the weights");
    log::debug("start: {}", loaded_.plan.phases.text());
    publish_gauges(0);
    thread_ = std::thread([this] { run(); });
  }

  ~EngineImpl() override {
    stop_accepting();
    constraints_.reset();  // its last results come before the inbox closes
    inbox_.close();
    thread_.join();
    rows_.reset();  // its threads use the inbox
  }

  RequestId submit(Request request, EventSink sink) override {
    set_context_shift(request, scheduler_options_.context_shift);
    validate(request, info_.vocab_size);
    settle_modules(request, no_modules_);
    check_prompt_vectors(request, info_);
    resolve_texts(request.sampling, *tokenizer_);
    check_fits(request, scheduler_options_);
    if (!request.session.empty()) {
      if (!scheduler_options_.prefix_caching) {
        throw Error(
            ErrorCode::kInvalidRequest,
            "Invalid 'session_id': sessions need the prefix cache, which --no-enable-prefix-caching turned off.",
            "session_id", "invalid_value");
      }
      request.session = session_key(request.tenant, request.session);
      if (request.session_ttl.count() == 0) request.session_ttl = session_ttl_;
    }
    if (request.context_shift.value_or(false)) request.context_keep = context_kept(request);
    transfer_rules_.check(request);
    if (request.best_of > request.n) {
      std::optional<int>& logprobs = request.sampling.logprobs;
      sink = best_of(std::move(sink), request.n, request.best_of, logprobs.has_value());
      logprobs = logprobs.value_or(0);
      request.n = request.best_of;
    }
    if (draining_.load()) throw Error(ErrorCode::kOverloaded, "The server is shutting down.");
    if (request.prompt_vectors != nullptr) {
      request.prompt_vectors = vector_memory_.hold(std::move(request.prompt_vectors));
    }
    RequestAdapter adapter = adapters_.of(request);
    check_module_adapter(request, adapter);
    if (!scheduler_.queue_limit().try_enter(request.n, static_cast<int64_t>(request.prompt.size()))) {
      throw Error(ErrorCode::kOverloaded, "The server is overloaded. Please try again later.");
    }
    return start(std::move(request), std::move(sink), std::move(adapter));
  }

  void load_adapter(const std::string& name, const std::string& folder) override { adapters_.load(name, folder); }
  bool unload_adapter(std::string_view name) override { return adapters_.unload(name); }
  std::vector<AdapterInfo> adapters() const override { return adapters_.all(); }

  RequestId embed(PoolingRequest request, PoolingSink sink) override {
    if (vectors_ == nullptr) {
      throw Error(ErrorCode::kInvalidRequest,
                  fmt::format("{} was loaded to generate text: embeddings need --task embed or --embedding-pooling, "
                              "scores need --task score",
                              info_.name),
                  request.param, "unsupported_task");
    }
    if (draining_.load()) throw Error(ErrorCode::kOverloaded, "The server is shutting down.");
    return vectors_->embed(std::move(request), std::move(sink));
  }

  void cancel(RequestId id) override {
    if (vectors_ == nullptr || !vectors_->cancel(id)) cancel_one(id);
  }
  void end_session(std::string_view tenant, std::string_view session) override {
    inbox_.push(EndSession{session_key(tenant, session)});
  }
  void prefetch_session(std::string_view tenant, std::string_view session) override {
    inbox_.push(PrefetchSession{session_key(tenant, session)});
  }
  void reset_prefix_cache() override { inbox_.push(ForgetPrefixes{}); }
  bool overloaded() const override { return draining_.load() || scheduler_.queue_limit().full(); }
  void stop_accepting() override { draining_.store(true); }

  Health health() const override {
    Health h;
    h.running = running_.load(std::memory_order_relaxed);
    h.waiting = scheduler_.queue_limit().sequences();
    h.preparing = preparing_.load(std::memory_order_relaxed);
    if (busy_.load(std::memory_order_acquire)) {
      const Clock::time_point last{Clock::duration{progress_.load(std::memory_order_acquire)}};
      h.seconds_since_step = std::chrono::duration<double>(Clock::now() - last).count();
    }
    h.errors_in_a_row = metrics_.errors_in_a_row();
    return judged(std::move(h), loaded_, dead_.load());
  }

  std::vector<MetricFamily> metrics() const override {
    std::vector<MetricFamily> families = metrics_.families(scheduler_.queue_limit(), compiling());
    families.push_back(cache_config(loaded_.plan, scheduler_options_, info_));
    families.push_back(loaded_.plan.memory.metric(info_.name));
    return families;
  }

 private:
  // Starts a request that has entered the queue; leaves it if there is no memory.
  RequestId start(Request request, EventSink sink, RequestAdapter adapter) {
    const RequestId id = next_id_.fetch_add(1);
    const int choices = request.n;
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    try {
      const int rope_class = loaded_.plan.shape.rope_class(static_cast<int>(prompt_tokens));
      if (rope_class != 0) request.cache_salt += fmt::format("\x1frope {}", rope_class);
      frontend_.add(id, request, std::move(sink));
      if (Constraints::needed(request)) {
        constrain_and_submit(id, std::move(request), std::move(adapter));
      } else {
        inbox_.push(Submit{id, std::move(request), nullptr, std::move(adapter)});
      }
    } catch (...) {  // no memory: nothing of the request may stay behind
      take_compiling(id);
      frontend_.remove(id);
      scheduler_.queue_limit().leave(choices, prompt_tokens);
      throw;
    }
    return id;
  }

  void cancel_one(RequestId id) {
    std::optional<Request> compiling = take_compiling(id);
    if (compiling) return end_early(id, *compiling, {.reason = FinishReason::kAbort});
    inbox_.push(Cancel{id});
  }

  // What a context shift keeps: what the request says, and the tokens that begin every text.
  int context_kept(const Request& request) const {
    const int keep = request.context_keep.value_or(scheduler_options_.context_keep);
    if (keep < 0) return keep;
    const auto begin = std::ranges::mismatch(first_tokens_, request.prompt).in1 - first_tokens_.begin();
    return std::min(keep, most_kept(scheduler_options_)) + static_cast<int>(begin);
  }

  // Other servers may want rows before the engine runs; its thread finds that in the inbox.
  std::unique_ptr<RankRows> make_rows(const EngineOptions& options) {
    return std::make_unique<RankRows>(
        options, loaded_, [this] { inbox_.push(RowsMoved{}); },
        [this](auto message) { runner_.tell_about_rows(std::move(message)); },
        RowServer::Events{.want = [this](RowWant want) { inbox_.push(std::move(want)); },
                          .forget = [this](uint64_t number) { inbox_.push(ForgetWant{number}); },
                          .release = [this](std::string id) { inbox_.push(ReleaseRows{std::move(id)}); }});
  }

  // The request waits until its grammar, if it has one, is compiled. Whoever takes it out of compiling_ decides what
  // becomes of it.
  void constrain_and_submit(RequestId id, Request request, RequestAdapter adapter) {
    Request needs;  // what of the request the constraint is made from
    needs.grammar = request.grammar;
    needs.reasoning_syntax = request.reasoning_syntax;
    needs.thought = request.thought;
    needs.thinking_token_budget = request.thinking_token_budget;
    {
      const std::scoped_lock lock(compiling_mutex_);
      compiling_.emplace(id, std::move(request));
    }
    constraints_->make(needs, [this, id, adapter = std::move(adapter)](Constraints::Result result) {
      std::optional<Request> waiting = take_compiling(id);
      if (!waiting) return;  // cancelled
      if (result.error.empty())
        return inbox_.push(Submit{id, std::move(*waiting), std::move(result.constraint), adapter});
      const std::string& param = waiting->grammar->param;
      end_early(id, *waiting,
                {.reason = FinishReason::kError,
                 .message = fmt::format("Invalid '{}': {}", param, result.error),
                 .param = param});
    });
  }

  std::optional<Request> take_compiling(RequestId id) {
    const std::scoped_lock lock(compiling_mutex_);
    auto node = compiling_.extract(id);
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
  }

  int compiling() const {
    const std::scoped_lock lock(compiling_mutex_);
    return static_cast<int>(compiling_.size());
  }

  void end_early(RequestId id, const Request& request, Finish finish) {
    scheduler_.queue_limit().leave(request.n, static_cast<int64_t>(request.prompt.size()));
    inbox_.push(EndEarly{id, request.n, std::move(finish)});
  }

  void run() {
    try {
      while (!inbox_.closed()) {
        const bool rests = scheduler_.idle() && !preparing_.load(std::memory_order_relaxed);
        const bool idle = apply(rests || waits_for_rows_);
        if (!idle) {
          step();
        } else if (preparing_.load(std::memory_order_relaxed)) {
          preparing_.store(runner_.prepare_more() || (drafting_ != nullptr && drafting_->prepare_more()));
        }
      }
      if (in_flight_) commit_in_flight();
      shut_down();
    } catch (const std::exception& e) {
      // Steps do not throw by design, but memory may run out, or a rank may be lost. Every request then ends with an
      // error, and health() reports the failure.
      log::error("the engine stopped: {}", e.what());
      dead_.store(true);
      stop_accepting();
      fail_all(e.what());
      while (!inbox_.closed()) refuse(inbox_.take(true, {}));
    }
  }

  // When the engine has to go on, even without a command.
  std::optional<Clock::time_point> wake_time() {
    std::optional<Clock::time_point> time = next_deadline();
    if (rows_ == nullptr || !rows_->busy_elsewhere()) return time;
    const Clock::time_point soon = Clock::now() + kRowsPoll;
    return time ? std::min(*time, soon) : soon;
  }

  // Applies the waiting commands. With `wait`, it first sleeps until there is a command. Returns whether the scheduler
  // is still idle.
  bool apply(bool wait) {
    if (wait && rows_ != nullptr) {
      move_rows();  // of the last step, which may bring what was waited for
      wait = scheduler_.idle() || (waits_for_rows_ && scheduler_.awaits_transfers());
    }
    if (wait) busy_.store(false, std::memory_order_release);
    std::vector<Command> commands = inbox_.take(wait, wake_time());
    beat();
    if (wait) scheduler_.expire();
    for (Command& command : commands) {
      if (auto* c = std::get_if<Submit>(&command)) begin(std::move(*c));
      if (const auto* c = std::get_if<EndEarly>(&command)) frontend_.post(ends_of(c->id, c->n, c->finish));
      if (const auto* c = std::get_if<Cancel>(&command)) {
        if (!cancel_fetching(c->id)) scheduler_.cancel(c->id);
      }
      if (const auto* c = std::get_if<StopChoice>(&command)) scheduler_.finish(c->id, c->index);
      if (const auto* c = std::get_if<EndSession>(&command)) scheduler_.end_session(c->session);
      if (const auto* c = std::get_if<PrefetchSession>(&command)) scheduler_.prefetch_session(c->session);
      if (std::holds_alternative<ForgetPrefixes>(command)) scheduler_.reset_prefix_cache();
      if (auto* c = std::get_if<RowWant>(&command)) scheduler_.exports().want(std::move(*c), Clock::now());
      if (const auto* c = std::get_if<ForgetWant>(&command)) scheduler_.exports().forget(c->number);
      if (const auto* c = std::get_if<ReleaseRows>(&command)) scheduler_.exports().release(c->id);
    }
    for (const Command& command : commands) {  // may throw: all requests are known by now, and can be ended
      if (const auto* c = std::get_if<AdapterRead>(&command)) runner_.add_adapter(c->adapter);
    }
    if (rows_ != nullptr && (wait || !commands.empty() || rows_->busy_elsewhere())) move_rows();
    const bool idle = scheduler_.idle();
    if (wait || !commands.empty()) frontend_.post(scheduler_.drain());
    if (idle) publish_gauges(0);
    return idle;
  }

  // Gives a request to the scheduler, or has the rows of its prompt come from another server before.
  void begin(Submit submit) {
    const std::optional<KvTransfer>& transfer = submit.request.kv_transfer;
    const uint64_t fetch = transfer && !transfer->host.empty() ? scheduler_.fetch(submit.request) : 0;
    if (fetch != 0) {
      fetching_.emplace(fetch, std::move(submit));
    } else {
      add(std::move(submit));
    }
  }
  void add(Submit submit) {
    scheduler_.add(submit.id, std::move(submit.request), std::move(submit.constraint), std::move(submit.adapter));
  }

  // Ends a request that waits for rows. What comes of them is kept all the same.
  bool cancel_fetching(RequestId id) {
    const auto found = std::ranges::find_if(fetching_, [id](const auto& fetch) { return fetch.second.id == id; });
    if (found == fetching_.end()) return false;
    const Submit submit = std::move(found->second);
    fetching_.erase(found);
    end_fetching(submit, {.reason = FinishReason::kAbort});
    return true;
  }
  void end_fetching(const Submit& submit, const Finish& finish) {
    const Request& request = submit.request;
    scheduler_.queue_limit().leave(request.n, static_cast<int64_t>(request.prompt.size()));
    frontend_.post(ends_of(submit.id, request.n, finish));
  }

  // The scheduler takes the requests whose rows have come, or whose deadline has passed: it ends these.
  void finish_fetches() {
    for (const uint64_t fetch : scheduler_.row_store().take_fetches()) {
      const auto node = fetching_.extract(fetch);
      if (node.empty()) continue;
      rows_->release(*node.mapped().request.kv_transfer);
      add(std::move(node.mapped()));
    }
    if (fetching_.empty()) return;
    const Clock::time_point now = Clock::now();
    for (auto at = fetching_.begin(); at != fetching_.end();) {
      const auto fetch = at++;
      if (fetch->second.request.deadline.value_or(now + std::chrono::hours(1)) > now) continue;
      add(std::move(fetch->second));
      fetching_.erase(fetch);
    }
  }

  std::optional<Clock::time_point> next_deadline() const {
    std::optional<Clock::time_point> next = scheduler_.next_deadline();
    for (const auto& [fetch, submit] : fetching_) {
      const std::optional<Clock::time_point>& deadline = submit.request.deadline;
      if (deadline) next = std::min(next.value_or(*deadline), *deadline);
    }
    return next;
  }

  // Runs one step. Where ops are asynchronous and the device sampled the previous step's tokens, this step is launched
  // before the host knows them. The host then finishes the previous step while the device runs this one.
  void step() {
    ScheduledBatch next = scheduler_.next();
    if (rows_ != nullptr) rows_->start_before_step(scheduler_.take_transfers());
    const Tensor sampled = in_flight_ ? sampler_.sampled() : Tensor();
    if (drafting_ != nullptr) drafting_->complete(scheduler_, next, sampled);
    const int tokens = next.batch.size();
    StepOutput output;
    if (tokens > 0) output = runner_.run(next.batch, sampled);
    if (tokens > 0 && drafting_ != nullptr) drafting_->observe(next.batch, sampled);
    if (tokens > 0 && pooler_ != nullptr) {
      pooler_->begin(runner_.context(), next, output.hidden, scheduler_.requests());
    }
    if (tokens > 0 && similarity_ != nullptr) similarity_->begin(runner_.context(), next, output.hidden);
    if (rows_ != nullptr) move_rows();
    waits_for_rows_ = tokens == 0 && !in_flight_ && scheduler_.awaits_transfers();
    if (in_flight_) commit_in_flight();
    if (tokens > 0) {
      const bool ahead = sampler_.begin(runner_.context(), output.logits, next.tasks);
      in_flight_ = std::move(next);
      if (waits_) {
        commit_in_flight();
        return publish(tokens);
      }
      publish(tokens);  // events of the previous step
      if (ahead) return;
      commit_in_flight();
      if (!scheduler_.idle()) return;  // the next step's launch comes first, then this step's events are published
    }
    publish(0);
  }

  // Takes note of rows that were moved, and has others moved.
  void move_rows() {
    for (const RowMover::Done& done : rows_->take_done()) scheduler_.finish_transfer(done.transfer, done.failed);
    finish_fetches();
    rows_->start(scheduler_.take_transfers());
  }

  void commit_in_flight() {
    std::vector<SampleResult> results = sampler_.finish(runner_.context(), in_flight_->tasks);
    commit(std::move(*in_flight_), std::move(results));
    in_flight_.reset();
    beat();
  }

  void commit(ScheduledBatch step, std::vector<SampleResult> samples) {
    std::vector<StepResult> results = step_results(step, samples);
    if (pooler_ != nullptr) pooler_->finish(runner_.context(), results);
    if (similarity_ != nullptr) similarity_->finish(runner_.context(), step, results);
    scheduler_.commit(std::move(step), results);
  }

  void publish(int tokens) {
    scheduler_.drain(events_);
    frontend_.post(std::move(events_));
    publish_gauges(tokens);
    beat();
  }

  void beat() {
    progress_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
    busy_.store(!scheduler_.idle(), std::memory_order_release);
  }

  void publish_gauges(int tokens) {
    const SchedulerStats s = scheduler_.stats();
    const BlockPoolStats blocks = scheduler_.block_pool().stats();
    running_.store(s.running, std::memory_order_relaxed);
    metrics_.step({.running = s.running,
                   .waiting = s.waiting,
                   .deferred = s.deferred,
                   .kv_usage = blocks.total > 0 ? static_cast<double>(blocks.used) / blocks.total : 0.0,
                   .prefix_queries = blocks.query_tokens,
                   .prefix_hits = blocks.hit_tokens,
                   .preemptions = s.preemptions,
                   .forced_tokens = s.forced_tokens,
                   .context_shifts = s.context_shifts,
                   .modules_found = s.modules_found,
                   .modules_computed = s.modules_computed,
                   .prefetches = scheduler_.prefetch_stats(),
                   .sessions = scheduler_.session_stats(),
                   .pinned_blocks = blocks.pinned,
                   .adapter_slots = scheduler_options_.adapter_slots,
                   .adapters = adapter_use(),
                   .drafts = scheduler_options_.draft ? std::optional(scheduler_.draft_stats()) : std::nullopt,
                   .rows = rows_ != nullptr ? std::optional(scheduler_.row_store().stats()) : std::nullopt,
                   .row_bytes = rows_ != nullptr ? rows_->row_bytes() : 0,
                   .experts = runner_.expert_balance()},
                  tokens);
  }

  // Looks at all requests, so that it does not do so in every step.
  const AdapterUse& adapter_use() {
    constexpr auto kLookEvery = std::chrono::milliseconds(100);
    const auto now = std::chrono::system_clock::now();
    if (scheduler_options_.adapter_slots == 0) return adapter_use_;
    if (!scheduler_.idle() && now >= adapter_use_.at && now - adapter_use_.at < kLookEvery) return adapter_use_;
    std::set<std::string_view> running, waiting;
    for (const auto& [_, request] : scheduler_.requests()) {
      const std::string& name = request->request.adapter;
      const bool runs = std::ranges::any_of(request->choices, [](const std::unique_ptr<Sequence>& choice) {
        return choice != nullptr && choice->state == SequenceState::kRunning;
      });
      if (!name.empty()) (runs ? running : waiting).insert(name);
    }
    adapter_use_ = {.running = fmt::format("{}", fmt::join(running, ",")),
                    .waiting = fmt::format("{}", fmt::join(waiting, ",")),
                    .at = now};
    return adapter_use_;
  }

  static std::vector<SequenceEvent> ends_of(RequestId id, int n, const Finish& finish) {
    std::vector<SequenceEvent> events(static_cast<size_t>(n));
    for (int index = 0; index < n; ++index) {
      SequenceEvent& event = events[static_cast<size_t>(index)];
      event.request = id;
      event.index = index;
      event.finish = std::make_unique<Finish>(finish);
    }
    return events;
  }

  // Ends every request, whatever its state, with an error of this message.
  void fail_all(const std::string& message) {
    frontend_.post(scheduler_.drain());
    for (const auto& [id, request] : scheduler_.requests()) {
      frontend_.post(ends_of(id, request->request.n, {.reason = FinishReason::kError, .message = message}));
    }
    end_all_fetching({.reason = FinishReason::kError, .message = message});
  }

  void end_all_fetching(const Finish& finish) {
    for (const auto& [fetch, submit] : fetching_) end_fetching(submit, finish);
    fetching_.clear();
  }

  // Runs after the last step. Requests that are still open end with kAbort.
  void shut_down() {
    apply(false);
    std::vector<RequestId> open;
    for (const auto& [id, request] : scheduler_.requests()) open.push_back(id);
    for (const RequestId id : open) scheduler_.cancel(id);
    end_all_fetching({.reason = FinishReason::kAbort});
    frontend_.post(scheduler_.drain());
    if (rows_ != nullptr) finish_moving();
  }

  // Lets the mover write what it has to the file, for the next start.
  void finish_moving() {
    using std::chrono_literals::operator""s, std::chrono_literals::operator""ms;
    const Clock::time_point limit = Clock::now() + 5s;
    for (move_rows(); rows_->busy() && Clock::now() < limit; move_rows()) std::this_thread::sleep_for(1ms);
  }

  void refuse(const std::vector<Command>& commands) {
    for (const Command& command : commands) {
      if (const auto* c = std::get_if<Submit>(&command)) {
        frontend_.post(
            ends_of(c->id, c->request.n, {.reason = FinishReason::kError, .message = "the engine has stopped"}));
      }
      if (const auto* c = std::get_if<EndEarly>(&command)) frontend_.post(ends_of(c->id, c->n, c->finish));
    }
  }

  Inbox<Command> inbox_;
  AdapterTable adapters_;
  const TransferRules transfer_rules_;
  VectorMemory vector_memory_;
  Runner runner_;
  std::unique_ptr<RankRows> rows_;      // null: rows of the prefix cache are kept nowhere else
  std::unique_ptr<Drafting> drafting_;  // null: no drafts
  SchedulerOptions scheduler_options_;
  const std::string no_modules_;  // why prompts may have no modules; empty: they may
  Scheduler scheduler_;
  bool waits_for_rows_ = false;               // nothing can run before rows are moved
  const bool waits_;                          // ops run on host memory and are done when they return
  std::unique_ptr<ThreadPool> mask_threads_;  // where the ops' threads are not the host's
  Sampler sampler_;
  std::unique_ptr<HiddenPooler> pooler_;           // null: no vectors
  std::unique_ptr<HiddenSimilarity> similarity_;   // null: no contrastive search
  std::optional<ScheduledBatch> in_flight_;        // the batch between sampler_'s begin() and finish()
  std::unordered_map<uint64_t, Submit> fetching_;  // requests that wait for rows of another server, by fetch
  std::vector<SequenceEvent> events_;              // events being published; kept to reuse its memory
  EngineMetrics metrics_;
  AdapterUse adapter_use_;
  const std::chrono::seconds session_ttl_;
  std::atomic<RequestId> next_id_{1};
  std::atomic<bool> draining_{false}, dead_{false}, busy_{false}, preparing_{true};
  std::atomic<int> running_{0};
  std::atomic<Clock::rep> progress_{0};
  std::unique_ptr<TextVectors> vectors_;  // null: no vectors
  Frontend frontend_;
  mutable std::mutex compiling_mutex_;
  std::unordered_map<RequestId, Request> compiling_;  // requests that wait for their grammars
  std::unique_ptr<Constraints> constraints_;
  std::thread thread_;
};

std::unique_ptr<Engine> load_once(const EngineOptions& options, const std::function<void(double)>& progress) {
  const RankPlace place = place_of(options, 0);
  const int parts = place.count > 1 || ranks_of(options) > 1 ? 1 : parse_numa(options.numa);
  auto pool = std::make_unique<ThreadPool>(threads_of_rank(options, 0), /*pin=*/true, parts,
                                           place.count > 1 ? cpus_of(place) : std::vector<int>());
  set_memory_parts(pool->parts());
  // The tokenizer loads while the weights do. If that fails, loading the weights stops early.
  std::future<TextEnds> coming;
  std::optional<TextEnds> text;
  double most = 0;  // what was reported; a weight that a queue takes over counts as done for a moment
  const std::function<void(double)> rising = [&](double share) {
    if (progress && share > most) progress(most = share);
  };
  const LoadEvents events = {.planned =
                                 [&](const LoadPlan& plan) {
                                   coming = std::async(std::launch::async,
                                                       [&options, checkpoint = plan.checkpoint, draft = plan.draft] {
                                                         TextEnds ends = load_text_ends(options, *checkpoint);
                                                         if (draft != nullptr && draft->checkpoint != checkpoint)
                                                           check_same_tokens(*ends.tokenizer, *draft->checkpoint);
                                                         return ends;
                                                       });
                                 },
                             .progress =
                                 [&](double share) {
                                   using std::chrono_literals::operator""s;
                                   if (!text && coming.wait_for(0s) == std::future_status::ready) text = coming.get();
                                   rising(share);
                                 }};
  LoadedModel loaded = begin_loading(options, *pool, events);
  if (!text) text = coming.get();
  if (loaded.plan.task != Task::kGenerate) {
    loaded.finish_weights(rising);
    rising(1);
    return pooling_engine(options, std::move(pool), std::move(loaded), std::move(*text));
  }
  auto engine = std::make_unique<EngineImpl>(options, std::move(pool), std::move(loaded), std::move(*text), rising);
  rising(1);
  return engine;
}

std::unique_ptr<Engine> load_engine(const EngineOptions& options, const std::function<void(double)>& progress) {
  return load_again_if_damaged(options, [&](const EngineOptions& given) { return load_once(given, progress); });
}

// What the file system or the kernel refuses is an Error like any other.
template <class F>
auto with_errors(const F& work) {
  try {
    return work();
  } catch (const std::filesystem::filesystem_error& e) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", e.path1().string(), e.code().message()));
  } catch (const std::system_error& e) {  // most likely there are no more threads
    throw Error(ErrorCode::kInternal, fmt::format("cannot start the engine: {}", e.code().message()));
  }
}

}  // namespace

ChatPrompt ChatPrompt::user(std::string_view text) {
  const Json messages = Json::array({{{"role", "user"}, {"content", std::string(text)}}});
  return {.messages = dump_json(messages), .tools = {}, .template_kwargs = {}};
}

ModelInfo Engine::describe(const EngineOptions& options) {
  return with_errors([&] {
    ThreadPool pool(1, /*pin=*/false);
    const LoadPlan plan = plan_load(options, pool);
    const TextEnds text = load_text_ends(options, *plan.checkpoint);
    if (plan.draft != nullptr && plan.draft->checkpoint != plan.checkpoint) {
      check_same_tokens(*text.tokenizer, *plan.draft->checkpoint);
    }
    ModelInfo info = model_info(plan, text.chat_template, text);
    info.context_shift = options.context_shift && info.task == Task::kGenerate;
    if (loads_replicas(options)) info.kv_cache_tokens *= options.data_parallel_size;
    return info;
  });
}

std::unique_ptr<Engine> Engine::load(const EngineOptions& options, const std::function<void(double)>& progress) {
  return with_errors([&] {
    return loads_replicas(options) ? load_replicas(options, load_engine, progress) : load_engine(options, progress);
  });
}

}  // namespace sluice
