// One thread takes as many texts off a queue as a step has room for. It hands out a result when all texts of a request
// are done. The engine keeps no state of a text between steps, so there is neither a prefix cache nor preemption.
#include "engine/pooling_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "engine/health.h"
#include "engine/metrics.h"
#include "engine/pooling_request.h"
#include "engine/runner.h"
#include "engine/text_engine.h"
#include "scheduler/queue_limit.h"

namespace sluice {
namespace {

struct Job {
  RequestId id = 0;
  PoolingRequest request;
  PoolingSink sink;
  RequestTimes times;
  int64_t tokens = 0;
  size_t next = 0;  // number of texts that a step has taken
  size_t done = 0;  // number of texts that have a vector
  std::vector<std::vector<float>> vectors;
};

// A text that is in a step.
struct Place {
  std::shared_ptr<Job> job;
  size_t text = 0;
};

std::vector<float> finish_scores(std::span<const float> logits, ScoreActivation activation) {
  std::vector<float> out(logits.begin(), logits.end());
  if (activation == ScoreActivation::kSigmoid) {
    for (float& value : out) value = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(value))));
  } else if (activation == ScoreActivation::kSoftmax) {
    const double top = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (const float value : out) sum += std::exp(value - top);
    for (float& value : out) value = static_cast<float>(std::exp(value - top) / sum);
  }
  return out;
}

class PoolingEngine final : public TextEngine {
 public:
  PoolingEngine(const EngineOptions& options, std::unique_ptr<ThreadPool> pool, LoadedModel loaded, TextEnds text)
      : TextEngine(std::move(pool), std::move(loaded), std::move(text)),
        block_size_(options.block_size),
        runner_(loaded_),
        metrics_(info_.name, info_.max_model_len),
        limit_(options.max_num_queued_reqs, options.max_num_queued_tokens),
        thread_([this] { run(); }) {}

