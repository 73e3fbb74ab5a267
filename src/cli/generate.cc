// Runs one request on the engine and waits for its end.
#include "cli/generate.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
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

namespace {

// Returns what is wrong with a flag's value, or nothing.
std::string error_of(const SamplingParameter& row, const std::string& text) {
  double value = 0;
  int integer = 0;
  const bool parsed =
      CLI::detail::lexical_cast(text, value) && (!row.is_integer() || CLI::detail::lexical_cast(text, integer));
  if (parsed && value >= row.min && value <= row.max && !(row.above_min && value == row.min)) return {};
  return fmt::format("expected {} {} {} and at most {}, but got {}", row.is_integer() ? "an integer" : "a number",
                     row.above_min ? "above" : "of at least", row.min, row.max, text);
}

}  // namespace

SamplingParams SamplingArguments::resolve(const ModelInfo& model) const {
  SamplingParams p = model.default_sampling;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i]) kSamplingParameters[i].set(p, *numbers[i]);
  }
  if (max_tokens) p.max_tokens = max_tokens;
  p.seed = seed;
  p.stop = stop;
  return p;
}

void add_sampling_options(CLI::App& app, SamplingArguments& s) {
  for (size_t i = 0; i < s.numbers.size(); ++i) {
    const SamplingParameter& row = kSamplingParameters[i];
    std::string flag = "--" + std::string(row.name);
    std::ranges::replace(flag, '_', '-');
    app.add_option(flag, s.numbers[i], std::string(row.help))
        ->type_name(row.is_integer() ? "INT" : "FLOAT")
        ->check([&row](const std::string& text) { return error_of(row, text); });
  }
  app.add_option("--max-tokens", s.max_tokens, "maximum tokens of the answer");
  app.add_option("--sampling-seed", s.seed, "seed for reproducible sampling");
  app.add_option("--stop", s.stop, "string that ends the answer; may be repeated")->allow_extra_args(false);
}

}  // namespace sluice::cli
