// The row of the field "model".
#include "server/rows.h"

namespace sluice::server {
namespace {

constexpr Parameter kModel[] = {{.name = "model",
                                 .type = Parameter::Type::kString,
                                 .max_bytes = kLabelBytes,
                                 .fallback = "the served model, if there is one",
                                 .help = "name of a served model; required when several are served"}};

}  // namespace

std::span<const Parameter> model_parameter() { return kModel; }

}  // namespace sluice::server
