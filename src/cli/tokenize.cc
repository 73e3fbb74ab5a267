// sluice tokenize: converts text to ids and back, line by line.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "base/json.h"
#include "cli/command.h"
#include "cli/json_lines.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

namespace sluice::cli::tokenize_command {
namespace {

struct Arguments {
  std::string model;
  std::optional<std::string> text;
  bool jsonl = false, no_special = false, decode = false;
};

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& place) { return Tokenizer::open(local_text(place)); }

Json encode(const Tokenizer& tokenizer, const std::string& text, bool add_special) {
  Json out = {{"ids", Json::array()}, {"tokens", Json::array()}};
  for (const TokenId id : tokenizer.encode(text, add_special)) {
    out["ids"].push_back(id);
    out["tokens"].push_back(std::string(tokenizer.token_text(id)));
  }
  return out;
}

Json answer(const Tokenizer& tokenizer, const Json& line, const Arguments& a) {
  if (!a.decode) {
    if (!line.is_object() || !line.contains("text") || !line["text"].is_string()) {
      throw Error(ErrorCode::kInvalidRequest, "expected {\"text\": \"...\"}");
    }
    return encode(tokenizer, line["text"].get<std::string>(), !a.no_special);
  }
  if (!line.is_object() || !line.contains("ids") || !line["ids"].is_array()) {
    throw Error(ErrorCode::kInvalidRequest, "expected {\"ids\": [...]}");
  }
  std::vector<TokenId> ids;
  for (const Json& id : line["ids"]) {
    if (!id.is_number_integer() || id < 0 || id >= tokenizer.vocab_size()) {
      throw Error(ErrorCode::kInvalidRequest, fmt::format("{} is not a token id", dump_json(id)));
    }
    ids.push_back(id.get<TokenId>());
  }
  return {{"text", tokenizer.decode(ids, a.no_special)}};
}

std::string read_input() {
  if (::isatty(STDIN_FILENO) != 0) {
    throw Error(ErrorCode::kInvalidRequest, "no text: give --text, --jsonl, or the text on standard input");
  }
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (std::cin.bad()) throw Error(ErrorCode::kInvalidRequest, "cannot read standard input");
  return text;
}

int tokenize(const Arguments& a) {
  if (a.decode && !a.jsonl) throw Error(ErrorCode::kInvalidRequest, "--decode needs --jsonl");
  if (a.text && a.jsonl) throw Error(ErrorCode::kInvalidRequest, "--text and --jsonl exclude each other");
  const auto tokenizer = open_tokenizer(a.model);
  if (!a.jsonl) {
    fmt::print("{}\n", dump_json(encode(*tokenizer, a.text ? *a.text : read_input(), !a.no_special)));
    return 0;
  }
  return filter_json_lines([&](const Json& line) { return answer(*tokenizer, line, a); });
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  app.add_option("model", a->model, "model folder or tokenizer file; without one, the bundled demo model")
      ->type_name("MODEL_OR_FILE");
  app.add_option("--text", a->text, "text to tokenize; without it, all of standard input");
  app.add_flag("--jsonl", a->jsonl,
               "lines {\"text\": ...} on standard input, lines {\"ids\": ..., \"tokens\": ...} out");
  app.add_flag("--no-special", a->no_special, "do not add special tokens; with --decode, omit them from the text");
  app.add_flag("--decode", a->decode, "lines {\"ids\": [...]} in, lines {\"text\": ...} out");
  return [a] { return tokenize(*a); };
}

const Command command{"tokenize", "convert text to token ids, or back", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::tokenize_command
