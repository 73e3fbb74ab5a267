// sluice docs: the reference pages that are generated from tables in the code, as docs/options.md.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "cli/foreign_options.h"
#include "cli/markdown.h"
#include "server/endpoint.h"

namespace sluice::cli::docs_command {
namespace {

std::string page_text(const std::string& page) {
  if (page == "options") return options_markdown();
  if (page == "parameters") return wrap_markdown(server::parameters_markdown());
  return foreign_markdown(page);
}

std::function<int()> declare(CLI::App& app) {
  auto page = std::make_shared<std::string>();
  app.add_option("page", *page, "the page")
      ->required()
      ->check(CLI::IsMember({"options", "parameters", "vllm-options", "llama-options"}));
  return [page] {
    fmt::print("{}", page_text(*page));
    return 0;
  };
}

const Command command{"docs", "print a reference page", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::docs_command
