#include "grammar/compiler.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <new>

#include "grammar/source.h"

namespace sluice::grammar {
namespace {

constexpr int kNiceness = 10;

}  // namespace

Compiler::Compiler(Options options) : options_(std::move(options)) {
  for (int i = 0; i < options_.threads; ++i) threads_.start([this] { run(); });
}

Compiler::~Compiler() {
  threads_.join();
  for (auto& [key, callbacks] : waiting_) {
    for (const Callback& done : callbacks) done({nullptr, "the engine is shutting down"});
  }
}

void Compiler::close() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
}

void Compiler::compile(std::string_view kind, std::string_view text, Callback done) {
  Result result;
  {
    const std::scoped_lock lock(mutex_);
    Key key{kind, text};
    auto found = kept_.find(key);
    if (found != kept_.end() && is_broken(*found->second.grammar)) {
      ages_.erase(found->second.age);
      kept_.erase(found);
      found = kept_.end();
    }
    if (found == kept_.end()) {
      const auto [waiting, first] = waiting_.try_emplace(std::move(key));
      waiting->second.push_back(std::move(done));
      if (first) queue_.push_back(&waiting->first);
      wake_.notify_one();
      return;
    }
    ages_.splice(ages_.begin(), ages_, found->second.age);
    result.grammar = found->second.grammar;
  }
  done(std::move(result));
}

void Compiler::run() {
  // On Linux this is a property of the thread. The threads that compute steps go first.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (closing_) return;
    const Key& key = *queue_.front();
    queue_.pop_front();
    lock.unlock();
    Result result = compile_now(key);
    lock.lock();
    if (result.grammar) keep(key, result.grammar);
    const auto node = waiting_.extract(key);
    lock.unlock();
    for (const Callback& done : node.mapped()) done(result);
    result = {};
    lock.lock();
  }
}

Compiler::Result Compiler::compile_now(const Key& key) const {
  try {
    Budget budget(options_.limits);
    return {grammar::compile(key.first, key.second, {.budget = budget, .special = options_.special}), ""};
  } catch (const GrammarError& e) {
    return {nullptr, e.what()};
  } catch (const std::bad_alloc&) {
    return {nullptr, "there is no memory to compile it"};
  }
}

// Forgets the grammars that were not used for the longest time, as far as the limit demands.
void Compiler::keep(const Key& key, const std::shared_ptr<const Grammar>& grammar) {
  const auto place = kept_.try_emplace(key).first;
  ages_.push_front(&place->first);
  place->second = {grammar, ages_.begin()};
  size_t bytes = 0;
  for (auto age = ages_.begin(); age != ages_.end();) {
    const auto kept = kept_.find(**age);
    bytes += memory_of(*kept->second.grammar) + kept->first.second.size() + 256;
    ++age;
    if (bytes > options_.cache_bytes && kept != place) {
      ages_.erase(kept->second.age);
      kept_.erase(kept);
    }
  }
}

}  // namespace sluice::grammar
