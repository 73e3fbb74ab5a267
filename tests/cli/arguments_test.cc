// Tests what command lines, configuration files and variables become: every option of ours, of vLLM and of
// llama-server.
#include "cli/arguments.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/foreign_options.h"
#include "cli/suggest.h"
#include "cli/usage_error.h"
#include "ops/device.h"

namespace sluice::cli::arguments_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;

// The program's commands. Parsing runs none of them.
class Program {
 public:
  Program() {
    for (const Command* command : Registry<Command>::all()) {
      CLI::App* sub = app_.add_subcommand(std::string(command->name), command->summary);
      runs_.push_back(command->declare(*sub));
    }
  }

  CommandLine read(const Words& words) { return read_arguments(app_, words); }

  // Reads and parses. Throws what the program reports with exit status 2.
  CommandLine parse(const Words& words) {
    CommandLine line = read(words);
    Words reversed(line.words.rbegin(), line.words.rend());
    app_.parse(std::move(reversed));
    return line;
  }

  Words values(const std::string& option, const std::string& command = "serve") {
    return app_.get_subcommand(command)->get_option(option)->results();
  }
  CLI::App& serve() { return *app_.get_subcommand("serve"); }

 private:
  CLI::App app_{"", "sluice"};
  std::vector<std::function<int()>> runs_;
};

Words values_of(const Words& words, const std::string& option) {
  Program program;
  program.parse(words);
  return program.values(option);
}

// The message for words that cannot be used; empty if they can.
std::string error_of(const Words& words) {
  Program program;
  try {
    program.parse(words);
  } catch (const UsageError& e) {
    return e.what();
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  return {};
}

class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }

 private:
  const std::string name_;
};

