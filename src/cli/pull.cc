// sluice pull: downloads a model from the hub into the cache. Also resolves model names for the other commands.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/load_engine.h"
#include "engine/load_draft.h"
#include "hub/download.h"
#include "sluice/error.h"
#include "speculative/options.h"

namespace sluice::cli {
namespace {

// One line on a terminal, rewritten at most ten times a second.
class ProgressBar {
 public:
  void operator()(const DownloadProgress& progress) {
    if (::isatty(STDERR_FILENO) == 0) return;
    const Clock::time_point now = Clock::now();
    if (!begun_) begin_ = now, begun_ = true, found_ = progress.done_bytes;
    const bool last = progress.done_files == progress.files;
    if (!last && now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const double share = progress.total_bytes == 0
                             ? 1.0
                             : static_cast<double>(progress.done_bytes) / static_cast<double>(progress.total_bytes);
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const uint64_t came = progress.done_bytes > found_ ? progress.done_bytes - found_ : 0;
    const auto per_second = static_cast<size_t>(seconds > 0.5 ? static_cast<double>(came) / seconds : 0);
    fmt::print(stderr, "\r[{}] {} of {}, {}/s, {}/{} files   {}", bar(share), format_bytes(progress.done_bytes),
               format_bytes(progress.total_bytes), format_bytes(per_second), progress.done_files, progress.files,
               last ? "\n" : "");
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool begun_ = false;
  Clock::time_point begin_, shown_;
  uint64_t found_ = 0;  // bytes that were already there
};

DownloadOptions download_options(bool allow_bin) {
  return {.allow_bin = allow_bin, .progress = [bar = std::make_shared<ProgressBar>()](const auto& p) { (*bar)(p); }};
}

struct PullArguments {
  std::string model;
  bool allow_bin = false, verify = false;
};

int pull(const PullArguments& a) {
  const auto name = HubName::parse(a.model);
  if (!name) {
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format("'{}' is not a model name on the hub (expected org/name[:revision or GGUF type])", a.model));
  }
  DownloadOptions options = download_options(a.allow_bin);
  options.verify = a.verify;
  download_model(*name, options);
  fmt::print("{}\n", resolve_model_path(a.model));
  return 0;
}

std::function<int()> declare_pull(CLI::App& app) {
  auto a = std::make_shared<PullArguments>();
  app.add_option("model", a->model, "org/name, org/name:revision, or org/name:Q4_K_M for a GGUF file of that type")
      ->required()
      ->type_name("MODEL");
  app.add_flag("--allow-bin", a->allow_bin, "download torch.save files if there are no safetensors");
  app.add_flag("--verify", a->verify, "compute the checksums of files in the cache, and download damaged ones again");
  return [a] { return pull(*a); };
}

const Command kPull{"pull", "download a model into the Hugging Face cache", declare_pull};
const Registry<Command> registered_pull{kPull};

}  // namespace

void make_local(EngineOptions& options) {
  options.model =
      options.model.empty() ? bundled_model() : fetch_model(options.model, download_options(options.allow_bin));
  if (!options.tokenizer.empty()) options.tokenizer = local_text(options.tokenizer);
  const auto drafts = parse_speculative_config(options.speculative_config);
  if (!drafts || drafts->model.empty()) return;
  try {
    fetch_model(drafts->model, download_options(options.allow_bin));
  } catch (const Error& e) {
    throw draft_model_error(e);
  }
}

std::string local_text(const std::string& model) {
  if (model.empty()) return bundled_model();
  DownloadOptions options = download_options(false);
  options.text_only = true;
  return fetch_model(model, options);
}

}  // namespace sluice::cli
