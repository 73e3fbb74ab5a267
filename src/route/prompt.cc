// Scans the members of a JSON object and hashes some of them.
#include "route/prompt.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/sha256.h"

namespace sluice::route {
namespace {

// Steps over the members of a JSON object without building values. Strings, which are most of a large body, are
// searched for their end only.
class MemberScanner {
 public:
  explicit MemberScanner(std::string_view json) : text_(json) {
    skip_space();
    open_ = take('{');
  }

  // The next member, name without quotes and value as written. nullopt at the end and where the text is malformed.
  std::optional<std::pair<std::string_view, std::string_view>> next() {
    if (!open_) return std::nullopt;
    skip_space();
    if (take(',')) skip_space();
    const size_t name = at_;
    if (!skip_string()) return std::nullopt;
    const std::string_view quoted = text_.substr(name, at_ - name);
    skip_space();
    if (!take(':')) return std::nullopt;
    skip_space();
    const size_t value = at_;
    if (!skip_value()) return std::nullopt;
    return std::pair(quoted.substr(1, quoted.size() - 2), text_.substr(value, at_ - value));
  }

 private:
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  bool skip_string() {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const auto* quote = static_cast<const char*>(std::memchr(text_.data() + at_, '"', text_.size() - at_));
      if (quote == nullptr) break;
      const auto end = static_cast<size_t>(quote - text_.data());
      size_t slashes = 0;
      while (text_[end - 1 - slashes] == '\\') ++slashes;  // ends at the string's first quote
      at_ = end + 1;
      if (slashes % 2 == 0) return true;
    }
    return false;
  }

  bool skip_value() {
    if (at_ >= text_.size()) return false;
    const char first = text_[at_];
    if (first == '"') return skip_string();
    if (first != '{' && first != '[') {
      at_ = std::min(text_.find_first_of(",} \t\r\n", at_), text_.size());
      return at_ < text_.size();
    }
    for (size_t depth = 0; at_ < text_.size();) {
      const char c = text_[at_];
      if (c == '"') {
        if (!skip_string()) return false;
        continue;
      }
      ++at_;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) return true;
    }
    return false;
  }

  const std::string_view text_;
  size_t at_ = 0;
  bool open_ = false;
};

// The value without its closing bracket or quote, so that a longer one can begin with it.
std::string_view without_end(std::string_view value) {
  if (value.ends_with(']') || value.ends_with('"')) value.remove_suffix(1);
  return value;
}

std::vector<ChainHash> hash_chain(std::string_view model, std::string_view text) {
  std::vector<ChainHash> chain;
  chain.reserve(text.size() / kBlockBytes);
  Sha256 last = sha256(model);
  for (; text.size() >= kBlockBytes; text.remove_prefix(kBlockBytes)) {
    last = sha256({{reinterpret_cast<const char*>(last.data()), last.size()}, text.substr(0, kBlockBytes)});
    ChainHash& hash = chain.emplace_back();
    std::copy_n(last.begin(), hash.size(), hash.begin());
  }
  return chain;
}

}  // namespace

Prompt read_prompt(std::string_view body) {
  constexpr std::string_view kTexts[] = {"tools", "system", "instructions", "messages", "prompt", "input", "inputs"};
  constexpr std::string_view kSessions[] = {"prompt_cache_key", "session_id", "user"};
  std::string_view model, texts[std::size(kTexts)], sessions[std::size(kSessions)];
  Prompt prompt;
  MemberScanner scanner(body);
  while (const auto member = scanner.next()) {
    const auto& [name, value] = *member;
    if (value == "null") continue;
    if (const auto* at = std::ranges::find(kTexts, name); at != std::end(kTexts)) texts[at - kTexts] = value;
    if (const auto* at = std::ranges::find(kSessions, name); at != std::end(kSessions)) {
      if (value.size() > 2 && value.front() == '"') sessions[at - kSessions] = value;
    }
    if (name == "model") model = value;
    if (name == "previous_response_id" || (name == "store" && value == "true")) prompt.stores = true;
  }
  std::string text;
  for (const std::string_view value : texts) {
    if (value.empty()) continue;
    text += without_end(value).substr(0, kMaxPromptBytes - text.size());
    if (text.size() == kMaxPromptBytes) break;
  }
  prompt.chain = hash_chain(model, text);
  for (const std::string_view session : sessions) {
    if (prompt.session.empty()) prompt.session = session;
  }
  return prompt;
}

}  // namespace sluice::route
