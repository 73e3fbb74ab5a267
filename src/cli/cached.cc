// sluice list and sluice rm: the models in the Hugging Face cache.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/usage_error.h"
#include "hub/cache.h"
#include "hub/cached_models.h"
#include "sluice/error.h"

namespace sluice::cli::cached_commands {
namespace {

int list() {
  const std::vector<CachedModel> models = cached_models();
  if (models.empty()) fmt::print(stderr, "sluice: no models in {}\n", hub_cache_folder().string());
  size_t width = 0;
  for (const CachedModel& model : models) width = std::max(width, model.name.size());
  for (const CachedModel& model : models) {
    fmt::print("{:<{}}  {:>10}\n", model.name, width, format_bytes(model.bytes));
  }
  return 0;
}

struct RemoveArguments {
  std::string model;
  bool yes = false;
};

bool confirmed(const CachedModel& model) {
  if (::isatty(STDIN_FILENO) == 0) throw UsageError("rm: nobody can be asked here; give --yes");
  fmt::print("Remove {} ({})? [y/N] ", model.name, format_bytes(model.bytes));
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

int remove(const RemoveArguments& a) {
  const auto name = HubName::parse(a.model);
  if (!name || a.model != name->repository) {
    throw UsageError(
        fmt::format("rm: '{}' is not a model of the cache (expected org/name; all of its revisions are "
                    "removed)",
                    a.model));
  }
  const std::vector<CachedModel> models = cached_models();
  const auto found = std::ranges::find(models, name->repository, &CachedModel::name);
  if (found == models.end()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} is not in {} (`sluice list` lists what is)", a.model, hub_cache_folder().string()));
  }
  if (!a.yes && !confirmed(*found)) return 1;
  std::error_code failed;
  std::filesystem::remove_all(found->folder, failed);
  if (failed) throw Error(ErrorCode::kInternal, fmt::format("{}: {}", found->folder.string(), failed.message()));
  fmt::print("removed {} ({})\n", found->name, format_bytes(found->bytes));
  return 0;
}

std::function<int()> declare_list(CLI::App&) { return list; }

std::function<int()> declare_remove(CLI::App& app) {
  auto a = std::make_shared<RemoveArguments>();
  app.add_option("model", a->model, "org/name")->required()->type_name("MODEL");
  app.add_flag("--yes,-y", a->yes, "remove it without asking");
  return [a] { return remove(*a); };
}

const Command kList{"list", "list the models in the Hugging Face cache and their sizes", declare_list};
const Command kRemove{"rm", "remove a model from the Hugging Face cache", declare_remove};
const Registry<Command> registered_list{kList}, registered_remove{kRemove};

}  // namespace
}  // namespace sluice::cli::cached_commands
