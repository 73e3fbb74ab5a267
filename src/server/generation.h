// A generation in progress. Carries events from the engine's thread to the reply of one client.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/errors.h"
#include "server/http/http.h"
#include "server/request_log.h"
#include "sluice/engine.h"

namespace sluice::server {

// Called once when an answer is kept (null) or cannot be. Any thread. Must not throw.
using Kept = std::function<void(const ApiError* error)>;

// Prints the events of one answer in the form of a dialect. Used by one thread at a time.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  // `prompt` is the index of the request. Returns what a stream sends for the event, which may be nothing.
  virtual std::string on_event(int prompt, Event event) = 0;
  // Called after the last event. An answer that the client may fetch later is kept first: returns true, and the answer
  // ends when `done` is called.
  virtual bool keep(Kept done) {
    static_cast<void>(done);
    return false;
  }
  virtual std::string stream_end() = 0;                         // after the last event
  virtual std::string stream_error(const ApiError& error) = 0;  // instead of stream_end
  virtual std::string_view stream_type() const { return "text/event-stream; charset=utf-8"; }
  virtual std::string body() = 0;                                  // whole answer, when it is not streamed
  virtual HttpResponse error_response(const ApiError& error) = 0;  // when nothing was sent yet
};

struct GenerationJob {
  std::vector<Request> requests;    // one per prompt
  std::optional<ChatRequest> chat;  // instead of `requests`
  bool stream = false;
  std::unique_ptr<AnswerFormat> format;
  Headers headers;  // sent with the answer
  std::optional<RequestLog> log = {};
};

// What the engine does for one client.
class RunningCall {
 public:
  virtual ~RunningCall() = default;
  // Ends the call with an error. May be called on any thread.
  virtual void abort(const ApiError& error) = 0;
  // Cancels the request at the engine and releases the reply, which is not used after detach() returns. Any thread.
  virtual void detach() = 0;
};

// All running calls, so that a shutdown can end them. Thread-safe.
class RunningGenerations {
 public:
  void add(const std::shared_ptr<RunningCall>& call);
  void remove(RunningCall* call);
  bool empty();
  void abort_all(const ApiError& error);  // every call answers with the error; a stream sends it as an event
  void detach_all();                      // cancels all calls and releases their replies

 private:
  std::vector<std::shared_ptr<RunningCall>> all();
  std::mutex mutex_;
  std::unordered_map<RunningCall*, std::weak_ptr<RunningCall>> items_;
};

// The error for a request that was aborted: deadline_exceeded if the deadline has passed.
ApiError aborted(const std::optional<std::chrono::steady_clock::time_point>& deadline);

class Generation final : public RunningCall, public std::enable_shared_from_this<Generation> {
 public:
  // Submits the requests. The reply gets the answer or the error. The requests are cancelled when the client leaves.
  static void start(std::shared_ptr<Engine> engine, GenerationJob job, std::shared_ptr<HttpReply> reply,
                    const std::shared_ptr<RunningGenerations>& running);
  ~Generation() override;

  void abort(const ApiError& error) override;
  void detach() override;

 private:
  Generation(std::shared_ptr<Engine> engine, GenerationJob job, std::shared_ptr<HttpReply> reply,
             std::shared_ptr<RunningGenerations> running);
  void submit();
  RequestId submit(size_t prompt);
  void push(int prompt, Event event);
  bool queue(int prompt, Event event);
  void drain();
  void take(int prompt, Event event);
  void finish();
  void kept(const ApiError* error);
  void end();
  void fail(const ApiError& error);
  void cancel();
  std::shared_ptr<HttpReply> reply();

  const std::shared_ptr<Engine> engine_;
  GenerationJob job_;
  const std::shared_ptr<RunningGenerations> running_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;

  std::mutex posting_mutex_;          // held while the engine's thread posts to the reply; locked before mutex_
  std::mutex mutex_;                  // guards the following five
  std::shared_ptr<HttpReply> reply_;  // null once detached
  std::vector<RequestId> ids_;
  bool cancelled_ = false;
  std::vector<std::pair<int, Event>> pending_;
  bool draining_ = false;  // a drain() is queued or running

  // Used by drain() only, which never runs twice at a time.
  size_t open_ = 0;
  bool streaming_ = false;
  bool done_ = false;
};

}  // namespace sluice::server
