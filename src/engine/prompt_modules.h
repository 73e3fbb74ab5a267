// Modules of prompts (Request::modules), as requests give them.
#pragma once

#include <string>

#include "scheduler/adapter_slots.h"
#include "sluice/request.h"

namespace sluice {

struct LoadPlan;

// Why prompts may have no modules with a loaded model; empty: they may.
std::string why_no_modules(const LoadPlan& plan, bool draft_model);

// Checks the modules of a request, if it has any, and settles them: each one has a position, and the prompt has them in
// the order of their positions. `why_not` is what why_no_modules() says. Throws Error(kInvalidRequest) that names the
// field.
void settle_modules(Request& request, const std::string& why_not);

// An adapter that a text turns on must not begin inside a module. Throws Error(kInvalidRequest).
void check_module_adapter(const Request& request, const RequestAdapter& adapter);

}  // namespace sluice
