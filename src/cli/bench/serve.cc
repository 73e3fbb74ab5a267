// sluice bench serve: sends requests at a given rate to an engine in this process or to a server, and measures what
// their clients see. Times between arrivals are exponentially distributed (a Poisson process) or constant.
#include "cli/bench/serve.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "cli/bench/bench.h"
#include "sluice/engine.h"

namespace sluice::cli {
namespace {

using Clock = ServedRequest::Clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Arguments {
  LoadArguments load;
  double request_rate = std::numeric_limits<double>::infinity();
  bool constant_rate = false;
  int max_concurrency = 0;
  unsigned seed = 0;
  std::vector<std::string> goodput;
  std::string base_url, api_key;
  int vocabulary = 1000;
};

// Counts requests that were sent and not answered yet.
class Open {
 public:
  explicit Open(int most) : most_(most) {}
  void enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return most_ == 0 || open_ < most_; });
    ++open_;
  }
  void leave() {
    const std::scoped_lock lock(mutex_);
    --open_;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ == 0; });
  }

 private:
  const int most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
};

// Calls send(i) for every request at its time and waits for all answers. `send`, or what it starts, must call
// open.leave(). Returns the seconds it took.
template <class Send>
double run_load(const Arguments& a, int requests, Open& open, Send&& send) {
  std::mt19937_64 random(a.seed);
  std::exponential_distribution<double> gaps(1.0);
  const Clock::time_point start = Clock::now();
  double at = 0;  // seconds from the start
  for (int i = 0; i < requests; ++i) {
    std::this_thread::sleep_until(start +
                                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at)));
    open.enter();
    send(i);
    if (std::isfinite(a.request_rate)) at += (a.constant_rate ? 1.0 : gaps(random)) / a.request_rate;
  }
  open.wait();
  return seconds_between(start, Clock::now());
}

double serve_engine(const Arguments& a, std::vector<ServedRequest>& served, Json& out) {
  LoadArguments load = a.load;
  const auto engine = load_engine(load, load.num_prompts);
  out = describe(load, *engine);
  // The first request of all is a warm-up: it pays for what is created at first use.
  const std::vector<Request> requests = make_requests(load, *engine, load.num_prompts + 1);
  Open open(a.max_concurrency);
  const auto send = [&](const Request& request, ServedRequest& to) {
    to.sent = Clock::now();
    engine->submit(request, [&to, &open](const Event& event) {
      const Clock::time_point now = Clock::now();
      if (!event.tokens.empty()) to.pieces.push_back(now);
      to.output_tokens += static_cast<int>(event.tokens.size());
      if (!event.last) return;
      to.ended = now;
      to.prompt_tokens = event.usage.prompt_tokens;
      if (event.finish->reason == FinishReason::kError) to.error = event.finish->message;
      open.leave();
    });
  };
  ServedRequest warm;
  open.enter();
  send(requests.back(), warm);
  open.wait();
  return run_load(a, load.num_prompts, open,
                  [&](int i) { send(requests[static_cast<size_t>(i)], served[static_cast<size_t>(i)]); });
}

double serve_remote(const Arguments& a, std::vector<ServedRequest>& served, Json& out) {
  const RemoteModel model = find_remote_model(a.base_url, a.api_key);
  out = {{"url", a.base_url}, {"model", model.name}, {"input", a.load.input_len}, {"output_len", a.load.output_len}};
  std::mt19937 random(a.seed);
  const auto prompt = [&] {
    std::vector<int> ids(static_cast<size_t>(a.load.input_len));
    for (int& id : ids) id = static_cast<int>(random() % static_cast<unsigned>(a.vocabulary));
    return ids;
  };
  ServedRequest warm;
  stream_completion(model, prompt(), a.load.output_len, warm);
  if (!warm.error.empty()) throw Error(ErrorCode::kInternal, fmt::format("{}: {}", a.base_url, warm.error));
  Open open(a.max_concurrency);
  std::vector<std::thread> clients;
  const double seconds = run_load(a, a.load.num_prompts, open, [&](int i) {
    clients.emplace_back([&model, &a, &open, &to = served[static_cast<size_t>(i)], ids = prompt()] {
      stream_completion(model, ids, a.load.output_len, to);
      open.leave();
    });
  });
  for (std::thread& client : clients) client.join();
  return seconds;
}

int serve(const Arguments& a) {
  ServiceLimits limits;
  for (const std::string& limit : a.goodput) limits.set(limit);
  std::vector<ServedRequest> served(static_cast<size_t>(a.load.num_prompts));
  Json out;
  const double seconds = a.base_url.empty() ? serve_engine(a, served, out) : serve_remote(a, served, out);
  out["request_rate"] = std::isfinite(a.request_rate) ? Json(a.request_rate) : Json("inf");
  if (a.max_concurrency > 0) out["max_concurrency"] = a.max_concurrency;
  out.update(summarize(served, seconds, limits));
  print_result(out);
  return out.at("failed").get<int>() == 0 ? 0 : 1;
}

}  // namespace