  ~PoolingEngine() override {
    stop_accepting();
    {
      const std::scoped_lock lock(mutex_);
      closed_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  RequestId submit(Request request, EventSink) override {
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format("{} does not generate text: it was loaded with --task {}", info_.name, to_string(info_.task)),
        request.prompt_param, "unsupported_task");
  }

  RequestId embed(PoolingRequest request, PoolingSink sink) override {
    check_pooling(request, info_);
    if (draining_.load()) throw Error(ErrorCode::kOverloaded, "The server is shutting down.");
    auto job = std::make_shared<Job>();
    for (const PooledText& text : request.texts) job->tokens += static_cast<int64_t>(text.tokens.size());
    if (!limit_.try_enter(1, job->tokens)) {
      throw Error(ErrorCode::kOverloaded, "The server is overloaded. Please try again later.");
    }
    job->id = next_id_.fetch_add(1);
    job->vectors.resize(request.texts.size());
    job->request = std::move(request);
    job->sink = std::move(sink);
    job->times.arrival = Clock::now();
    const RequestId id = job->id;
    {
      const std::scoped_lock lock(mutex_);
      arrived_.push_back(std::move(job));
    }
    wake_.notify_one();
    return id;
  }

  void cancel(RequestId id) override {
    {
      const std::scoped_lock lock(mutex_);
      cancelled_.push_back(id);
    }
    wake_.notify_one();
  }

  bool overloaded() const override { return draining_.load() || limit_.full(); }
  void stop_accepting() override { draining_.store(true); }

  Health health() const override {
    Health h;
    h.running = running_.load(std::memory_order_relaxed);
    h.waiting = limit_.sequences();
    if (busy_.load(std::memory_order_acquire)) {
      const Clock::time_point last{Clock::duration{progress_.load(std::memory_order_acquire)}};
      h.seconds_since_step = std::chrono::duration<double>(Clock::now() - last).count();
    }
    h.errors_in_a_row = metrics_.errors_in_a_row();
    return judged(std::move(h), loaded_, dead_.load());
  }

  std::vector<MetricFamily> metrics() const override {
    std::vector<MetricFamily> families = metrics_.families(limit_);
    families.push_back(loaded_.plan.memory.metric(info_.name));
    return families;
  }

 private:
  void run() {
    try {
      while (take_commands()) {
        if (!waiting_.empty()) step();
      }
    } catch (const std::exception& e) {
      // Steps do not throw by design, but memory may run out. Every request then ends with an error, and health fails.
      log::error("the engine stopped: {}", e.what());
      fault_ = e.what();
      dead_.store(true);
      stop_accepting();
    }
    end_all();
    while (dead_.load() && take_commands()) end_all();  // a failed engine answers with errors until it is closed
    end_all();
  }

  void end_all() {
    const bool dead = dead_.load();
    while (!waiting_.empty()) {
      end(waiting_.front(), dead ? FinishReason::kError : FinishReason::kAbort, dead ? fault_ : "");
    }
  }

  // Takes the commands that have arrived; sleeps when there is nothing to do. Returns false once the engine is closed.
  bool take_commands() {
    std::vector<std::shared_ptr<Job>> arrived;
    std::vector<RequestId> cancelled;
    bool closed = false;
    busy_.store(!waiting_.empty(), std::memory_order_release);
    {
      std::unique_lock lock(mutex_);
      const auto ready = [this] { return closed_ || !arrived_.empty() || !cancelled_.empty(); };
      if (waiting_.empty()) wake_.wait(lock, ready);
      arrived.swap(arrived_);
      cancelled.swap(cancelled_);
      closed = closed_;
    }
    waiting_.insert(waiting_.end(), std::make_move_iterator(arrived.begin()), std::make_move_iterator(arrived.end()));
    beat();
    for (const RequestId id : cancelled) {
      const auto found =
          std::find_if(waiting_.begin(), waiting_.end(), [id](const auto& job) { return job->id == id; });
      if (found != waiting_.end()) end(*found, FinishReason::kAbort, "");
    }
    const Clock::time_point now = Clock::now();
    for (size_t i = 0; i < waiting_.size();) {
      const auto& deadline = waiting_[i]->request.deadline;
      if (deadline && now >= *deadline) {
        end(waiting_[i], FinishReason::kAbort, "");
      } else {
        ++i;
      }
    }
    return !closed;
  }

  // Takes the first texts that still have no vector, as many as fit a step.
  std::vector<Place> next_texts() {
    std::vector<Place> places;
    int room = loaded_.plan.step_tokens;
    for (const std::shared_ptr<Job>& job : waiting_) {
      while (job->next < job->request.texts.size()) {
        const int tokens = static_cast<int>(job->request.texts[job->next].tokens.size());
        if (tokens > room || static_cast<int>(places.size()) == loaded_.plan.max_num_seqs) return places;
        room -= tokens;
        places.push_back({job, job->next++});
      }
    }
    return places;
  }

  Batch make_batch(const std::vector<Place>& places) const {
    Batch batch;
    batch.query_start = {0};
    int longest = 0;
    for (const Place& place : places) {
      longest = std::max(longest, static_cast<int>(place.job->request.texts[place.text].tokens.size()));
    }
    batch.block_table_stride = (longest + block_size_ - 1) / block_size_;
    int block = 0;
    for (const Place& place : places) {
      const PooledText& text = place.job->request.texts[place.text];
      const int length = static_cast<int>(text.tokens.size()), blocks = (length + block_size_ - 1) / block_size_;
      batch.tokens.insert(batch.tokens.end(), text.tokens.begin(), text.tokens.end());
      for (int i = 0; i < length; ++i) {
        batch.positions.push_back(i);
        batch.slots.push_back(block * block_size_ + i);
        batch.sample_rows.push_back(static_cast<int32_t>(batch.sample_rows.size()));
        if (loaded_.plan.shape.token_types) batch.types.push_back(text.types.empty() ? 0 : text.types[i]);
      }
      batch.query_start.push_back(batch.size());
      batch.kv_len.push_back(length);
      batch.prompt_len.push_back(length);
      if (loaded_.plan.state_slots > 0) batch.state_slots.push_back(static_cast<int32_t>(batch.state_slots.size()));
      for (int i = 0; i < batch.block_table_stride; ++i) batch.block_table.push_back(i < blocks ? block + i : -1);
      block += blocks;
    }
    return batch;
  }

  void step() {
    const std::vector<Place> places = next_texts();
    const Clock::time_point now = Clock::now();
    for (const Place& place : places) start(*place.job, now);
    const Batch batch = make_batch(places);
    running_.store(static_cast<int>(places.size()), std::memory_order_relaxed);
    publish_gauges(batch.size());
    const Tensor vectors = runner_.forward(batch);
    for (size_t i = 0; i < places.size(); ++i) {
      const std::span<const float> row{vectors.f32() + static_cast<int64_t>(i) * vectors.row_stride,
                                       static_cast<size_t>(vectors.shape[1])};
      take_vector(places[i], row);
    }
    running_.store(0, std::memory_order_relaxed);
    publish_gauges(0);
    beat();
  }

  void start(Job& job, Clock::time_point now) {
    if (job.times.was_scheduled) return;
    job.times.was_scheduled = true;
    job.times.scheduled = now;
    limit_.leave(1, job.tokens);
  }

  void take_vector(const Place& place, std::span<const float> row) {
    Job& job = *place.job;
    const PoolingRequest& request = job.request;
    if (job.sink == nullptr) return;  // the job has ended
    if (!std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); })) {
      return end(place.job, FinishReason::kError, fmt::format("text {} has a vector that is not finite", place.text));
    }
    const LoadPlan& plan = loaded_.plan;
    if (plan.task == Task::kEmbed) {
      const int dimensions = request.dimensions > 0 ? request.dimensions : plan.embedding.truncate_dim;
      const bool as_said = plan.embedding.normalize || !plan.embedding.present;
      job.vectors[place.text] = finish_embedding(row, dimensions, request.normalize.value_or(as_said));
    } else {
      job.vectors[place.text] =
          finish_scores(row, request.activate.value_or(true) ? plan.score_activation : ScoreActivation::kNone);
    }
    if (++job.done == request.texts.size()) end(place.job, FinishReason::kStop, "");
  }

  // Answers a request and removes it. `job` may be the queue's own pointer, which is then destroyed.
  void end(const std::shared_ptr<Job>& job, FinishReason reason, std::string message) {
    if (!job->times.was_scheduled) limit_.leave(1, job->tokens);
    PoolingResult result{.vectors = std::move(job->vectors),
                         .prompt_tokens = static_cast<int>(job->tokens),
                         .reason = reason,
                         .message = std::move(message)};
    if (reason != FinishReason::kStop) result.vectors.clear();
    Request counted;  // carries what the metrics read of a request
    const Usage usage{.prompt_tokens = result.prompt_tokens, .cached_tokens = 0, .completion_tokens = 0};
    metrics_.request_done(counted, job->times, usage, 0, reason, Clock::now());
    metrics_.count_outcome(reason);
    const PoolingSink sink = std::exchange(job->sink, nullptr);
    std::erase(waiting_, std::shared_ptr<Job>(job));
    sink(std::move(result));
  }

  void beat() {
    progress_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
    busy_.store(!waiting_.empty(), std::memory_order_release);
  }

  void publish_gauges(int tokens) {
    EngineGauges gauges;
    gauges.running = running_.load(std::memory_order_relaxed);
    gauges.waiting = limit_.sequences();
    gauges.experts = runner_.expert_balance();
    metrics_.step(gauges, tokens);
  }

  const int block_size_;
  Runner runner_;
  EngineMetrics metrics_;
  QueueLimit limit_;
  std::atomic<RequestId> next_id_{1};
  std::atomic<bool> draining_{false}, dead_{false}, busy_{false};
  std::atomic<int> running_{0};
  std::atomic<Clock::rep> progress_{0};
  std::string fault_;                         // what ended the engine; used on the engine thread only
  std::deque<std::shared_ptr<Job>> waiting_;  // in order of arrival; used on the engine thread only

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Job>> arrived_;
  std::vector<RequestId> cancelled_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> pooling_engine(const EngineOptions& options, std::unique_ptr<ThreadPool> pool,
                                       LoadedModel loaded, TextEnds text) {
  return std::make_unique<PoolingEngine>(options, std::move(pool), std::move(loaded), std::move(text));
}

}  // namespace sluice
