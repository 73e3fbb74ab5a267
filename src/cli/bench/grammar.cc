// sluice bench grammar: how long grammars take to compile, and masks to fill, over texts of these grammars.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>

#include "cli/bench/bench.h"
#include "grammar/source.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

namespace sluice::cli::bench_grammar {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model, file;
  int repeat = 1;
  bool slowest = false;
};

// A grammar with texts and whether they are in it.
struct Case {
  std::string name, kind, text;
  std::vector<std::pair<std::string, bool>> texts;
};

// MaskBench's lines {"name", "schema", "tests": [{"data", "valid"}]}, or {"KIND": ..., "instances": [...]}.
Case read_case(const Json& line, const std::string& place) {
  const auto fail = [&](const char* what) -> void {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: {}", place, what));
  };
  if (!line.is_object()) fail("expected an object");
  Case c{.name = line.value("name", place), .kind = "", .text = "", .texts = {}};
  if (line.contains("schema") && line.contains("tests")) {
    c.kind = "json_schema";
    c.text = dump_json(line["schema"]);
    for (const Json& test : line["tests"]) {
      if (!test.contains("data") || !test.contains("valid")) fail("expected tests with 'data' and 'valid'");
      c.texts.emplace_back(dump_json(test["data"]), test["valid"].get<bool>());
    }
    return c;
  }
  for (const auto* kind : Registry<grammar::SourceKind>::all()) {
    const auto found = line.find(std::string(kind->name));
    if (found == line.end()) continue;
    c.kind = kind->name;
    c.text = found->is_string() && !c.kind.starts_with("json") ? found->get<std::string>() : dump_json(*found);
  }
  if (c.kind.empty()) fail("expected a schema with tests, or a grammar with instances");
  if (!line.contains("instances") || !line["instances"].is_array()) fail("'instances': expected an array");
  for (const Json& text : line["instances"]) {
    if (!text.is_string()) fail("'instances': expected strings");
    c.texts.emplace_back(text.get<std::string>(), true);
  }
  return c;
}

std::vector<Case> read_cases(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: cannot open the file", file));
  std::vector<Case> cases;
  for (std::string line; std::getline(in, line);) {
    cases.push_back(read_case(parse_json(line), fmt::format("{}:{}", file, cases.size() + 1)));
  }
  return cases;
}

std::shared_ptr<const grammar::Vocabulary> vocabulary_of(const Tokenizer& tokenizer) {
  std::vector<std::string> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) tokens[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return std::make_shared<const grammar::Vocabulary>(
      tokens, grammar::Vocabulary::Options{.width = tokenizer.vocab_size(), .end_tokens = {}});
}

struct Times {
  std::vector<double> compile, mask;
  int refused = 0, wrong = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Fills a mask before every token of a text. Returns whether the text is in the grammar.
bool follow(grammar::Matcher matcher, const std::vector<TokenId>& ids, std::vector<uint32_t>& words,
            std::vector<double>& times) {
  for (size_t i = 0;; ++i) {
    const auto start = Clock::now();
    matcher.fill_mask(words);
    times.push_back(seconds_since(start));
    if (i == ids.size()) return matcher.complete();
    if (!matcher.accept(ids[i])) return false;
  }
}

// What a grammar has computed is kept with it, so that every case starts without it.
void measure(const Case& c, const Tokenizer& tokenizer, const std::shared_ptr<const grammar::Vocabulary>& vocabulary,
             bool slowest, Times& times) {
  std::shared_ptr<const grammar::Grammar> compiled;
  const auto start = Clock::now();
  try {
    grammar::Budget budget;
    const auto special = [&](std::string_view text) { return tokenizer.token_id(text); };
    compiled = grammar::compile(c.kind, c.text, {.budget = budget, .special = special});
  } catch (const grammar::GrammarError&) {
    ++times.refused;
  }
  times.compile.push_back(seconds_since(start));
  if (compiled == nullptr) return;
  const size_t before = times.mask.size();
  std::vector<uint32_t> words((static_cast<size_t>(vocabulary->width()) + 31) / 32);
  for (const auto& [text, valid] : c.texts) {
    const bool accepted = follow({compiled, vocabulary}, tokenizer.encode(text, false), words, times.mask);
    times.wrong += accepted != valid;
  }
  if (!slowest || times.mask.size() == before) return;
  const double worst = *std::max_element(times.mask.begin() + static_cast<ptrdiff_t>(before), times.mask.end());
  fmt::print(stderr, "{:10.1f} us mask {:10.1f} us compile  {}\n", worst * 1e6, times.compile.back() * 1e6, c.name);
}

Json summary(const std::vector<double>& seconds) {
  Json out = to_json(percentiles(seconds), 1e6);
  if (seconds.empty()) return out;
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const auto last = static_cast<double>(sorted.size());
  out["p99.9"] = std::round(sorted[static_cast<size_t>(std::ceil(0.999 * last)) - 1] * 1e9) / 1000;
  out["max"] = std::round(sorted.back() * 1e9) / 1000;
  return out;
}

// The least time of each grammar and mask: what other programs on the machine add is left out.
void take_least(std::vector<double>& times, const std::vector<double>& again) {
  for (size_t i = 0; i < times.size(); ++i) times[i] = std::min(times[i], again[i]);
}

int bench(const Arguments& a) {
  const std::vector<Case> cases = read_cases(a.file);
  const auto tokenizer = Tokenizer::open(local_text(a.model));
  const auto begin = Clock::now();
  const auto vocabulary = vocabulary_of(*tokenizer);
  const double vocabulary_seconds = seconds_since(begin);
  Times times;
  for (const Case& c : cases) measure(c, *tokenizer, vocabulary, a.slowest, times);
  for (int i = 1; i < a.repeat; ++i) {
    Times again;
    for (const Case& c : cases) measure(c, *tokenizer, vocabulary, false, again);
    take_least(times.compile, again.compile);
    take_least(times.mask, again.mask);
  }
  print_result({{"grammars", cases.size()},
                {"refused", times.refused},
                {"wrong_verdicts", times.wrong},
                {"vocabulary", tokenizer->vocab_size()},
                {"vocabulary_ms", std::round(vocabulary_seconds * 1e4) / 10},
                {"masks", times.mask.size()},
                {"compile_us", summary(times.compile)},
                {"mask_us", summary(times.mask)}});
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  app.add_option("model", a->model, "model or tokenizer folder; without one, the bundled demo model")
      ->type_name("MODEL_OR_FILE");
  app.add_option("--file", a->file,
                 "lines {\"schema\": ..., \"tests\": [{\"data\": ..., \"valid\": ...}]} (MaskBench) or {\"regex\"|...: "
                 "..., \"instances\": [...]}")
      ->required();
  app.add_option("--repeat", a->repeat, "runs, of which the least time of every grammar and mask counts")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--slowest", a->slowest,
               "print the slowest mask and the compile time of every grammar to standard error");
  return [a] { return bench(*a); };
}

const BenchCommand command{"grammar", "time compiling grammars and filling masks, one thread", declare};
const Registry<BenchCommand> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_grammar
