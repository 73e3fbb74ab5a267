// Runs patterns with PCRE2. A match runs JIT code on the machine stack. Patterns with nested repeats need more and then
// use a larger JIT stack. The last resort is the interpreter, whose heap memory is limited.
#include "tokenizer/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <stdexcept>

#include "sluice/error.h"
#include "tokenizer/files/oniguruma.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

constexpr size_t kJitStackBytes = size_t{64} << 20;  // reserved, not committed
constexpr uint32_t kMatchLimit = 100'000'000;        // backtracking steps of one match
constexpr uint32_t kHeapLimitKiB = 256 << 10;

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

const pcre2_code* code(const std::shared_ptr<const void>& p) { return static_cast<const pcre2_code*>(p.get()); }
pcre2_match_data* data(const std::shared_ptr<void>& p) { return static_cast<pcre2_match_data*>(p.get()); }
pcre2_match_context* context(const std::shared_ptr<void>& p) { return static_cast<pcre2_match_context*>(p.get()); }

}  // namespace

Regex::Regex(std::string_view oniguruma_pattern) {
  const std::string pattern = oniguruma_to_pcre2(oniguruma_pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  // In Ruby, ^ and $ always match at line ends.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &at, nullptr);
  if (compiled == nullptr) {
    if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    throw std::invalid_argument(fmt::format("regular expression \"{}\": {}", oniguruma_pattern, message_of(error)));
  }
  jit_ = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::shared_ptr<const void>(compiled, [compiled](const void*) { pcre2_code_free(compiled); });
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);
  if (limits == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(limits, kMatchLimit);
  pcre2_set_heap_limit(limits, kHeapLimitKiB);
  match_context_ = std::shared_ptr<void>(limits, [limits](void*) { pcre2_match_context_free(limits); });
}

Regex::Matches::Matches(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {
  pcre2_match_data* created = pcre2_match_data_create(1, nullptr);  // only the whole match, no groups
  if (created == nullptr) throw std::bad_alloc();
  match_data_ = std::shared_ptr<void>(created, [created](void*) { pcre2_match_data_free(created); });
}

Regex::Matches::Matches(const Regex& regex, std::string_view text, size_t end) : Matches(regex, text) {
  position_ = end;
  last_end_ = end;
}

Regex::Matches Regex::Matches::starting_at(const Regex& regex, std::string_view text, size_t from) {
  Matches matches(regex, text);
  matches.position_ = from;
  return matches;
}

std::optional<Span> Regex::Matches::next() {
  while (position_ <= text_.size()) {
    const auto found = match(position_);
    if (!found) break;
    if (found->begin == found->end && last_end_ == found->end) {
      position_ += position_ < text_.size() ? code_point_at(text_, position_).length : 1;
      continue;
    }
    position_ = found->end;
    last_end_ = found->end;
    return found;
  }
  position_ = text_.size() + 1;
  return std::nullopt;
}

// Finds the matches of a search from `from` on that begin before `to`. A speculative search may be too hard for the
// pattern where the true search is not; then it stops early.
std::vector<Span> Regex::matches_between(std::string_view text, size_t from, size_t to) const {
  std::vector<Span> found;
  Matches search = Matches::starting_at(*this, text, from);
  try {
    for (auto match = search.next(); match && match->begin < to; match = search.next()) found.push_back(*match);
  } catch (const Error&) {
    if (from == 0) throw;
  }
  return found;
}

// Every thread searches one part of the text from the part's first character on. That position may be inside a match of
// the true search. The matches after a given match depend only on the text and on the end of that match. So once two
// searches have a match with the same end, they continue identically. When the true search reaches the end of its part,
// it continues until one of its matches ends where a match of the next part ends; usually this happens at once. Then it
// adopts what that part's search found.
std::vector<Span> Regex::matches(std::string_view text, const Threads& threads) const {
  const int parts = threads.for_text(text.size());
  std::vector<size_t> begins;
  for (int i = 0; i < parts; ++i) {
    size_t at = text.size() / static_cast<size_t>(parts) * static_cast<size_t>(i);
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;  // inside a character
    begins.push_back(at);
  }
  begins.push_back(text.size() + 1);
  std::vector<std::vector<Span>> found(static_cast<size_t>(parts));
  run_parts(parts, [&](int i) { found[i] = matches_between(text, begins[i], begins[i + 1]); });
  std::vector<Span> all = std::move(found[0]);
  // One part's search has reached its end. It has not examined matches that begin after it.
  for (int i = 1; i < parts; ++i) {
    const std::vector<Span>& next = found[i];
    const auto same = [&](const Span& match) {
      const auto at = std::ranges::lower_bound(next, match.end, {}, &Span::end);
      return at != next.end() && at->end == match.end ? at : next.end();
    };
    auto from = all.empty() ? next.end() : same(all.back());
    Matches search = all.empty() ? Matches(*this, text) : Matches(*this, text, all.back().end);
    while (from == next.end()) {
      const auto match = search.next();
      if (!match) return all;
      all.push_back(*match);
      from = same(*match);
      if (match->begin >= begins[i + 1]) break;
    }
    if (from != next.end()) all.insert(all.end(), from + 1, next.end());
  }
  Matches search = all.empty() ? Matches(*this, text) : Matches(*this, text, all.back().end);
  while (const auto match = search.next()) all.push_back(*match);
  return all;
}

std::optional<Span> Regex::Matches::match(size_t from) {
  const auto* text = reinterpret_cast<PCRE2_SPTR>(text_.data());
  const int rc = regex_.jit_ ? pcre2_jit_match(code(regex_.code_), text, text_.size(), from, PCRE2_NO_UTF_CHECK,
                                               data(match_data_), context(regex_.match_context_))
                             : PCRE2_ERROR_JIT_STACKLIMIT;
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) return match_with_more_stack(from, rc);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data(match_data_));
  // \K in a lookahead may put the start after the end.
  return Span{std::min(ends[0], ends[1]), ends[1]};
}

std::optional<Span> Regex::Matches::match_with_more_stack(size_t from, int error) {
  const auto* text = reinterpret_cast<PCRE2_SPTR>(text_.data());
  int rc = error;
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT && regex_.jit_) {
    if (!jit_stack_) {
      pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{64} << 10, kJitStackBytes, nullptr);
      if (stack == nullptr) throw std::bad_alloc();
      jit_stack_ = std::shared_ptr<void>(stack, [stack](void*) { pcre2_jit_stack_free(stack); });
    }
    // a copy, because the stack belongs to this thread and the regex's context is shared
    pcre2_match_context* copy = pcre2_match_context_copy(context(regex_.match_context_));
    if (copy == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(copy, nullptr, jit_stack_.get());
    rc = pcre2_jit_match(code(regex_.code_), text, text_.size(), from, PCRE2_NO_UTF_CHECK, data(match_data_), copy);
    pcre2_match_context_free(copy);
  }
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code(regex_.code_), text, text_.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data(match_data_),
                     context(regex_.match_context_));
  }
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("matching the text against a tokenizer pattern takes too many steps: {}", message_of(rc)));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data(match_data_));
  return Span{std::min(ends[0], ends[1]), ends[1]};
}

}  // namespace sluice::tokenizer
