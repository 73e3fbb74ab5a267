// Runs one request on the engine and waits for its end.
#include "cli/generate.h"

#include <CLI/CLI.hpp>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>

namespace sluice::cli {
namespace {

std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted.store(true); }

// While one of these exists, SIGINT sets a flag instead of ending the program.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted.store(false);
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace

Answer generate(Engine& engine, Request request, const std::function<void(const std::string&)>& on_text) {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<Event> events;
  const InterruptGuard guard;
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double first = 0;
  const RequestId id = engine.submit(std::move(request), [&](Event event) {
    const std::scoped_lock lock(mutex);
    if (first == 0 && !event.tokens.empty()) first = elapsed();
    events.push_back(std::move(event));
    wake.notify_one();
  });
  Answer answer;
  for (bool last = false, cancelled = false; !last;) {
    std::vector<Event> batch;
    {
      std::unique_lock lock(mutex);
      wake.wait_for(lock, std::chrono::milliseconds(50), [&] { return !events.empty(); });
      batch.swap(events);
    }
    if (interrupted.load() && !cancelled) {
      cancelled = true;
      engine.cancel(id);
    }
    for (Event& event : batch) {
      const std::string text = event_text(event);
      if (!text.empty()) on_text(text);
      answer.text += text;
      answer.usage = event.usage;
      if (event.finish) answer.finish = *event.finish;
      last = event.last;
    }
  }
  answer.seconds_to_first = first;
  answer.seconds = elapsed();
  return answer;
}

SamplingParams SamplingArguments::resolve(const ModelInfo& model) const {
  SamplingParams p = model.default_sampling;
  p.temperature = temperature.value_or(p.temperature);
  p.top_p = top_p.value_or(p.top_p);
  p.min_p = min_p.value_or(p.min_p);
  p.repetition_penalty = repetition_penalty.value_or(p.repetition_penalty);
  p.top_k = top_k.value_or(p.top_k);
  if (max_tokens) p.max_tokens = max_tokens;
  p.seed = seed;
  p.stop = stop;
  return p;
}

void add_sampling_options(CLI::App& app, SamplingArguments& s) {
  app.add_option("--temperature", s.temperature, "sampling temperature; 0 is greedy");
  app.add_option("--top-p", s.top_p, "sample from the smallest set of tokens with this total probability");
  app.add_option("--top-k", s.top_k, "sample from this many most likely tokens (0: all)");
  app.add_option("--min-p", s.min_p, "minimum probability relative to the most likely token");
  app.add_option("--repetition-penalty", s.repetition_penalty, "above 1 discourages tokens that already occurred");
  app.add_option("--max-tokens", s.max_tokens, "maximum tokens of the answer");
  app.add_option("--sampling-seed", s.seed, "seed for reproducible sampling");
  app.add_option("--stop", s.stop, "string that ends the answer; may be repeated")->allow_extra_args(false);
}

}  // namespace sluice::cli
