// Configuration keys of published checkpoints that Sluice does not read because they do not change inference: all
// models of a family have the same value, or only other code reads the key (training, generation, code shipped beside
// the checkpoint), or the key repeats another one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

struct IgnoredKey {
  std::string_view key;
  std::string_view value = "";  // as JSON: the only accepted value; empty: any value is accepted
};

// The unread keys of `config` that are neither in `of_family` nor in the list for all families. A listed key whose
// value is not the accepted one is returned with both values: "'qk_norm' (false; true is supported)".
std::vector<std::string> unknown_config_keys(const Config& config, std::span<const IgnoredKey> of_family);

}  // namespace sluice
