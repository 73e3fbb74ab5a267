// Downloads of models that requests ask for. All requests for a model share one download; it ends when the last of
// them has left.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/errors.h"
#include "server/models.h"

namespace sluice::server {

// A file of a model that is being downloaded.
struct PullFile {
  std::string digest;           // "sha256:<64 digits>", or another name of its content
  uint64_t size = 0, done = 0;  // bytes
};

// What a download tells while it goes on.
class PullProgress {
 public:
  virtual ~PullProgress() = default;
  // To be called several times a second, from any thread. Throws Error(kOverloaded) if the download is to end.
  virtual void check() = 0;
  // Whether it is time to tell files(): a few times a second.
  virtual bool due() = 0;
  // All files of the model. Never called concurrently.
  virtual void files(std::vector<PullFile> files) = 0;
  // A further step, in words: "writing manifest". After the last files().
  virtual void step(std::string_view name) = 0;
};

// Where models come from.
struct PullSource {
  // The name under which a model will be served, of what a client wrote; none if no model can have it.
  std::function<std::optional<std::string>(std::string_view)> name;
  // Downloads the model of such a name, and says how it is loaded. Blocks. Throws Error or ApiError.
  std::function<ModelSource(const std::string& name, PullProgress& progress)> get;
};

// A request that waits for a model. Called on any thread; must not block, not throw, and not call Pulls.
class PullListener {
 public:
  virtual ~PullListener() = default;
  // When it gives up.
  virtual std::optional<std::chrono::steady_clock::time_point> deadline() const = 0;
  virtual void on_files(std::span<const PullFile> files) = 0;
  virtual void on_step(std::string_view name) = 0;
  virtual void on_end(const ApiError* error) = 0;  // null: the model is served
};

// Thread-safe.
class Pulls {
 public:
  static constexpr size_t kMost = 4;         // downloads at a time
  static constexpr size_t kMostAdded = 256;  // models that requests may add until the server ends

  Pulls();  // of a server that allows none
  Pulls(std::shared_ptr<Models> models, PullSource source);
  ~Pulls();  // ends the downloads in progress

  bool allowed() const { return models_ != nullptr; }
  // Downloads the model, or joins the download in progress; then adds it to the table under the source's name for it.
  // Throws ApiError if the name is none, if there are too many downloads or models, or after stop().
  void join(std::string_view model, std::shared_ptr<PullListener> listener);
  // The listener hears nothing more, but what is being told just now.
  void leave(const PullListener* listener);
  // Ends all downloads, and starts no more. Does not wait for them.
  void stop();

 private:
  class Pull;

  void run(Pull& pull) noexcept;
  std::optional<ApiError> attempt(Pull& pull);
  void serve(const std::string& name, ModelSource source);

  const std::shared_ptr<Models> models_;
  const PullSource source_;
  std::mutex mutex_;
  bool stopping_ = false;
  size_t added_ = 0;
  std::list<std::unique_ptr<Pull>> pulls_;
};

}  // namespace sluice::server
