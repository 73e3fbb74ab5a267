// Which family claims a configuration.
#include "nn/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "sluice/error.h"

namespace sluice {

const ModelFamily& find_family(const Config& config) {
  const auto wanted = config.get("architectures", std::vector<std::string>{});
  std::string known;
  for (const ModelFamily* family : Registry<ModelFamily>::all()) {
    for (std::string_view architecture : family->architectures) {
      if (std::find(wanted.begin(), wanted.end(), architecture) != wanted.end()) return *family;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture);
    }
  }
  if (wanted.empty()) config.refuse("architectures", "is missing: it names the model's architecture");
  config.refuse("architectures", fmt::format("'{}' is not supported; supported: {}", wanted.front(), known));
}

}  // namespace sluice
