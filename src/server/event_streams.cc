// Opens streams and sends what is due.
#include "server/event_streams.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "server/errors.h"
#include "server/snapshot.h"

namespace sluice::server {
namespace {

// Looks are about this far apart. A snapshot may be half of that early, so that an interval does not grow by a look.
constexpr std::chrono::milliseconds kLookEvery{100};

std::string event_text(const Models& models) { return fmt::format("data: {}\n\n", snapshot(models)); }

}  // namespace

HttpResponse EventStreams::head() {
  return {.content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

void EventStreams::open(const Models& models, const std::shared_ptr<HttpReply>& reply, Clock::duration interval,
                        std::optional<Clock::time_point> deadline) {
  std::string first = event_text(models);
  const auto stream = std::make_shared<Stream>(
      Stream{.reply = reply, .interval = interval, .deadline = deadline, .due = Clock::now() + interval});
  add(stream);
  try {
    // Weak: the reply must not keep the stream alive.
    reply->on_abandoned([streams = weak_from_this(), weak = std::weak_ptr(stream)] {
      const auto all = streams.lock();
      const auto left = weak.lock();
      if (all && left) all->remove(left);
    });
    reply->start_stream(head());
  } catch (...) {
    remove(stream);
    throw;
  }
  reply->write(std::move(first));
  const std::lock_guard lock(mutex_);
  stream->started = true;
}

void EventStreams::add(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  if (ending_) throw overloaded("The server is shutting down.");
  if (streams_.size() >= kMost) {
    throw overloaded(fmt::format("The server has {} event streams already. Please close one.", kMost));
  }
  streams_.push_back(stream);
}

void EventStreams::remove(const std::shared_ptr<Stream>& stream) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
}

// Those that are over leave the list. A stream that is just being opened ends at the next look.
EventStreams::List EventStreams::take_ended(Clock::time_point now, bool ending) {
  List ended;
  const std::lock_guard lock(mutex_);
  ending_ |= ending;
  for (auto it = streams_.begin(); it != streams_.end();) {
    const auto next = std::next(it);
    const Stream& stream = **it;
    if (stream.started && (ending || (stream.deadline && now >= *stream.deadline))) {
      ended.splice(ended.end(), streams_, it);
    }
    it = next;
  }
  return ended;
}

void EventStreams::look(const Models& models, bool ending) {
  const Clock::time_point now = Clock::now();
  for (const auto& stream : take_ended(now, ending)) stream->reply->end_stream(ending);
  if (ending) return;
  std::vector<std::shared_ptr<Stream>> due;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) {
      if (stream->started && now + kLookEvery / 2 >= stream->due) due.push_back(stream);
    }
  }
  if (due.empty()) return;
  const std::string event = event_text(models);
  for (const auto& stream : due) {
    stream->reply->write(event);
    stream->due = std::max(stream->due + stream->interval, now + stream->interval / 2);
  }
}

void EventStreams::detach_all() {
  List all;
  const std::lock_guard lock(mutex_);
  ending_ = true;
  all.swap(streams_);
}

}  // namespace sluice::server
