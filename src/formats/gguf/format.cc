// GGUF checkpoints: one file, or parts NAME-00001-of-00003.gguf, mapped and translated to Hugging Face's configuration
// and tensor names.
#include "formats/gguf/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/folder.h"
#include "base/log.h"
#include "base/mmap.h"
#include "formats/checkpoint_format.h"
#include "formats/gguf/tensors.h"
#include "formats/gguf/text.h"
#include "sluice/error.h"

namespace sluice::gguf::format {
namespace {

namespace fs = std::filesystem;

// The parsed name of a part, "NAME-00002-of-00003.gguf": "NAME", number and count. The count is 0 for other names.
struct Part {
  std::string stem;
  int number = 0, count = 0;
};
Part parse_part(const std::string& file_name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (file_name.size() <= kPattern.size()) return {};
  const size_t at = file_name.size() - kPattern.size();
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const char c = file_name[at + i];
    if (kPattern[i] == '0' ? c < '0' || c > '9' : c != kPattern[i]) return {};
  }
  return {file_name.substr(0, at), std::atoi(file_name.c_str() + at + 1), std::atoi(file_name.c_str() + at + 10)};
}

std::vector<fs::path> gguf_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code unreadable;
  for (const std::string& name : names_in(folder, unreadable)) {
    if (fs::path(name).extension() == ".gguf") files.push_back(folder / name);
  }
  return files;
}

// Returns the only model of a folder: a file, or its first part. The encoder of a multimodal model may lie next to it.
fs::path only_model(const fs::path& folder) {
  std::vector<fs::path> models;
  for (const fs::path& file : gguf_files(folder)) {
    const std::string name = file.filename().string();
    if (parse_part(name).number <= 1 && !name.starts_with("mmproj")) models.push_back(file);
  }
  if (models.size() == 1) return models[0];
  std::string names;
  for (const fs::path& model : models)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", model.filename().string());
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: the folder has {} GGUF models; specify one of them: {}",
                                                        folder.string(), models.size(), names));
}

class GgufCheckpoint : public Checkpoint {
 public:
  explicit GgufCheckpoint(const fs::path& path) {
    read_files(fs::is_directory(path) ? only_model(path) : path);
    folder = file_.metadata.file;
    keep_types = true;
    if (file_.metadata.text("general.type") == "adapter") {
      file_.metadata.fail("general.type", "this is an adapter for a model; give it with --lora-modules",
                          ErrorCode::kUnsupportedModel);
    }
    const std::string name(file_.metadata.required_text("general.architecture"));
    const GgufArchitecture* architecture = Registry<GgufArchitecture>::find(name);
    if (architecture == nullptr) refuse_architecture(name);
    GgufConfig translated(file_, name);
    architecture->configure(translated);
    pooling = translated.pooling();
    GgufTensors tensors(file_, translated);
    tensors_ = tensors.take();
    owned_ = tensors.take_owned();
    if (const std::vector<std::string> unread = translated.unread(); !unread.empty()) {
      file_.metadata.fail(unread.front(), "is not understood", ErrorCode::kUnsupportedModel);
    }
    translated.hf["dtype"] = plain_type();
    config = Config(std::move(translated.hf), folder);
    generation.eos_token_ids = gguf_end_tokens(file_.metadata);
  }

  std::string tokenizer_config() const override { return gguf_tokenizer_config(file_.metadata); }
  const GgufFile& file() const { return file_; }

 private:
  [[noreturn]] void refuse_architecture(const std::string& name) const {
    if (name == "clip") {
      file_.metadata.fail("general.architecture",
                          "\"clip\" is the image or audio encoder of a model; specify the file of its text decoder",
                          ErrorCode::kUnsupportedModel);
    }
    std::string known;
    for (const GgufArchitecture* one : Registry<GgufArchitecture>::all()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", one->name);
    }
    file_.metadata.fail("general.architecture",
                        fmt::format("unknown architecture {} (expected one of: {})", dump_json(name), known),
                        ErrorCode::kUnsupportedModel);
  }

  // Maps the file, or all parts of a split model.
  void read_files(const fs::path& path) {
    const Part part = parse_part(path.filename().string());
    map(part.number > 1 ? part_path(path, part, 1) : path, file_);
    const int64_t count = file_.metadata.integer("split.count").value_or(1);
    if (count <= 1) return;
    if (part.count != count) {
      file_.metadata.fail("split.count", fmt::format("is {}, which does not match the file name", count));
    }
    for (int number = 2; number <= part.count; ++number) {
      GgufFile more;
      map(part_path(path, part, number), more);
      if (more.metadata.integer("split.no").value_or(-1) != number - 1 ||
          more.metadata.integer("split.count").value_or(-1) != count) {
        more.metadata.fail("split.no", fmt::format("this is not part {} of {}", number, count));
      }
      std::ranges::move(more.tensors, std::back_inserter(file_.tensors));
    }
    const auto total = static_cast<int64_t>(file_.tensors.size());
    if (file_.metadata.integer("split.tensors.count").value_or(total) != total) {
      file_.metadata.fail("split.tensors.count", fmt::format("does not match the {} tensors of the parts", total));
    }
    std::vector<std::string_view> names;
    for (const TensorEntry& entry : file_.tensors) names.push_back(entry.name);
    std::ranges::sort(names);
    if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: tensor {} appears in two parts", file_.metadata.file,
                                                       dump_json(std::string(*twice))));
    }
  }

  static fs::path part_path(const fs::path& path, const Part& part, int number) {
    return path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", part.stem, number, part.count);
  }

  void map(const fs::path& path, GgufFile& into) { into = read_gguf(map_file(path.string()).bytes(), path.string()); }

  // Returns the widest plain type of the matrices. Quantized matrices keep their format.
  const char* plain_type() const {
    const auto any = [&](DType type) {
      return std::ranges::any_of(file_.tensors,
                                 [&](const TensorEntry& t) { return t.shape.rank() > 1 && t.dtype == type; });
    };
    const bool blocks =
        std::ranges::any_of(file_.tensors, [](const TensorEntry& t) { return t.dtype->block_size > 1; });
    return any(&kBFloat16) ? "bfloat16" : any(&kFloat16) || blocks ? "float16" : "float32";
  }

  GgufFile file_;
  std::vector<std::vector<float>> owned_;
};

const CheckpointFormat format{
    .name = "GGUF",
    .recognizes =
        [](const fs::path& path) {
          return fs::is_directory(path) ? !gguf_files(path).empty() : path.extension() == ".gguf";
        },
    .open = [](const fs::path& path) -> std::unique_ptr<Checkpoint> { return std::make_unique<GgufCheckpoint>(path); },
    .rank = 5,
};
const Registry<CheckpointFormat> registered{format};

}  // namespace
}  // namespace sluice::gguf::format

namespace sluice {

const GgufFile* gguf_file_of(const Checkpoint& checkpoint) {
  const auto* gguf = dynamic_cast<const gguf::format::GgufCheckpoint*>(&checkpoint);
  return gguf != nullptr ? &gguf->file() : nullptr;
}

}  // namespace sluice