class File {
 public:
  explicit File(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / fmt::format("sluice-cli-test-{}.yaml", ::getpid())) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

TEST(Arguments, UnknownNamesGetTheNearestOne) {
  EXPECT_THAT(error_of({"srve"}), HasSubstr("unknown command 'sluice srve'; did you mean 'serve'?"));
  EXPECT_THAT(error_of({"bench", "latncy"}), HasSubstr("did you mean 'latency'?"));
  EXPECT_THAT(error_of({"serve", "--max-modle-len", "8"}), HasSubstr("did you mean '--max-model-len'?"));
  EXPECT_THAT(error_of({"serve", "--trust-remote-cod"}), HasSubstr("did you mean '--trust-remote-code'?"));
  EXPECT_THAT(error_of({"pull", "--verfy", "a/b"}), HasSubstr("did you mean '--verify'?"));
  EXPECT_EQ(error_of({"pull", "--qqqqqqqqq", "a/b"}), "unknown option '--qqqqqqqqq' (`sluice pull --help` lists all)");
  EXPECT_EQ(nearest("abcdef", {"uvwxyz"}), "");
  EXPECT_EQ(nearest("prot", {"host", "port"}), "port");
}

TEST(Arguments, CommandsWithoutAnEngineKnowNoForeignOptions) {
  EXPECT_THAT(error_of({"docs", "options", "--trust-remote-code"}), HasSubstr("unknown option"));
}

TEST(Arguments, UnderscoresStandForDashes) {
  EXPECT_THAT(values_of({"serve", "--max_model_len", "77", "--no_enable_prefix_caching"}, "--max-model-len"),
              ElementsAre("77"));
  EXPECT_THAT(error_of({"serve", "--api_key=a_b"}), IsEmpty());
}

TEST(Arguments, TheLastOfEqualOptionsCounts) {
  Program program;
  program.parse({"serve", "--port", "1", "--port=2"});
  EXPECT_EQ(program.serve().get_option("--port")->as<int>(), 2);
}

TEST(Arguments, ValuesMayBeginWithADash) {
  EXPECT_EQ(error_of({"serve", "--seed", "-5"}), "");
  EXPECT_THAT(error_of({"serve", "--port", "-1"}), HasSubstr("-1 is out of range"));
  EXPECT_EQ(error_of({"serve", "--host", "--port", "1"}), "--host: needs a value");
  EXPECT_EQ(error_of({"serve", "--host"}), "--host: needs a value");
  EXPECT_EQ(error_of({"run", "--", "-x"}), "");
}

TEST(Arguments, JsonInOnePieceOrInParts) {
  const std::string option = "--default-chat-template-kwargs";
  EXPECT_THAT(values_of({"serve", option, R"({"a": 1})"}, option), ElementsAre(R"({"a":1})"));
  EXPECT_THAT(values_of({"serve", option + ".a_b", "true", option + ".c.d+", "x", option + ".c.d+=2"}, option),
              ElementsAre(R"({"a_b":true,"c":{"d":["x",2]}})"));
  EXPECT_THAT(error_of({"serve", option, "nonsense"}), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_of({"serve", "--port.x", "1"}), HasSubstr("is not a JSON object"));
  EXPECT_THAT(error_of({"serve", "--speculative-config.method", "ngram"}), "");
  EXPECT_THAT(values_of({"serve", "--speculative-model", "[ngram]", "--num-speculative-tokens", "4",
                         "--ngram-prompt-lookup-max", "3"},
                        "--speculative-config"),
              ElementsAre(R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3})"));
  EXPECT_THAT(
      values_of({"serve", "--speculative-model", "org/draft", "--num-speculative-tokens", "4"}, "--speculative-config"),
      ElementsAre(R"({"model":"org/draft","num_speculative_tokens":4})"));
  EXPECT_THAT(values_of({"serve", "-md", "folder", "--draft-max", "8", "--draft-min", "1", "--draft-p-min", "0.75"},
                        "--speculative-config"),
              ElementsAre(R"({"model":"folder","num_speculative_tokens":8,"draft_n_min":1,"draft_p_min":0.75})"));
  EXPECT_THAT(values_of({"serve", "-hfd", "org/draft:Q4_K_M", "--spec-draft-n-max", "2"}, "--speculative-config"),
              ElementsAre(R"({"model":"org/draft:Q4_K_M","num_speculative_tokens":2})"));
}

TEST(Arguments, ListsAreSeveralWordsOrJson) {
  const Words names = {"serve", "folder", "--served-model-name", "a", "b", "--port", "1"};
  EXPECT_THAT(values_of(names, "--served-model-name"), ElementsAre("a", "b"));
  EXPECT_THAT(values_of({"serve", "--allowed-origins", R"(["http://a", "http://b"])"}, "--allowed-origins"),
              ElementsAre("http://a", "http://b"));
  // The last word is the model if there is no other.
  EXPECT_THAT(values_of({"serve", "--served-model-name", "a", "folder"}, "--served-model-name"), ElementsAre("a"));
  EXPECT_THAT(values_of({"serve", "--served-model-name", "a", "folder"}, "model"), ElementsAre("folder"));
  EXPECT_THAT(values_of({"serve", "--model", "m", "--served-model-name", "a", "b"}, "--served-model-name"),
              ElementsAre("a", "b"));
}

TEST(Arguments, TheModelAndItsRevision) {
  EXPECT_THAT(values_of({"serve", "--model", "m"}, "model"), ElementsAre("m"));
  EXPECT_THAT(values_of({"serve", "-m", "m.gguf"}, "model"), ElementsAre("m.gguf"));
  EXPECT_THAT(values_of({"serve", "-hf", "org/name:Q4_K_M"}, "model"), ElementsAre("org/name:Q4_K_M"));
  EXPECT_THAT(values_of({"serve", "org/name", "--revision", "v2"}, "model"), ElementsAre("org/name:v2"));
  EXPECT_THAT(error_of({"serve", "a", "--model", "b"}), HasSubstr("given twice"));
  EXPECT_THAT(values_of({"serve", "a", "b"}, "model"), ElementsAre("a", "b"));
  EXPECT_THAT(values_of({"serve", "--model", "a", "-m", "b"}, "model"), ElementsAre("a", "b"));
  EXPECT_THAT(error_of({"serve", "a", "b", "--revision", "v2"}), HasSubstr("several models"));
  const std::string entry = R"({"model":"a","threads":2})";
  EXPECT_THAT(values_of({"serve", "--models", entry, "--models", "b"}, "--models"), ElementsAre(entry, "b"));
  EXPECT_THAT(error_of({"serve", "--revision", "v2"}), HasSubstr("needs a model"));
}

TEST(Arguments, ValuesOfVllmAreConverted) {
  EXPECT_THAT(values_of({"serve", "--dtype", "half"}, "--dtype"), ElementsAre("float16"));
  EXPECT_THAT(values_of({"serve", "--max-model-len", "auto"}, "--max-model-len"), ElementsAre("0"));
  EXPECT_THAT(values_of({"serve", "--device-ids", "2,3"}, "--device"), ElementsAre("2"));
  for (const char* ids : {"", "3,2", "1,1", "a", "-1", "1,"}) {
    EXPECT_THROW(values_of({"serve", "--device-ids", ids}, "--device"), UsageError) << ids;
  }
  EXPECT_THAT(values_of({"serve", "--shutdown-timeout", "2.5"}, "--shutdown-timeout-ms"), ElementsAre("2500"));
  EXPECT_THAT(values_of({"serve", "--lora-modules", R"({"name": "n", "path": "/p"})"}, "--lora-modules"),
              ElementsAre("n=/p"));
  EXPECT_THAT(values_of({"serve", "--lora", "/a/pirate.gguf,json", "--lora", "b.gguf"}, "--lora-modules"),
              ElementsAre("pirate=/a/pirate.gguf", "json=json", "b=b.gguf"));
  EXPECT_THAT(error_of({"serve", "--lora", "a.gguf,,"}), HasSubstr("--lora"));
  EXPECT_THAT(values_of({"serve", "--uvicorn-log-level", "critical"}, "--log-level"), ElementsAre("error"));
  EXPECT_THAT(values_of({"serve", "--device", "cpu"}, "--backend"),
              ElementsAre(std::string(ops::select_host_backend().name)));
  EXPECT_THAT(values_of({"serve", "--device", "1"}, "--device"), ElementsAre("1"));
  EXPECT_THAT(error_of({"serve", "--shutdown-timeout", "-1"}), HasSubstr("out of range"));
  EXPECT_THAT(values_of({"serve", "--runner", "pooling"}, "--task"), ElementsAre("pooling"));
  // The last value counts.
  EXPECT_THAT(values_of({"serve", "--convert", "classify", "--runner", "pooling"}, "--task"),
              ElementsAre("pooling", "score"));
  EXPECT_THAT(values_of({"serve", "--task", "embed", "--runner=pooling"}, "--task"), ElementsAre("pooling", "embed"));
}

TEST(Arguments, OptionsOfLlamaServer) {
  const Words words = {"serve", "-m", "m", "-c", "4096", "-ngl", "99", "-np", "4", "--host", "::1", "--port", "8080"};
  Program program;
  const CommandLine line = program.parse(words);
  EXPECT_THAT(program.values("--max-model-len"), ElementsAre("4096"));
  EXPECT_THAT(program.values("--max-num-seqs"), ElementsAre("4"));
  EXPECT_THAT(program.values("--host"), ElementsAre("::1"));
  EXPECT_THAT(program.values("--backend"), IsEmpty());
  EXPECT_THAT(line.notes, ElementsAre(HasSubstr("-np 4: --ctx-size is the limit of each sequence")));
  EXPECT_THAT(error_of({"serve", "-ngl", "20"}), HasSubstr("-ngl: '20' is not supported (expected all, auto"));
}

// What words become, without "serve"; "nothing" if a line says so; or the error.
std::string outcome_of(Words words) {
  words.insert(words.begin(), "serve");
  Program program;
  CommandLine line;
  try {
    line = program.parse(words);
  } catch (const std::exception& e) {
    return fmt::format("error: {}", e.what());
  }
  std::string out;
  for (size_t i = 1; i < line.words.size(); ++i) out += (out.empty() ? "" : " ") + line.words[i];
  const bool nothing = out.empty() && !line.notes.empty() && line.notes[0].find("nothing to do") != std::string::npos;
  return nothing ? "nothing" : out;
}

// Expects an outcome; of an error, that it has this part.
void expect_outcome(const Words& words, const std::string& expected) {
  SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
  const std::string outcome = outcome_of(words);
  if (expected.starts_with("error: ")) {
    EXPECT_THAT(outcome, ::testing::StartsWith("error: " + words[0]));
    EXPECT_THAT(outcome, HasSubstr(expected.substr(7)));
  } else {
    EXPECT_EQ(outcome, expected);
  }
}

std::string host_backend() { return std::string(ops::select_host_backend().name); }

TEST(Arguments, IntegersOfLlamaServerAtTheirEdges) {
  const std::string sampling = "--override-generation-config ", cpu = "--backend " + host_backend();
  struct Row {
    const char* option;
    std::string at_minus_one, at_zero, at_two_to_31;
  };
  const std::vector<Row> rows = {
      {"-t", "--threads 0", "--threads 0", "error: 2147483648 is out of range (expected 0 to 1024)"},
      {"-tb", "--threads 0", "error: unless --threads is 0", "error: out of range (expected 0 to 1024)"},
      {"-c", "error: out of range", "--max-model-len 0", "error: out of range (expected 0 to 2147483647)"},
      {"-n", "", "error: expected -1, or 1 to", "error: expected -1, or 1 to"},
      {"-b", "error: out of range", "error: expected at least 1", "error: out of range"},
      {"-ub", "nothing", "nothing", "nothing"},
      {"-np", "--max-num-seqs 0", "error: expected -1 or at least 1", "error: out of range (expected 0 to 65536)"},
      {"-ngl", "", cpu, ""},
      {"-mg", "error: out of range", "--device 0", "error: out of range"},
      {"-ncmoe", "error: not supported", "nothing", "error: not supported"},
      {"--keep", "--context-keep -1", "--context-keep 0", "error: out of range (expected -1 to 2147483647)"},
      {"--prio", "error: not supported", "nothing", "error: not supported"},
      {"--poll", "nothing", "nothing", "nothing"},
      {"--port", "error: out of range", "--port 0", "error: out of range (expected 0 to 65535)"},
      {"-to", "error: expected 1 to 86400 seconds", "error: expected 1 to", "error: expected 1 to"},
      {"--threads-http", "--worker-threads 0", "--worker-threads 0", "error: out of range (expected 0 to 256)"},
      {"--sse-ping-interval", "nothing", "error: not supported", "error: not supported"},
      {"--models-max", "error: out of range", "--max-loaded-models 0", "error: out of range"},
      {"--sleep-idle-seconds", "--model-idle-seconds 0", "error: expected -1 or at least 1", "error: out of range"},
      {"-lv", "error: expected 0 (nothing)", "--log-level off", "--log-level debug"},
      {"-s", "--seed -1", "--seed 0", "--seed 2147483648"},
      {"--cache-reuse", "nothing", "nothing", "nothing"},
      {"-cram", "nothing", "nothing", "nothing"},
      {"--embd-normalize", "error: send normalize: false", "error: not supported", "error: not supported"},
      {"--reasoning-budget", "nothing", "error: send thinking_token_budget", "error: send thinking_token_budget"},
      {"--draft-max", "error: expected 1 to 32", "error: expected 1 to 32", "error: expected 1 to 32"},
      {"--yarn-orig-ctx", "error: not supported", "nothing", "error: not supported"},
      {"--top-k", sampling + R"({"top_k":0})", sampling + R"({"top_k":0})", "error: at most 2147483647"},
      {"--repeat-last-n", sampling + R"({"repeat_last_n":-1})", sampling + R"({"repeat_last_n":0})",
       "error: at most 2147483647, but got 2147483648"},
      {"--dry-allowed-length", "error: expected an integer of at least 0", sampling + R"({"dry_allowed_length":0})",
       "error: at most 2147483647"},
      {"--dry-penalty-last-n", sampling + R"({"dry_penalty_last_n":-1})", sampling + R"({"dry_penalty_last_n":0})",
       "error: at most 2147483647"},
      {"--mirostat", "error: of at least 0 and at most 2", sampling + R"({"mirostat":0})", "error: at most 2"},
  };
  for (const Row& row : rows) {
    expect_outcome({row.option, "-1"}, row.at_minus_one);
    expect_outcome({row.option, "0"}, row.at_zero);
    expect_outcome({row.option, "2147483648"}, row.at_two_to_31);
  }
}

TEST(Arguments, SamplingOptionsOfLlamaServerAreDefaults) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--temp", "0.8"}, R"({"temperature":0.8})"},
      {{"--temperature", "-1"}, R"({"temperature":0})"},
      {{"--temp", "0.5", "--temp", "1e-1"}, R"({"temperature":0.1})"},
      {{"--top-p", "1.5"}, R"({"top_p":1})"},
      {{"--top-p", ".9", "--min-p", "-0.5", "--typical", "0.7"}, R"({"top_p":0.9,"min_p":0,"typical_p":0.7})"},
      {{"--top-nsigma", "-2"}, R"({"top_n_sigma":0})"},
      {{"--xtc-probability", "0.5", "--xtc-threshold", "2"}, R"({"xtc_probability":0.5,"xtc_threshold":1})"},
      {{"--dynatemp-range", "-1", "--dynatemp-exp", "2"}, R"({"dynatemp_range":0,"dynatemp_exponent":2})"},
      {{"--mirostat", "2", "--mirostat-lr", "0.2", "--mirostat-ent", "4"},
       R"({"mirostat":2,"mirostat_eta":0.2,"mirostat_tau":4})"},
      {{"--adaptive-target", "-0.5", "--adaptive-decay", "0.5"}, R"({"adaptive_target":-1,"adaptive_decay":0.5})"},
      {{"-n", "7"}, R"({"max_new_tokens":7})"},
      // Penalties look at 64 tokens unless another option says otherwise, in any order.
      {{"--repeat-penalty", "1.1"}, R"({"repetition_penalty":1.1,"repeat_last_n":64})"},
      {{"--repeat-last-n", "-1", "--repeat-penalty", "1.1"}, R"({"repeat_last_n":-1,"repetition_penalty":1.1})"},
      {{"--presence-penalty", "0.5", "--repeat-last-n", "9"}, R"({"presence_penalty":0.5,"repeat_last_n":9})"},
      {{"--dry-multiplier", "0.8"}, R"({"dry_multiplier":0.8,"dry_penalty_last_n":64})"},
      {{"--override-generation-config", R"({"top_k":5})", "--temp", "0"}, R"({"top_k":5,"temperature":0})"}};
  for (const auto& [words, expected] : cases) expect_outcome(words, "--override-generation-config " + expected);

  for (const char* wrong : {"2.5", "x", "", "nan", "inf", "1,5"}) {
    expect_outcome({"--temp", wrong},
                   fmt::format("error: expected a number of at least 0 and at most 2, but got {}", wrong));
  }
  expect_outcome({"--top-p", "0"}, "error: expected a number above 0 and at most 1, but got 0");
  expect_outcome({"--top-k", "1.5"}, "error: expected an integer");
  expect_outcome({"--repeat-penalty", "0"}, "error: expected a number of at least 1e-06");
  expect_outcome({"--temp.x", "1"}, "error: is not a JSON object");
  for (const char* refused : {"--samplers", "--logit-bias", "--dry-sequence-breaker", "--grammar-file", "-jf"}) {
    expect_outcome({refused, "x"}, "error: with requests");
  }
}

TEST(Arguments, ALineTellsWhereAMeaningDiffers) {
  const auto notes = [](Words words) {
    words.insert(words.begin(), "serve");
    Program program;
    return program.parse(words).notes;
  };
  EXPECT_THAT(notes({"--top-p", "0.9"}), ElementsAre(HasSubstr("--top-p 0.9: it looks at probabilities after")));
  EXPECT_THAT(notes({"--frequency-penalty=1"}), ElementsAre(HasSubstr("--frequency-penalty 1: it counts")));
  EXPECT_THAT(notes({"-n", "-1"}), ElementsAre(HasSubstr("-n -1: a default that requests may exceed")));
  EXPECT_THAT(notes({"--top-p", "1.0", "--min-p", "0", "--presence-penalty", "0.0", "-np", "1"}), IsEmpty());
  EXPECT_THAT(notes({"--log-jsonl"}), ElementsAre(HasSubstr("standard error")));
}

TEST(Arguments, OtherValuesOfLlamaServer) {
  const std::string cpu = "--backend " + host_backend(), kwargs = "--default-chat-template-kwargs ";
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"-ngl", "all"}, ""},
      {{"-ngl", "auto"}, ""},
      {{"-ngl", "999"}, ""},
      {{"-ngl", "0", "-ngl", "99"}, ""},
      {{"-ngl", "half"}, "error: 'half' is not supported"},
      {{"-dev", "none"}, cpu},
      {{"-dev", "CUDA1"}, "--backend cuda --device 1"},
      {{"--device", "CUDA1"}, "--backend cuda --device 1"},
      {{"--device", "none"}, cpu},
      {{"--device", "2"}, "--device 2"},
      {{"-dev", "CUDA0,CUDA1"}, "error: expected one device"},
      {{"--device", "gpu"}, "error: 'gpu' is not supported (expected a number"},
      {{"-ctk", "f16"}, "--kv-cache-dtype float16"},
      {{"-ctk", "f32", "-ctv", "f32"}, "--kv-cache-dtype float32 --kv-cache-dtype float32"},
      {{"--cache-type-k", "f32"}, "error: not supported unless --cache-type-v is f32, too: keys and values have one"},
      {{"-ctv", "q8_0"}, "error: 'q8_0' is not supported (expected one of: f32, f16, bf16"},
      {{"-t", "8", "-tb", "8"}, "--threads 8 --threads 8"},
      {{"--threads-batch", "8", "-t", "4"}, "error: not supported unless --threads is 8"},
      {{"--numa", "distribute"}, "--numa auto"},
      {{"--numa", "numactl"}, "--numa auto"},
      {{"--numa", "isolate"}, "error: 'isolate' is not supported"},
      {{"--numa", "off"}, "--numa off"},
      {{"-lm", "mmap"}, "nothing"},
      {{"-lm", "mlock"}, "error: MemorySwapMax"},
      {{"-sm", "layer"}, "nothing"},
      {{"-sm", "row"}, "error: --tensor-parallel-size"},
      {{"-lv", "1"}, "--log-level error"},
      {{"-to", "600"}, "--body-timeout-ms 600k"},
      {{"-to", "1m"}, "error: expected 1 to 86400 seconds"},
      {{"--cors-origins", "http://a,http://b"}, "--allowed-origins http://a,http://b"},
      {{"--cors-origins", "localhost"}, "--allowed-origins localhost"},
      {{"--reasoning-format", "deepseek"}, "--reasoning-parser auto"},
      {{"--reasoning-format", "none"}, "--reasoning-parser none"},
      {{"--reasoning-format", "deepseek-legacy"}, "error: expected one of: none, auto, deepseek"},
      {{"-rea", "off"}, kwargs + R"({"enable_thinking":false})"},
      {{"--reasoning", "auto"}, ""},
      {{"--reasoning", "off", "--reasoning", "auto"}, ""},
      {{"--reasoning-effort", "low", "--reasoning=on"},
       kwargs + R"({"reasoning_effort":"low","enable_thinking":true})"},
      {{"--reasoning-effort", "default"}, ""},
      {{"--chat-template", "chatml"}, "--chat-template chatml"},
      {{"--chat-template", "chatlm"},
       "error: there is no file 'chatlm' (expected a Jinja file, a template in one line, or"},
      {{"--chat-template-file", "/dev/null"}, "--chat-template /dev/null"},
      {{"--skip-chat-parsing"}, "--reasoning-parser none --tool-call-parser none"},
      {{"--no-skip-chat-parsing"}, ""},
      {{"-a", "one,two"}, "--served-model-name one,two"},
      {{"--no-cache-prompt"}, "--enable-prefix-caching=false"},
      {{"--embedding"}, "--task embed"},
      {{"--no-rerank"}, ""},
      {{"-cb"}, "nothing"},
      {{"-nocb"}, "error: requests join and leave at every step"},
      {{"-nkvo"}, "error: the cache is where the model is computed"},
      {{"-nr"}, "nothing"},
      {{"-no-kvu"}, "nothing"},
      {{"--no-mmproj"}, "nothing"},
      {{"--no-webui"}, "--web-page=false"},
      {{"--no-host"}, "nothing"},
      {{"-fa", "off"}, "nothing"},
      {{"-fa"}, "nothing"},
      {{"--mlock"}, "error: not supported: run the server with a limit on swap"},
      {{"--fim-qwen-1.5b-default"}, "error: not supported: name the model"},
      {{"--control-vector-layer-range", "1", "2"}, "error: --control-vector-layer-range 1 2: not supported"}};
  for (const auto& [words, expected] : cases) expect_outcome(words, expected);
}

