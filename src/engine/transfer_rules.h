// Which prompts may go from one server to another.
#pragma once

#include <string>
#include <vector>

#include "sluice/options.h"
#include "sluice/request.h"

namespace sluice {

class TransferRules {
 public:
  // Throws Error(kInvalidRequest) that names the option if an address is malformed.
  explicit TransferRules(const EngineOptions& options);

  // Throws Error(kInvalidRequest) that names the field if the options do not allow the request's kv_transfer.
  void check(const Request& request) const;

 private:
  bool listens_;
  bool any_peer_ = false;
  std::vector<std::string> peers_;  // HOST:PORT
};

}  // namespace sluice
