// Streams of snapshots that go on until their client leaves. The server's regular looks at them make the events, so
// that a stream holds no thread.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "server/http/http.h"
#include "server/models.h"

namespace sluice::server {

// Thread-safe. Must be owned by a shared pointer.
class EventStreams : public std::enable_shared_from_this<EventStreams> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMost = 64;  // streams at a time

  static HttpResponse head();  // of the answer, without a body

  // Answers with a stream: a snapshot now, and one every `interval` until the client leaves, the deadline passes or the
  // server ends. Called on the reply's thread. Throws ApiError if there are too many streams or the server ends.
  void open(const Models& models, const std::shared_ptr<HttpReply>& reply, Clock::duration interval,
            std::optional<Clock::time_point> deadline);

  // Sends the snapshots that are due; one snapshot serves all streams. `ending`: ends all streams instead, and takes no
  // more. To be called several times a second, also after it threw for lack of memory.
  void look(const Models& models, bool ending);

  // Lets go of all replies.
  void detach_all();

 private:
  struct Stream {
    std::shared_ptr<HttpReply> reply;
    Clock::duration interval;
    std::optional<Clock::time_point> deadline;
    Clock::time_point due;
    bool started = false;  // the head of the answer is sent
  };
  using List = std::list<std::shared_ptr<Stream>>;

  void add(const std::shared_ptr<Stream>& stream);
  void remove(const std::shared_ptr<Stream>& stream) noexcept;
  List take_ended(Clock::time_point now, bool ending);

  // Not held while a reply is used: what a reply is told may run at once, and may find out that the client is gone.
  std::mutex mutex_;
  List streams_;
  bool ending_ = false;
};

}  // namespace sluice::server
