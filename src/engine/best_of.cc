// Events of a choice are put together until all choices have ended. They come one at a time.
#include "engine/best_of.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

namespace sluice {
namespace {

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// A choice without tokens, or one that failed, is the worst.
double mean_logprob(const Event& event) {
  const bool failed = event.finish && event.finish->reason == FinishReason::kError;
  if (failed || event.logprobs.empty()) return -std::numeric_limits<double>::infinity();
  double sum = 0.0;
  for (const TokenLogprobs& token : event.logprobs) sum += static_cast<double>(token.token.logprob);
  return sum / static_cast<double>(event.logprobs.size());
}

struct Choices {
  EventSink sink;
  int wanted = 1;
  bool keeps_logprobs = false;
  std::vector<Event> whole{};
  std::vector<TokenId> prompt{};

  void take(Event event) {
    Event& all = whole[static_cast<size_t>(event.index)];
    append(all.deltas, std::move(event.deltas));
    append(all.tokens, std::move(event.tokens));
    append(all.logprobs, std::move(event.logprobs));
    if (!event.prompt.empty()) prompt = std::move(event.prompt);
    append(all.prompt_logprobs, std::move(event.prompt_logprobs));
    if (event.finish) all.finish = std::move(event.finish);
    all.usage = event.usage;
    if (event.last) hand_on();
  }

  void hand_on() {
    std::vector<size_t> order(whole.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return mean_logprob(whole[i]); });
    std::vector<TokenLogprobs> scored = std::move(whole[0].prompt_logprobs);
    for (int i = 0; i < wanted; ++i) {
      Event& event = whole[order[static_cast<size_t>(i)]];
      event.index = i;
      event.prompt = std::exchange(prompt, {});
      event.prompt_logprobs = i == 0 ? std::move(scored) : std::vector<TokenLogprobs>();
      if (!keeps_logprobs) event.logprobs.clear();
      event.last = i + 1 == wanted;
      sink(std::move(event));
    }
  }
};

}  // namespace

EventSink best_of(EventSink sink, int wanted, int made, bool keeps_logprobs) {
  const auto choices =
      std::make_shared<Choices>(Choices{.sink = std::move(sink), .wanted = wanted, .keeps_logprobs = keeps_logprobs});
  choices->whole.resize(static_cast<size_t>(made));
  return [choices](Event event) { choices->take(std::move(event)); };
}

}  // namespace sluice
