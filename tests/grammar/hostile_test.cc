// Hostile grammars: each is compiled or refused within the limits, and masks and steps of those that compile stay
// cheap.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <new>
#include <random>

#include "grammar/hostile_grammars.h"
#include "grammar/source.h"
#include "grammar/vocabulary_of.h"
#include "support/sanitized.h"

#if !SLUICE_SANITIZED
#define COUNTS_MEMORY 1
#endif

#ifdef COUNTS_MEMORY
namespace {

std::atomic<int64_t> live{0}, peak{0};

void* counted(size_t size) {
  void* made = std::malloc(size);
  if (made == nullptr) throw std::bad_alloc();
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(made));
  if (now > peak) peak = now;
  return made;
}

void release(void* made) noexcept {
  live -= static_cast<int64_t>(malloc_usable_size(made));
  std::free(made);
}

}  // namespace

void* operator new(size_t size) { return counted(size); }
void* operator new[](size_t size) { return counted(size); }
void operator delete(void* made) noexcept { release(made); }
void operator delete[](void* made) noexcept { release(made); }
void operator delete(void* made, size_t) noexcept { release(made); }
void operator delete[](void* made, size_t) noexcept { release(made); }
#endif

namespace sluice::grammar {
namespace {

// Other programs may hold the processor, so that only this thread's time counts.
double seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

int64_t memory() {
#ifdef COUNTS_MEMORY
  return live;
#else
  return 0;
#endif
}

// The most memory in use since `reset`, above what was in use then.
class Peak {
 public:
  Peak() : before_(memory()) {
#ifdef COUNTS_MEMORY
    peak = before_;
#endif
  }
  double mib() const {
#ifdef COUNTS_MEMORY
    return static_cast<double>(peak - before_) / (1 << 20);
#else
    return 0;
#endif
  }

 private:
  int64_t before_;
};

// All bytes, and 40 000 tokens as large vocabularies have them.
std::vector<std::string> many_tokens() {
  std::mt19937 random(5);
  std::vector<std::string> out;
  for (int byte = 0; byte < 256; ++byte) out.emplace_back(1, static_cast<char>(byte));
  const std::vector<std::string> marks = {"\"", "\":", "\",", "{\"", "}", "[", "]",  ",",
                                          "\n", "  ",  "\\",  "/",   "<", "é", "漢", "😀"};
  while (out.size() < 40'000) {
    std::string token;
    if (random() % 8 == 0) token = marks[random() % marks.size()];
    const unsigned letters = random() % 3 == 0 ? 3 : 26;
    for (size_t n = 1 + random() % 9; n > 0; --n) token.push_back(static_cast<char>('a' + random() % letters));
    if (random() % 8 == 0) token += marks[random() % marks.size()];
    if (random() % 8 == 0) token += std::to_string(random() % 1000);
    out.push_back(token);
  }
  for (const size_t n : {32u, 64u, 128u}) out.emplace_back(n, ' ');
  return out;
}

constexpr double kSlower = kSanitized ? 40 : 1;
constexpr double kMostCompile = 1.1 * kSlower, kMostFill = 0.05 * kSlower, kMostJitter = 0.25 * kSlower;  // seconds
constexpr int kWords = sized(12, 4), kBytes = sized(1500, 150);
constexpr double kMostCompileMib = 64, kMostRunMib = 256;

struct Fills {
  double slowest = 0, total = 0;
};

// Follows random tokens that the masks allow.
Fills follow(Matcher m, const Vocabulary& vocabulary, int tokens, std::mt19937& random) {
  Fills out;
  std::vector<TokenId> next;
  for (int i = 0; i < tokens; ++i) {
    const double begin = seconds();
    const std::vector<uint32_t> mask = mask_of(m, vocabulary);
    const double end = seconds();
    out.slowest = std::max(out.slowest, end - begin);
    out.total += end - begin;
    next.clear();
    for (TokenId token = 0; token < vocabulary.width(); ++token) {
      if (allowed(mask, token)) next.push_back(token);
    }
    if (next.empty()) break;
    EXPECT_TRUE(m.accept(next[random() % next.size()]));
  }
  return out;
}

struct Costs {
  double compile = 0, compile_mib = 0, run_mib = 0;
  Fills words, first, second;  // random tokens; random bytes, and as many again
  std::string refused;

