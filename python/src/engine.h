// An engine as Python holds it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "binding/call_template.h"
#include "binding/pooling.h"
#include "channel.h"
#include "sluice/engine.h"

namespace sluice::python {

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct Closed {};  // thrown when an engine is used that was closed
struct Forked {
  pid_t owner;
};  // thrown when a child process uses an engine of its parent

// A channel for requests to an engine, as Python holds it. Whoever lets go of it ends the requests that still run.
//
// Sinks own the channel itself: what they own must not belong to Python, because the engine's threads would need the
// interpreter's lock to let go of it. Methods may run without that lock. Thread-safe.
class ChannelHandle {
 public:
  ChannelHandle(const std::shared_ptr<Engine>& engine, pid_t owner) : engine_(engine), owner_(owner) {}
  ~ChannelHandle();
  ChannelHandle(const ChannelHandle&) = delete;
  ChannelHandle& operator=(const ChannelHandle&) = delete;

  const std::shared_ptr<Channel>& channel() const { return channel_; }
  std::vector<Part> take(std::chrono::milliseconds wait);  // throws Forked
  int descriptor();                                        // throws Forked, Error
  // End a request, or all. In a child process nothing runs that could be ended.
  void drop(Key key);
  void drop_all();

 private:
  void cancel(const std::vector<RequestId>& running) const;

  const std::shared_ptr<Channel> channel_ = std::make_shared<Channel>();
  const std::weak_ptr<Engine> engine_;
  const pid_t owner_;
};

// Methods may run without the interpreter's lock. Thread-safe.
class EngineHandle {
 public:
  using Options = std::vector<std::pair<std::string, std::string>>;

  // `notes` gets a line for each option that needs nothing. Throws Error.
  EngineHandle(const std::string& model, const Options& options, std::vector<std::string>& notes);
  ~EngineHandle() { close(); }
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  std::shared_ptr<Engine> use() const;  // throws Closed, Forked

  // Ends all requests and frees the engine, as soon as no method runs. In a child process it only forgets the engine.
  void close();

  void cancel(RequestId id) const;  // throws Forked; a closed engine has ended its requests
  std::unique_ptr<ChannelHandle> channel() const { return std::make_unique<ChannelHandle>(use(), owner_); }

  struct Submitted {
    RequestId id;
    std::vector<TokenId> tokens;  // of the prompt
  };
  // Sends a copy of the request with a prompt. max_tokens gives way to the context. Throws Error.
  Submitted submit(const Request& request, const Prompt& prompt, bool add_special_tokens,
                   const std::shared_ptr<Channel>& channel, Key key, bool stream);
  RequestId submit_pooling(const std::vector<binding::PoolingInput>& inputs, const std::string& options,
                           const std::shared_ptr<Channel>& channel, Key key, std::vector<std::vector<TokenId>>& tokens);

  // The conversation of a chat body, by the model's template or by another one (Jinja source or a file).
  std::string render(const std::string& body, const std::string& chat_template);

 private:
  EngineOptions options_;
  const pid_t owner_;
  mutable std::mutex mutex_;  // guards the pointer
  std::shared_ptr<Engine> engine_;
  binding::CallTemplates templates_;
};

}  // namespace sluice::python