TEST(Arguments, OfflineIsAVariable) {
  Program program;
  EXPECT_THAT(program.parse({"serve", "--offline"}).environment,
              ElementsAre(std::pair<std::string, std::string>("HF_HUB_OFFLINE", "1")));
  EXPECT_THAT(Program().parse({"serve", "--no-offline"}).environment, IsEmpty());
}

TEST(Arguments, VariablesOfLlamaServer) {
  const Variable length("LLAMA_ARG_CTX_SIZE", "1234"), attention("LLAMA_ARG_FLASH_ATTN", "on"),
      no_cache("LLAMA_ARG_NO_CACHE_PROMPT", "1"), vectors("LLAMA_ARG_EMBEDDINGS", "disabled"),
      heat("LLAMA_ARG_TEMPERATURE", "0.5"), penalty("LLAMA_ARG_REPEAT_PENALTY", "1.5"), key("LLAMA_API_KEY", "secret");
  Program program;
  const CommandLine line = program.parse({"serve"});
  EXPECT_THAT(program.values("--max-model-len"), ElementsAre("1234"));
  EXPECT_FALSE(program.serve().get_option("--enable-prefix-caching")->as<bool>());
  EXPECT_THAT(program.values("--task"), IsEmpty());
  EXPECT_THAT(program.values("--override-generation-config"),
              ElementsAre(R"({"temperature":0.5,"repetition_penalty":1.5,"repeat_last_n":64})"));
  EXPECT_THAT(program.values("--api-key"), ElementsAre("secret"));
  EXPECT_THAT(line.notes, Contains("LLAMA_ARG_CTX_SIZE sets --max-model-len"));
  EXPECT_THAT(line.notes, Contains(HasSubstr("LLAMA_ARG_FLASH_ATTN on: nothing to do: attention")));
  EXPECT_THAT(line.notes, Contains("LLAMA_ARG_TEMPERATURE sets --override-generation-config.temperature"));
  EXPECT_THAT(line.notes, Not(Contains(HasSubstr("LLAMA_ARG_EMBEDDINGS"))));
  // The command line goes first, key by key.
  EXPECT_THAT(values_of({"serve", "-c", "8", "--temp", "0", "--repeat-last-n", "3"}, "--max-model-len"),
              ElementsAre("8"));
  EXPECT_THAT(values_of({"serve", "--temp", "0", "--repeat-last-n", "3"}, "--override-generation-config"),
              ElementsAre(R"({"temperature":0,"repeat_last_n":3,"repetition_penalty":1.5})"));
  const Variable ours("SLUICE_OVERRIDE_GENERATION_CONFIG", R"({"top_k":1})");
  EXPECT_THAT(values_of({"serve"}, "--override-generation-config"), ElementsAre(R"({"top_k":1})"));
}

