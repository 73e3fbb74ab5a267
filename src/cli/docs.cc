// sluice docs: the reference pages that are generated from tables in the code (docs/options.md, docs/parameters.md).
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "server/endpoint.h"

namespace sluice::cli {
namespace {

int print(const std::string& page) {
  if (page == "options") {
    fmt::print(
        "# Options\n\nMade by `sluice docs options`. Every option is also an environment variable: `--max-model-len` "
        "is "
        "`SLUICE_MAX_MODEL_LEN`.\n\n{}",
        options_markdown());
  } else {
    fmt::print("# Request parameters\n\nMade by `sluice docs parameters`, from the rows that validate requests.\n\n{}",
               server::parameters_markdown());
  }
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto page = std::make_shared<std::string>();
  app.add_option("page", *page, "options or parameters")->required()->check(CLI::IsMember({"options", "parameters"}));
  return [page] { return print(*page); };
}

const Command command{"docs", "print a reference page: options or parameters", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli
