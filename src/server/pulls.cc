// A thread per download; see pulls.h.
#include "server/pulls.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "server/generation.h"

namespace sluice::server {
namespace {

constexpr std::chrono::milliseconds kTellEvery{200};

ApiError shutting_down() { return overloaded("The server is shutting down."); }

// The first line of a message, which may have a table below it.
std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

ApiError cannot_pull(const std::string& name, const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidRequest:
    case ErrorCode::kNotFound:
    case ErrorCode::kOverloaded:
      return to_api_error(error);
    case ErrorCode::kInternal:  // may name folders
      return {.status = 500,
              .message = fmt::format("The download of `{}` failed: see the server's log.", name),
              .code = "pull_failed",
              .type = "server_error"};
    default:
      return {.status = 500,
              .message = fmt::format("The model `{}` cannot be served: {}.", name, first_line(error.what())),
              .code = "pull_failed",
              .type = "server_error"};
  }
}

}  // namespace

// A download and the requests that wait for it.
class Pulls::Pull final : public PullProgress {
 public:
  Pull(std::string name, std::shared_ptr<PullListener> first)
      : name_(std::move(name)), listeners_{std::move(first)}, told_(std::chrono::steady_clock::now()) {}

  const std::string& name() const { return name_; }

  // False if the download ends already.
  bool join(const std::shared_ptr<PullListener>& listener) {
    const std::lock_guard lock(mutex_);
    if (ending_) return false;
    listeners_.push_back(listener);
    return true;
  }
  void leave(const PullListener* listener) {
    std::shared_ptr<PullListener> gone;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(listeners_, listener, [](const auto& each) { return each.get(); });
    if (found == listeners_.end()) return;
    gone = std::move(*found);
    listeners_.erase(found);
  }
  // Tells the end. Nobody can join any more.
  void end(const ApiError* error) {
    std::vector<std::shared_ptr<PullListener>> listeners;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      listeners.swap(listeners_);
    }
    for (const auto& listener : listeners) listener->on_end(error);
  }

  // Forgets all listeners without telling them.
  void forget_all() {
    std::vector<std::shared_ptr<PullListener>> listeners;
    const std::lock_guard lock(mutex_);
    ending_ = true;
    listeners.swap(listeners_);
  }

  void check() override {
    for (const auto& late : take_late()) {
      const ApiError error = aborted(late->deadline());
      late->on_end(&error);
    }
    const std::lock_guard lock(mutex_);
    ending_ |= listeners_.empty();
    if (ending_) throw Error(ErrorCode::kOverloaded, fmt::format("{}: nobody waits for the download", name_));
  }
  bool due() override {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    if (now < told_ + kTellEvery) return false;
    told_ = now;
    return true;
  }
  void files(std::vector<PullFile> files) override {
    for (const auto& listener : listeners()) listener->on_files(files);
  }
  void step(std::string_view name) override {
    for (const auto& listener : listeners()) listener->on_step(name);
  }

  std::atomic<bool> done{false};
  std::jthread thread{};  // the last member: it uses the others

 private:
  std::vector<std::shared_ptr<PullListener>> listeners() {
    const std::lock_guard lock(mutex_);
    return listeners_;
  }

  // Takes out the listeners whose deadline has passed.
  std::vector<std::shared_ptr<PullListener>> take_late() {
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<PullListener>> late;
    const std::lock_guard lock(mutex_);
    const auto is_late = [&](const auto& listener) { return listener->deadline() && *listener->deadline() <= now; };
    std::ranges::copy_if(listeners_, std::back_inserter(late), is_late);
    std::erase_if(listeners_, is_late);
    return late;
  }

  const std::string name_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<PullListener>> listeners_;
  bool ending_ = false;
  std::chrono::steady_clock::time_point told_;
};

Pulls::Pulls(std::shared_ptr<Models> models, PullSource source)
    : models_(std::move(models)), source_(std::move(source)) {}

Pulls::Pulls() : source_{} {}
Pulls::~Pulls() { stop(); }

void Pulls::join(std::string_view model, std::shared_ptr<PullListener> listener) {
  const std::optional<std::string> name = source_.name(model);
  if (!name) {
    throw invalid_value("model", fmt::format("Invalid model name: '{}' (expected org/name[:tag], a model on the "
                                             "Hugging Face hub; the tag is a revision or a GGUF type).",
                                             quotable(model)));
  }
  const std::lock_guard lock(mutex_);
  if (stopping_) throw shutting_down();
  std::erase_if(pulls_, [](const auto& pull) { return pull->done.load(); });
  for (const auto& pull : pulls_) {
    if (pull->name() == *name && pull->join(listener)) return;
  }
  if (pulls_.size() >= kMost) {
    throw overloaded(fmt::format("The server downloads {} models already. Please try again later.", pulls_.size()));
  }
  if (added_ + pulls_.size() >= kMostAdded) {
    throw overloaded(
        fmt::format("Requests have added {} models already; no more until the server is restarted.", kMostAdded));
  }
  Pull& pull = *pulls_.emplace_back(std::make_unique<Pull>(*name, std::move(listener)));
  try {
    pull.thread = std::jthread([this, &pull] { run(pull); });
  } catch (const std::system_error&) {
    pulls_.pop_back();
    throw out_of_memory();
  }
}

void Pulls::leave(const PullListener* listener) {
  const std::lock_guard lock(mutex_);
  for (const auto& pull : pulls_) pull->leave(listener);
}

void Pulls::stop() {
  const ApiError error = shutting_down();
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const auto& pull : pulls_) pull->end(&error);
}

void Pulls::run(Pull& pull) noexcept {
  try {
    const std::optional<ApiError> error = attempt(pull);
    pull.end(error ? &*error : nullptr);
  } catch (const std::exception&) {  // there is no memory for the error either
    pull.forget_all();
  }
  pull.done = true;
}

std::optional<ApiError> Pulls::attempt(Pull& pull) {
  try {
    log::info("pulling {}", pull.name());
    serve(pull.name(), source_.get(pull.name(), pull));
    log::info("pulled {}", pull.name());
    return std::nullopt;
  } catch (const ApiError& error) {
    log::warning("pulling {} failed: {}", pull.name(), error.message);
    return error;
  } catch (const Error& error) {
    log::warning("pulling {} failed: {}", pull.name(), error.what());
    return cannot_pull(pull.name(), error);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

// A model may be downloaded twice, one download after the other, if all clients left the first one as it ended.
void Pulls::serve(const std::string& name, ModelSource source) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::string> names = models_->names();
  if (std::ranges::find(names, name) != names.end()) return;
  models_->add_source(name, std::move(source));
  ++added_;
}

}  // namespace sluice::server
