// Compiles grammars on threads of its own, under limits, and keeps what was compiled.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_group.h"
#include "grammar/grammar.h"
#include "grammar/limits.h"
#include "sluice/request.h"

namespace sluice::grammar {

class Compiler {
 public:
  struct Options {
    int threads = 1;
    size_t cache_bytes = 256 << 20;  // of grammars that nobody uses; with what they have computed
    Limits limits{};
    std::function<std::optional<TokenId>(std::string_view)> special{};  // see CompileContext
  };
  struct Result {
    std::shared_ptr<const Grammar> grammar;  // null: see `error`
    std::string error;
  };
  using Callback = std::function<void(Result)>;

  explicit Compiler(Options options);
  ~Compiler();  // calls the callbacks that are due, with an error for what was not begun

  // Calls `done`, which must not throw: at once if the grammar is kept, else later on a thread of the compiler.
  // Requests for the same grammar share one compilation.
  void compile(std::string_view kind, std::string_view text, Callback done);

 private:
  using Key = std::pair<std::string, std::string>;  // kind and text
  struct Kept {
    std::shared_ptr<const Grammar> grammar;
    std::list<const Key*>::iterator age;
  };

  void run();
  void close();
  Result compile_now(const Key& key) const;
  void keep(const Key& key, const std::shared_ptr<const Grammar>& grammar);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Key, std::vector<Callback>> waiting_;  // who waits for a grammar that is queued or being compiled
  std::deque<const Key*> queue_;
  std::map<Key, Kept> kept_;
  std::list<const Key*> ages_;  // of what is kept, the one used last first
  bool closing_ = false;
  ThreadGroup threads_{[this] { close(); }};
};

}  // namespace sluice::grammar