TEST(Arguments, VariablesOfLlamaServerAreRefusedByName) {
  const std::vector<std::vector<std::string>> cases = {
      {"LLAMA_ARG_N_GPU_LAYERS", "20", "LLAMA_ARG_N_GPU_LAYERS: '20' is not supported"},
      {"LLAMA_ARG_MLOCK", "1", "LLAMA_ARG_MLOCK: not supported: run the server"},
      {"LLAMA_ARG_N_PARALLEL", "many", "LLAMA_ARG_N_PARALLEL: many is not a whole number"},
      {"LLAMA_ARG_JINJA", "perhaps", "LLAMA_ARG_JINJA: 'perhaps' is not a value of a flag"},
      {"LLAMA_ARG_NO_CONT_BATCHING", "0", "LLAMA_ARG_NO_CONT_BATCHING: not supported"},
      {"LLAMA_ARG_HOST", "a.sock", "LLAMA_ARG_HOST: 'a.sock' is not supported"},
      {"LLAMA_API_KEY", "one,two", "LLAMA_API_KEY: has a comma"}};
  for (const auto& row : cases) {
    const Variable variable(row[0], row[1]);
    EXPECT_THAT(error_of({"serve"}), HasSubstr(row[2]));
  }
  const Variable layers("LLAMA_ARG_N_GPU_LAYERS", "20");
  EXPECT_EQ(error_of({"serve", "-ngl", "99"}), "");
  EXPECT_EQ(error_of({"inspect"}), "");
}

