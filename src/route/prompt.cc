// Scans the members of a JSON object and hashes some of them.
#include "route/prompt.h"

#include <algorithm>
#include <cstring>

#include "base/sha256.h"
#include "route/member_scanner.h"

namespace sluice::route {
namespace {

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
  constexpr std::string_view kTexts[] = {"prompt_modules", "tools", "system",        "instructions", "messages",
                                         "prompt",         "input", "prompt_embeds", "inputs"};
  constexpr std::string_view kSessions[] = {"session_id", "prompt_cache_key", "user"};
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
    if (name == "previous_response_id" || (name == "store" && value == "true")) prompt.sticky = true;
  }
  std::string text;
  for (const std::string_view value : texts) {
    if (value.empty()) continue;
    text += without_end(value).substr(0, kMaxPromptBytes - text.size());
    if (text.size() == kMaxPromptBytes) break;
  }
  prompt.chain = hash_chain(model, text);
  if (!sessions[0].empty()) prompt.sticky = true;
  for (const std::string_view session : sessions) {
    if (prompt.session.empty()) prompt.session = session;
  }
  return prompt;
}

}  // namespace sluice::route
