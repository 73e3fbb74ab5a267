// Fuzzes tokenizer files that are lists: vocab.txt, tiktoken's, and vocab.json with merges.txt. The result is an Error,
// or a tokenizer that can encode and decode. The first byte chooses the form; a line of dashes parts the two files.
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/log.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace sluice;
namespace fs = std::filesystem;

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

// A folder in memory, which each input fills anew.
class Folder {
 public:
  Folder() {
    std::string name = "/dev/shm/sluice-fuzz-XXXXXX";
    CHECK(::mkdtemp(name.data()) != nullptr, "{}", name);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

struct Form {
  const char* file;
  const char* other;  // the second file; null: none
  const char* config;
};
constexpr std::array<Form, 3> kForms = {{{"vocab.txt", nullptr, R"({"tokenizer_class":"BertTokenizer"})"},
                                         {"tokenizer.model", nullptr, R"({"tokenizer_class":"TikTokenTokenizer"})"},
                                         {"vocab.json", "merges.txt", R"({"tokenizer_class":"GPT2Tokenizer"})"}}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  log::set_level(log::Level::kOff);
  static const Folder folder;
  const Form& form = kForms[data[0] % kForms.size()];
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::string_view kBetween = "\n---\n";
  const size_t cut = form.other != nullptr ? input.find(kBetween) : std::string_view::npos;
  write(folder / form.file, input.substr(0, cut));
  if (form.other != nullptr) {
    write(folder / form.other, cut == std::string_view::npos ? "" : input.substr(cut + kBetween.size()));
  }
  write(folder / "tokenizer_config.json", form.config);
  try {
    const auto tokenizer = Tokenizer::open((folder / form.file).string());
    for (const std::string_view text : {"", "Hello, World! 123  it's", "ab \u00dcn\u00ef \u4e2d\u6587 \U0001F642"}) {
      const auto ids = tokenizer->encode(text);
      for (const TokenId id : ids) CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
      tokenizer->decode(ids, true);
    }
  } catch (const Error& e) {
    CHECK(e.what()[0] != '\0');
  }
  return 0;
}