TEST(Arguments, SecretsAndVariables) {
  Program program;
  const CommandLine line = program.parse({"serve", "m", "--api-key", "one,1", "two", "--hf-token", "hf_x",
                                          "--download-dir", "/models", "--api_key=three"});
  EXPECT_THAT(line.secrets, ElementsAre("one,1", "two", "hf_x", "three"));
  EXPECT_THAT(line.notes, ElementsAre(HasSubstr("the comma is a part of the key")));
  EXPECT_THAT(program.values("--api-key"), ElementsAre("one,1", "two", "three"));
  EXPECT_THAT(line.environment, Contains(std::pair<std::string, std::string>("HF_TOKEN", "hf_x")));
  EXPECT_THAT(line.environment, Contains(std::pair<std::string, std::string>("HF_HUB_CACHE", "/models")));
}

TEST(Arguments, AFileGoesBeforeDefaultsAndAfterTheRest) {
  const File file(
      "model: from-file\nport: 1\nmax_num_seqs: 3\nseed: 4\nenable-prefix-caching: false\n"
      "served-model-name: [a, b]\ntrust-remote-code: true\n"
      "default-chat-template-kwargs:\n  thinking: false\n  text: \"1\"\n");
  const Variable variable("SLUICE_MAX_NUM_SEQS", "9");
  Program program;
  const CommandLine line = program.parse({"serve", "--config", file.path(), "--port", "2"});
  EXPECT_THAT(program.values("model"), ElementsAre("from-file"));
  EXPECT_THAT(program.values("--port"), ElementsAre("2"));
  EXPECT_THAT(program.values("--max-num-seqs"), ElementsAre("9"));
  EXPECT_THAT(program.values("--seed"), ElementsAre("4"));
  EXPECT_FALSE(program.serve().get_option("--enable-prefix-caching")->as<bool>());
  EXPECT_THAT(program.values("--served-model-name"), ElementsAre("a", "b"));
  EXPECT_THAT(program.values("--default-chat-template-kwargs"), ElementsAre(R"({"thinking":false,"text":"1"})"));
  EXPECT_THAT(line.notes, ElementsAre(HasSubstr("--trust-remote-code: nothing to do")));
  EXPECT_THAT(values_of({"serve", "other", "--config", file.path()}, "model"), ElementsAre("other"));
  EXPECT_THAT(values_of({"serve", "--config", file.path(), "--served-model-name", "c"}, "--served-model-name"),
              ElementsAre("c"));
}

