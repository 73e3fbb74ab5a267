// See transfer_fields.h.
#include "server/openai/transfer_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "server/engine_request.h"
#include "server/rows.h"

namespace sluice::server {
namespace {

constexpr std::string_view kField = "kv_transfer_params";

const std::string& expect_text(const Json& value, const FieldPath& path, size_t most) {
  const std::string& text = expect_string(value, path);
  if (!text.empty() && text.size() <= most) return text;
  throw invalid_value(path, fmt::format("Invalid '{}': expected 1 to {} bytes.", path.str(), most));
}

// Members that vLLM has and that name nothing here: blocks are found by their contents.
bool is_label(std::string_view key) {
  constexpr std::string_view kLabels[] = {"remote_engine_id", "remote_block_ids", "remote_request_id", "tp_size"};
  return std::ranges::find(kLabels, key) != std::end(kLabels);
}

void set_transfer(Fields& f, const Json& v) {
  KvTransfer transfer;
  bool sends = false, fetches = false;
  const FieldPath params = kField;
  for (const auto& [key, value] : v.items()) {
    const FieldPath path = params / key;
    if (value.is_null() || is_label(key)) continue;
    if (key == "do_remote_decode") {
      sends = expect_boolean(value, path);
    } else if (key == "do_remote_prefill") {
      fetches = expect_boolean(value, path);
    } else if (key == "transfer_id") {
      transfer.id = expect_text(value, path, kMostTransferId - 8);  // the prompt's index follows
    } else if (key == "remote_host") {
      transfer.host = expect_text(value, path, 255);
    } else if (key == "remote_port") {
      transfer.port = static_cast<int>(expect_integer(value, path, 1, 65535));
    } else {
      throw unsupported_parameter(path, "is not known");
    }
  }
  if (!sends && !fetches) return;
  if (sends && fetches) {
    throw invalid_value(std::string(kField), fmt::format("Invalid '{}': 'do_remote_decode' and 'do_remote_prefill' "
                                                         "cannot both be true.",
                                                         kField));
  }
  const auto require = [&](bool given, std::string_view key) {
    if (!given) throw missing_parameter(params / key);
  };
  if (fetches) {
    require(!transfer.host.empty(), "remote_host");
    require(transfer.port != 0, "remote_port");
    require(!transfer.id.empty(), "transfer_id");
  } else {
    transfer.host.clear();
  }
  f.of<TransferFields>().transfer = std::move(transfer);
}

constexpr auto kTransfer = std::to_array<Parameter>({
    {.name = kField,
     .type = Parameter::Type::kObject,
     .max_bytes = 1 << 20,
     .fallback = "none",
     .help = "vLLM's field for a prompt that one server computes (do_remote_decode) and another one goes on with "
             "(do_remote_prefill), see scale-out.md",
     .set = set_transfer},
});

}  // namespace

std::span<const Parameter> transfer_parameters() { return kTransfer; }

void apply_transfer(Call& call, Request& request, size_t prompt) {
  request.kv_transfer = call.fields.of<TransferFields>().transfer;
  if (!request.kv_transfer) return;
  KvTransfer& transfer = *request.kv_transfer;
  if (transfer.host.empty() && call.fields.of<GenerationFields>().stream) {
    throw invalid_value("stream", "Invalid 'stream': an answer with 'kv_transfer_params' cannot be streamed.");
  }
  if (transfer.id.empty()) transfer.id = call.request_id.substr(0, kMostTransferId - 8);
  if (prompt > 0) transfer.id += fmt::format("/{}", prompt);
}

Json transfer_answer(Call& call) {
  const auto& transfer = call.fields.of<TransferFields>().transfer;
  if (!transfer || !transfer->host.empty()) return nullptr;
  Request request;
  apply_transfer(call, request);
  const ModelInfo& info = call.info();
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"transfer_id", request.kv_transfer->id},
          {"remote_engine_id", fmt::format("{}:{}", info.kv_transfer_host, info.kv_transfer_port)},
          {"remote_block_ids", Json::array()},
          {"remote_host", info.kv_transfer_host},
          {"remote_port", info.kv_transfer_port}};
}

}  // namespace sluice::server
