// See transfer_rules.h.
#include "engine/transfer_rules.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/tcp.h"
#include "sluice/error.h"

namespace sluice {
namespace {

Error refused(const std::string& why, const char* param) {
  return Error(ErrorCode::kInvalidRequest, fmt::format("Invalid '{}': {}", param, why), param, "invalid_value");
}

}  // namespace

TransferRules::TransferRules(const EngineOptions& options) : listens_(!options.kv_transfer_listen.empty()) {
  if (listens_) TcpAddress::parse(options.kv_transfer_listen, "--kv-transfer-listen");
  for (const std::string& peer : options.kv_transfer_peer) {
    any_peer_ |= peer == "*";
    if (peer != "*") peers_.push_back(TcpAddress::parse(peer, "--kv-transfer-peer").str());
  }
}

void TransferRules::check(const Request& request) const {
  if (!request.kv_transfer) return;
  const KvTransfer& transfer = *request.kv_transfer;
  if (transfer.id.empty() || transfer.id.size() > kMostTransferId) {
    throw refused(fmt::format("expected 1 to {} bytes.", kMostTransferId), "kv_transfer_params.transfer_id");
  }
  if (transfer.host.empty()) {
    if (listens_) return;
    throw refused("the server was started without --kv-transfer-listen.", "kv_transfer_params.do_remote_decode");
  }
  const std::string peer = TcpAddress{.host = transfer.host, .port = transfer.port}.str();
  if (any_peer_ || std::ranges::find(peers_, peer) != peers_.end()) return;
  throw refused(fmt::format("'{}' is not one of the server's --kv-transfer-peer.", peer),
                "kv_transfer_params.remote_host");
}

}  // namespace sluice