TEST(Arguments, ErrorsOfAFileNameTheLine) {
  const auto error = [](const std::string& text) {
    const File file(text);
    return error_of({"serve", "--config", file.path()});
  };
  EXPECT_THAT(error("port: 1\nprot: 2\n"), HasSubstr(".yaml:2: unknown option '--prot'; did you mean '--port'?"));
  EXPECT_THAT(error("port:\n"), HasSubstr(".yaml:1: port: has no value"));
  EXPECT_THAT(error("port: 1\nport: 2\n"), HasSubstr("port is given twice"));
  EXPECT_THAT(error("- port\n"), HasSubstr("expected a mapping"));
  EXPECT_THAT(error("port: [1\n"), HasSubstr(".yaml:"));
  EXPECT_THAT(error("config: other.yaml\n"), HasSubstr("cannot name another"));
  EXPECT_THAT(error("node-rank: 2\n"), HasSubstr(".yaml:1: --node-rank 2: not supported"));
  EXPECT_THAT(error("port: -1\n"), HasSubstr("out of range"));
  EXPECT_THAT(error_of({"serve", "--config", "/nowhere.yaml"}), HasSubstr("cannot open the file"));
}

TEST(Arguments, VariablesOfOtherServers) {
  const Variable host("OLLAMA_HOST", "0.0.0.0:9999");
  const Variable length("OLLAMA_CONTEXT_LENGTH", "1234");
  Program program;
  const CommandLine line = program.parse({"serve", "--max-model-len", "8"});
  EXPECT_THAT(program.values("--host"), ElementsAre("0.0.0.0"));
  EXPECT_THAT(program.values("--port"), ElementsAre("9999"));
  EXPECT_THAT(program.values("--max-model-len"), ElementsAre("8"));
  EXPECT_THAT(line.notes, ElementsAre("OLLAMA_HOST sets --host, port"));
  const Variable ours("SLUICE_PORT", "7");
  EXPECT_THAT(values_of({"serve"}, "--port"), ElementsAre("7"));
}

