// See split_prompt.h.
#include "route/split_prompt.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "route/member_scanner.h"

namespace sluice::route {
namespace {

// Members that say nothing about the prompt.
bool concerns_output(std::string_view name) {
  constexpr std::string_view kOutput[] = {"max_tokens",
                                          "max_completion_tokens",
                                          "min_tokens",
                                          "stream",
                                          "stream_options",
                                          "n",
                                          "best_of",
                                          "logprobs",
                                          "top_logprobs",
                                          "prompt_logprobs",
                                          "echo",
                                          "store",
                                          "stop",
                                          "use_beam_search",
                                          "num_beams",
                                          "length_penalty",
                                          "early_stopping",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "penalty_alpha",
                                          "context_shift",
                                          "n_keep"};
  return std::ranges::find(kOutput, name) != std::end(kOutput);
}

std::string with_member(std::string_view members, std::string_view name, const Json& value) {
  return fmt::format(R"({}{}"{}":{})", members, members.empty() ? "" : ",", name, dump_json(value));
}

}  // namespace

// The client's own text goes on, so that what is wrong with it is found where it is read.
std::optional<SplitBody> split_body(std::string_view body, const TransferAddress& address, const std::string& id) {
  std::string prompt;
  bool empty = true;
  MemberScanner scanner(body);
  while (const auto member = scanner.next()) {
    const auto& [name, value] = *member;
    const bool whole = name == "prompt_embeds" || name == "prompt_modules";  // a prompt that one server computes
    if (name == "kv_transfer_params" || (whole && value != "null")) return std::nullopt;
    empty = false;
    if (!concerns_output(name)) prompt += fmt::format(R"({}"{}":{})", prompt.empty() ? "" : ",", name, value);
  }
  if (!scanner.at_end()) return std::nullopt;
  const Json sends = {{"do_remote_decode", true}, {"do_remote_prefill", false}, {"transfer_id", id}};
  const Json fetches = {{"do_remote_decode", false},
                        {"do_remote_prefill", true},
                        {"transfer_id", id},
                        {"remote_host", address.host},
                        {"remote_port", address.port}};
  prompt = with_member(with_member(prompt, "max_tokens", 1), "kv_transfer_params", sends);
  const std::string_view all = empty ? "{" : body.substr(0, body.rfind('}'));
  return SplitBody{
      .prefill = "{" + prompt + "}",
      .decode = fmt::format(R"({}{}"kv_transfer_params":{}}})", all, empty ? "" : ",", dump_json(fetches))};
}

std::optional<TransferAddress> transfer_address(std::string_view health) {
  try {
    const Json transfer = parse_json(health).at("kv_transfer");
    return TransferAddress{.host = transfer.at("host").get<std::string>(), .port = transfer.at("port").get<int>()};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace sluice::route