double ServedRequest::ttft() const { return seconds_between(sent, pieces.front()); }
double ServedRequest::tpot() const {
  return output_tokens > 1 ? seconds_between(pieces.front(), pieces.back()) / (output_tokens - 1) : 0.0;
}
double ServedRequest::e2e() const { return seconds_between(sent, ended); }

void ServiceLimits::set(const std::string& limit) {
  const size_t colon = limit.find(':');
  const std::string name = limit.substr(0, colon), value = colon == std::string::npos ? "" : limit.substr(colon + 1);
  double* to = name == "ttft" ? &ttft : name == "tpot" ? &tpot : name == "e2e" ? &e2e : nullptr;
  char* end = nullptr;
  const double milliseconds = std::strtod(value.c_str(), &end);
  if (to == nullptr || value.empty() || *end != '\0' || !(milliseconds > 0)) {
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format("--goodput: invalid limit '{}' (expected ttft:MS, tpot:MS or e2e:MS, e.g. ttft:200)", limit));
  }
  *to = milliseconds;
}

bool ServiceLimits::kept_by(const ServedRequest& r) const {
  const auto kept = [](double limit, double seconds) { return limit <= 0 || seconds * 1000 <= limit; };
  return r.error.empty() && !r.pieces.empty() && kept(ttft, r.ttft()) && kept(tpot, r.tpot()) && kept(e2e, r.e2e());
}

Json summarize(const std::vector<ServedRequest>& requests, double seconds, const ServiceLimits& limits) {
  std::vector<double> ttft, tpot, itl, e2e;
  int64_t prompt_tokens = 0, output_tokens = 0;
  int failed = 0, good = 0;
  std::string error;
  for (const ServedRequest& r : requests) {
    if (!r.error.empty() || r.pieces.empty()) {
      ++failed;
      if (error.empty()) error = r.error.empty() ? "the answer has no tokens" : r.error;
      continue;
    }
    ttft.push_back(r.ttft()), e2e.push_back(r.e2e());
    if (r.output_tokens > 1) tpot.push_back(r.tpot());
    for (size_t i = 1; i < r.pieces.size(); ++i) itl.push_back(seconds_between(r.pieces[i - 1], r.pieces[i]));
    prompt_tokens += r.prompt_tokens, output_tokens += r.output_tokens;
    good += limits.kept_by(r) ? 1 : 0;
  }
  const auto completed = static_cast<double>(requests.size()) - failed;
  Json out = {{"requests", requests.size()},
              {"failed", failed},
              {"seconds", seconds},
              {"requests_per_second", completed / seconds},
              {"output_tokens_per_second", static_cast<double>(output_tokens) / seconds},
              {"total_tokens_per_second", static_cast<double>(output_tokens + prompt_tokens) / seconds},
              {"ttft_ms", to_json(percentiles(ttft), 1000)},
              {"tpot_ms", to_json(percentiles(tpot), 1000)},
              {"itl_ms", to_json(percentiles(itl), 1000)},
              {"e2e_ms", to_json(percentiles(e2e), 1000)}};
  if (limits.any()) out["goodput"] = good / seconds;
  if (!error.empty()) out["first_error"] = error;
  return out;
}

}  // namespace sluice::cli

namespace sluice::cli::bench_serve {
namespace {

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_load_options(app, a->load);
  app.add_option("--num-prompts", a->load.num_prompts, "requests")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--request-rate", a->request_rate, "requests per second; inf: all at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--constant-rate", a->constant_rate, "send requests at equal intervals instead of as a Poisson process");
  app.add_option("--max-concurrency", a->max_concurrency, "maximum open requests; later ones wait (0: no limit)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--arrival-seed", a->seed, "seed of the times between requests")->capture_default_str();
  app.add_option("--goodput", a->goodput,
                 "limits in milliseconds that good requests meet, e.g. ttft:200,tpot:30,e2e:5000")
      ->delimiter(',');
  app.add_option("--base-url", a->base_url,
                 "http://HOST:PORT of an OpenAI-compatible server to measure instead of MODEL");
  app.add_option("--remote-api-key", a->api_key, "API key of that server");
  app.add_option("--remote-vocabulary", a->vocabulary, "token ids in prompts for that server are below this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return [a] { return serve(*a); };
}

const BenchCommand command{"serve", "measure requests at a rate: TTFT, TPOT, time between tokens, goodput", declare};
const Registry<BenchCommand> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_serve