TEST(Arguments, AddressesOfOllama) {
  const std::map<std::string, std::pair<std::string, std::string>> cases = {{"1.2.3.4", {"1.2.3.4", "11434"}},
                                                                            {"1.2.3.4:5", {"1.2.3.4", "5"}},
                                                                            {"[::1]:5", {"::1", "5"}},
                                                                            {"http://host:80/", {"host", "80"}},
                                                                            {"[::1]", {"::1", "11434"}}};
  for (const auto& [text, expected] : cases) {
    const Variable variable("OLLAMA_HOST", text);
    EXPECT_THAT(values_of({"serve"}, "--host"), ElementsAre(expected.first)) << text;
    EXPECT_THAT(values_of({"serve"}, "--port"), ElementsAre(expected.second)) << text;
  }
}

// Every integer option has a range, and takes the values in it only.
struct IntegerOptions {
  std::set<std::string> names;
  template <class T>
  void operator()(const std::string& name, T&, const char*, const std::vector<std::string>& = {}) {
    if (std::is_integral_v<T> && !std::is_same_v<T, bool>) names.insert(name);
  }
};

struct Ranges {
  std::map<std::string, std::pair<int64_t, int64_t>> rows;
  void operator()(const std::string& name, int64_t, int64_t least, int64_t most) { rows[name] = {least, most}; }
};

TEST(Arguments, EveryIntegerOptionKeepsItsRange) {
  EngineOptions engine;
  ServerOptions server;
  IntegerOptions integers;
  visit(integers, engine);
  visit(integers, server);
  Ranges ranges;
  visit_ranges(ranges, engine);
  visit_ranges(ranges, server);
  ASSERT_EQ(integers.names.size(), ranges.rows.size());
  for (const std::string& name : integers.names) {
    ASSERT_TRUE(ranges.rows.contains(name)) << name;
    const auto [least, most] = ranges.rows.at(name);
    for (const int64_t value : {int64_t{-1}, int64_t{0}, int64_t{1} << 31}) {
      SCOPED_TRACE(fmt::format("--{} {}", name, value));
      const std::string error = error_of({"serve", "--" + name, std::to_string(value)});
      if (value >= least && value <= most) {
        EXPECT_EQ(error, "");
        Program program;
        program.parse({"serve", "--" + name, std::to_string(value)});
        EXPECT_EQ(program.serve().get_option("--" + name)->as<int64_t>(), value);
      } else if (!(value == -1 && (name == "max-model-len" || name == "threads"))) {  // of vLLM and llama-server: 0
        EXPECT_THAT(error, HasSubstr("--" + name));
        EXPECT_THAT(error, HasSubstr(name == "block-size" ? "not in" : "is out of range")) << error;
      }
    }
    EXPECT_THAT(error_of({"serve", "--" + name, "x"}), HasSubstr("--" + name));
    EXPECT_THAT(error_of({"serve", "--" + name, ""}), HasSubstr("--" + name));
  }
}

TEST(Arguments, IntegersTakeUnits) {
  const auto length = [](const std::string& text) {
    Program program;
    program.parse({"serve", "--kv-cache-memory-bytes", text});
    return program.serve().get_option("--kv-cache-memory-bytes")->as<int64_t>();
  };
  EXPECT_EQ(length("8k"), 8000);
  EXPECT_EQ(length("8K"), 8192);
  EXPECT_EQ(length("25.6k"), 25600);
  EXPECT_EQ(length("8G"), int64_t{8} << 30);
  EXPECT_EQ(length("2GiB"), int64_t{2} << 30);
  for (const char* wrong : {"8GB", "1.5K", "k", "8kk", "1e3", "8 k", "0.0001k", "99999999999T"}) {
    EXPECT_THAT(error_of({"serve", "--kv-cache-memory-bytes", wrong}), HasSubstr("is not a whole number")) << wrong;
  }
}

