// Fields that TEI's endpoints share.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "server/openai/pooling_fields.h"
#include "server/tei/dialect.h"

namespace sluice::server {

struct TeiFields {
  std::optional<std::string> prompt_name;
  bool raw_scores = false;
};

std::span<const Parameter> tei_truncation_parameters();  // truncate, truncation_direction: sets PoolingFields
std::span<const Parameter> tei_prompt_parameter();       // prompt_name
std::span<const Parameter> tei_scores_parameter();       // raw_scores

}  // namespace sluice::server
