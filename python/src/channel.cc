// Collects events under a lock; see channel.h.
#include "channel.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace sluice::python {

namespace {

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
}

ChoicePart& choice_of(Part& part, int index) {
  const auto found = std::ranges::find(part.choices, index, &ChoicePart::index);
  if (found != part.choices.end()) return *found;
  part.choices.emplace_back().index = index;
  return part.choices.back();
}

}  // namespace

Channel::~Channel() {
  if (event_fd_ >= 0) ::close(event_fd_);
}

std::shared_ptr<Channel::Answer> Channel::open(Key key, bool stream) {
  auto answer = std::make_shared<Answer>();
  answer->part.key = key;
  answer->stream = stream;
  const std::scoped_lock lock(mutex_);
  open_[key] = answer;
  return answer;
}

void Channel::push(const std::shared_ptr<Answer>& answer, Event event) {
  const std::scoped_lock lock(mutex_);
  if (answer->dropped) return;
  Part& part = answer->part;
  ChoicePart& choice = choice_of(part, event.index);
  for (Delta& delta : event.deltas) {
    if (const auto* text = std::get_if<TextDelta>(&delta)) choice.text += text->text;
  }
  append(choice.tokens, std::move(event.tokens));
  append(choice.logprobs, std::move(event.logprobs));
  append(part.prompt_logprobs, std::move(event.prompt_logprobs));
  if (event.finish) choice.finish = std::move(event.finish);
  part.cached_tokens = event.usage.cached_tokens;
  part.last = event.last;
  if (answer->stream || part.last) queue(answer);
}

void Channel::push(const std::shared_ptr<Answer>& answer, PoolingResult result) {
  const std::scoped_lock lock(mutex_);
  if (answer->dropped) return;
  answer->part.pooled = std::move(result);
  answer->part.last = true;
  queue(answer);
}

void Channel::started(Answer& answer, RequestId id) {
  const std::scoped_lock lock(mutex_);
  answer.id = id;
}

void Channel::forget(Answer& answer, std::vector<RequestId>& running) {
  answer.dropped = true;
  if (answer.id && !answer.part.last) running.push_back(*answer.id);
}

std::vector<RequestId> Channel::drop(Key key) {
  std::vector<RequestId> running;
  const std::scoped_lock lock(mutex_);
  const auto node = open_.extract(key);
  if (node.empty()) return running;
  forget(*node.mapped(), running);
  std::erase(ready_, node.mapped());
  return running;
}

std::vector<RequestId> Channel::drop_all() {
  std::vector<RequestId> running;
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, answer] : open_) forget(*answer, running);
  open_.clear();
  ready_.clear();
  return running;
}

void Channel::queue(const std::shared_ptr<Answer>& answer) {
  if (std::exchange(answer->queued, true)) return;
  ready_.push_back(answer);
  if (ready_.size() > 1) return;  // the reader was told
  wake_.notify_one();
  const uint64_t one = 1;
  // The counter never fills up, because the reader empties it before more than one is added.
  if (event_fd_ >= 0) [[maybe_unused]]
    const ssize_t written = ::write(event_fd_, &one, sizeof one);
}

std::vector<Part> Channel::take(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  if (wait.count() > 0) wake_.wait_for(lock, wait, [this] { return !ready_.empty(); });
  std::vector<Part> parts;
  parts.reserve(ready_.size());
  for (const std::shared_ptr<Answer>& answer : ready_) {
    answer->queued = false;
    Part next{.key = answer->part.key};
    if (answer->part.last) open_.erase(next.key);
    parts.push_back(std::exchange(answer->part, std::move(next)));
  }
  ready_.clear();
  uint64_t count = 0;
  if (event_fd_ >= 0) [[maybe_unused]]
    const ssize_t read = ::read(event_fd_, &count, sizeof count);
  return parts;
}

int Channel::descriptor() {
  const std::scoped_lock lock(mutex_);
  if (event_fd_ >= 0) return event_fd_;
  event_fd_ = ::eventfd(ready_.empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd_ < 0) throw Error(ErrorCode::kInternal, std::string("eventfd: ") + std::strerror(errno));
  return event_fd_;
}

}  // namespace sluice::python