std::string sample_value(const ForeignOption& row) {
  if (row.name == "device") return row.expand != nullptr ? "none" : "cpu";
  const std::map<std::string_view, std::string> samples = {
      {"shutdown-timeout", "1"},
      {"lora-modules", "a=b"},
      {"lora-dtype", "bfloat16"},
      {"dtype", "half"},
      {"load-format", "pt"},
      {"generation-config", "auto"},
      {"cache-type-k", "f16"},
      {"cache-type-v", "f16"},
      {"uvicorn-log-level", "info"},
      {"block-size", "16"},
      {"kv-cache-dtype", "fp8"},
      {"runner", "generate"},
      {"convert", "embed"},
      {"task", "embed"},
      {"config", "/dev/null"},
      {"gpu-memory-utilization", "0.5"},
      {"scheduling-policy", "fcfs"},
      {"numa", "distribute"},
      {"gpu-layers", "0"},
      {"threads-batch", "-1"},
      {"split-mode", "none"},
      {"load-mode", "mmap"},
      {"cors-origins", "*"},
      {"reasoning", "on"},
      {"chat-template", "{{ 1 }}"},
      {"chat-template-file", "{{ 1 }}"},
      {"reasoning-format", "none"},
      {"adaptive-decay", "0.5"},
      {"distributed-executor-backend", "mp"},
      {"speculative-model", "[ngram]"},
  };
  if (row.takes == ForeignOption::Takes::kJson) return R"({"a": 1})";
  const auto found = samples.find(row.name);
  return found != samples.end() ? found->second : "1";
}

// Each option of another server does what its row says.
void check_row(const ForeignOption& row, const std::string& word) {
  SCOPED_TRACE(word);
  Words words = {"serve", word};
  const std::string value = sample_value(row);
  if (row.takes != ForeignOption::Takes::kFlag) words.push_back(value);
  if (row.kind == ForeignOption::Kind::kRefused) {
    if (row.neutral == "on") words[1] = "--no-" + word.substr(2);
    if (is_neutral(row, value)) return;
    EXPECT_THAT(error_of(words), HasSubstr(std::string(row.text)));
    return;
  }
  if (row.name == "revision") words.insert(words.begin() + 1, "org/name");
  Program program;
  CommandLine line;
  ASSERT_NO_THROW(line = program.parse(words)) << error_of(words);
  if (row.kind == ForeignOption::Kind::kNothing) {
    EXPECT_THAT(line.notes, Contains(HasSubstr(std::string(row.text))));
    EXPECT_THAT(line.words, ElementsAre("serve"));
  } else if (row.to == "model") {
    EXPECT_EQ(program.values("model").size(), 1u);
  } else if (row.to == "offline") {
    EXPECT_EQ(line.environment.size(), 1u);
  } else if (row.to == "hf-token" || row.to == "download-dir") {
    EXPECT_EQ(line.environment.size(), value == "1" ? 1u : 0u);
  } else if (row.to != "config") {
    EXPECT_EQ(program.values("--" + std::string(row.to.substr(0, row.to.find_first_of("=.")))).size(), 1u);
  }
}

void check_table(std::span<const ForeignOption> rows) {
  std::set<std::string_view> names;
  std::set<std::string> aliases;
  for (const ForeignOption& row : rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(row.kind == ForeignOption::Kind::kWorks, !row.to.empty()) << row.name;
    EXPECT_TRUE(row.kind == ForeignOption::Kind::kWorks || !row.text.empty()) << row.name;
    const std::string word = "--" + std::string(row.name);
    if (find_foreign(word) == &row) check_row(row, word);
    EXPECT_TRUE(row.kind == ForeignOption::Kind::kWorks || row.difference.empty()) << row.name;
    std::string_view rest = row.aliases;
    while (!rest.empty()) {
      const size_t space = std::min(rest.find(' '), rest.size());
      const std::string alias(rest.substr(0, space));
      const bool flag_for_off = row.takes == ForeignOption::Takes::kFlag && row.neutral == "on";
      if (alias[0] == '-' && !flag_for_off) check_row(row, alias);
      if (alias[0] == '!') {
        EXPECT_EQ(find_negated(alias.substr(1)), &row);
      }
      EXPECT_TRUE(aliases.insert(alias).second) << alias;
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
    for (const std::string neutral : {"1", "0", "-1", "auto", "none", "off"}) {
      if (row.kind != ForeignOption::Kind::kRefused || !is_neutral(row, neutral) || find_foreign(word) != &row)
        continue;
      const bool flag = row.takes == ForeignOption::Takes::kFlag;
      Program program;
      const CommandLine line = program.parse({"serve", flag ? "--no-" + word.substr(2) : word + "=" + neutral});
      EXPECT_THAT(line.notes, ElementsAre(HasSubstr("nothing to do, it is always so"))) << word;
    }
  }
}

TEST(Arguments, EveryOptionOfVllm) { check_table(vllm_options()); }
TEST(Arguments, EveryOptionOfLlamaServer) { check_table(llama_options()); }

// vLLM's row is found first: it must not refuse what llama-server's row of the same name takes.
TEST(Arguments, OptionsOfBothServersAreTaken) {
  for (const ForeignOption& llama : llama_options()) {
    for (const ForeignOption& vllm : vllm_options()) {
      if (vllm.name != llama.name || llama.kind == ForeignOption::Kind::kRefused) continue;
      EXPECT_NE(vllm.kind, ForeignOption::Kind::kRefused) << vllm.name;
    }
  }
}

TEST(Arguments, GeneratedPagesHaveShortLines) {
  for (const std::string& page :
       {options_markdown(), foreign_markdown("vllm-options"), foreign_markdown("llama-options")}) {
    size_t begin = 0;
    for (size_t end = page.find('\n'); end != std::string::npos; end = page.find('\n', begin)) {
      EXPECT_LE(end - begin, 120u) << page.substr(begin, end - begin);
      begin = end + 1;
    }
  }
}

}  // namespace
}  // namespace sluice::cli::arguments_test