  double slowest() const { return std::max({words.slowest, first.slowest, second.slowest}); }
  bool linear() const { return second.total < 4 * first.total + kMostJitter; }
};

Costs measure(const Hostile& h, const std::shared_ptr<const Vocabulary>& words,
              const std::shared_ptr<const Vocabulary>& bytes) {
  std::mt19937 random(1);
  Costs costs;
  std::shared_ptr<const Grammar> grammar;
  const Peak compiling;
  const double begin = seconds();
  try {
    Budget budget({.time = time_limit(Limits{}.time)});
    grammar = compile(h.kind, h.text, {.budget = budget});
  } catch (const GrammarError& e) {
    costs.refused = e.what();
  }
  costs.compile = seconds() - begin;
  costs.compile_mib = compiling.mib();
  if (!grammar) return costs;
  const Peak running;
  try {
    costs.words = follow({grammar, words}, *words, kWords, random);
    const Fills again = follow({grammar, words}, *words, kWords, random);
    costs.words.slowest = std::max(costs.words.slowest, again.slowest);
    const Matcher m(grammar, bytes);
    costs.first = follow(m, *bytes, kBytes, random);
    costs.second = follow(m, *bytes, 2 * kBytes, random);
  } catch (const GrammarError& e) {
    costs.refused = e.what();
  }
  costs.run_mib = running.mib();
  return costs;
}

void run(const Hostile& h, const std::shared_ptr<const Vocabulary>& words,
         const std::shared_ptr<const Vocabulary>& bytes) {
  Costs costs = measure(h, words, bytes);
  // What is slow only once is the machine's.
  const auto slow = [&] { return costs.compile >= kMostCompile || costs.slowest() >= kMostFill || !costs.linear(); };
  for (int i = 0; i < 2 && slow(); ++i) costs = measure(h, words, bytes);
  EXPECT_LT(costs.compile, kMostCompile);
  EXPECT_LT(costs.compile_mib, kMostCompileMib);
  EXPECT_LT(costs.slowest(), kMostFill);
  EXPECT_LT(costs.run_mib, kMostRunMib);
  EXPECT_TRUE(costs.linear()) << costs.first.total << " s, then " << costs.second.total << " s";
  if (h.kind == "json_schema" && !costs.refused.empty()) {
    const bool placed = costs.refused.starts_with("schema") || costs.refused.find("no text satisfies") == 0 ||
                        costs.refused.find("too ambiguous") < 20;
    EXPECT_TRUE(placed) << "names no path: " << costs.refused;
  }
  if (std::getenv("SLUICE_VERBOSE") != nullptr) {
    std::cerr << fmt::format("{:7.1f} ms {:6.1f} MiB | {:6.2f} {:6.2f} ms {:6.1f} ms {:6.1f} MiB  {}: {}\n",
                             1e3 * costs.compile, costs.compile_mib, 1e3 * costs.words.slowest,
                             1e3 * std::max(costs.first.slowest, costs.second.slowest),
                             1e3 * (costs.first.total + costs.second.total), costs.run_mib, h.name.substr(0, 70),
                             costs.refused.substr(0, 150));
  }
}

void run_all(const std::string& kind, size_t least) {
  static const auto words = vocabulary_of(many_tokens());
  std::vector<std::string> single;
  for (int byte = 0; byte < 256; ++byte) single.emplace_back(1, static_cast<char>(byte));
  const auto bytes = vocabulary_of(single);
  size_t count = 0;
  for (const Hostile& h : HostileGrammars::all()) {
    if (h.kind != kind) continue;
    ++count;
    SCOPED_TRACE(h.name.substr(0, 100));
    run(h, words, bytes);
  }
  EXPECT_GE(count, least);
}

TEST(HostileGrammars, SchemasAreAnsweredAndStayCheap) { run_all("json_schema", 220); }
TEST(HostileGrammars, RegexesAreAnsweredAndStayCheap) { run_all("regex", 60); }
TEST(HostileGrammars, GbnfIsAnsweredAndStaysCheap) { run_all("gbnf", 30); }
TEST(HostileGrammars, LarkIsAnsweredAndStaysCheap) { run_all("lark", 15); }
TEST(HostileGrammars, StructuralTagsAreAnsweredAndStayCheap) { run_all("structural_tag", 5); }

}  // namespace
}  // namespace sluice::grammar
