// Thoughts: every split of an answer gives the same, prompts tell where it begins, and grammars begin after them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "chat/answer_parser.h"
#include "support/sanitized.h"

namespace sluice::reasoning_test {
namespace {

struct Parsed {
  std::string thought, text;
  std::vector<std::string> calls{};
  bool operator==(const Parsed&) const = default;
};
void PrintTo(const Parsed& p, std::ostream* out) { *out << "thought '" << p.thought << "' text '" << p.text << "'"; }

Parsed parse(const AnswerSyntax& syntax, const std::vector<std::string>& pieces) {
  const auto parser = make_answer_parser(syntax, nullptr);
  std::vector<Delta> deltas;
  for (const std::string& piece : pieces) parser->push(piece, deltas);
  parser->finish(deltas);
  Parsed out;
  for (const Delta& delta : deltas) {
    if (const auto* d = std::get_if<TextDelta>(&delta)) out.text += d->text;
    if (const auto* d = std::get_if<ReasoningDelta>(&delta)) out.thought += d->text;
    if (const auto* d = std::get_if<ToolCallBegin>(&delta)) out.calls.push_back(d->name);
  }
  return out;
}

// The same for every split in two, and byte by byte.
void expect(const AnswerSyntax& syntax, const std::string& text, const Parsed& expected) {
  EXPECT_EQ(parse(syntax, {text}), expected) << text;
  for (size_t i = 0; i <= text.size(); ++i) {
    EXPECT_EQ(parse(syntax, {text.substr(0, i), text.substr(i)}), expected) << text << " at " << i;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(parse(syntax, bytes), expected) << text;
}

AnswerSyntax syntax(const char* name, ThoughtStart start, const char* tools = nullptr) {
  return {
      .tools = tools != nullptr ? tool_syntax(tools) : nullptr, .reasoning = reasoning_syntax(name), .thought = start};
}
constexpr auto kOpen = ThoughtStart::kOpen, kMaybe = ThoughtStart::kMaybe, kClosed = ThoughtStart::kClosed;

TEST(Reasoning, OpenedByThePrompt) {
  const AnswerSyntax open = syntax("deepseek_r1", kOpen);
  expect(open, "why\n\nso\n</think>\n\nAnswer\n", {"why\n\nso", "Answer\n"});
  expect(open, "<think>\nwhy</think>Answer", {"why", "Answer"});
  expect(open, "\n<think>why</think>", {"why", ""});
  expect(open, "why </thin", {"why </thin", ""});
  expect(open, "</think>Answer", {"", "Answer"});
  expect(open, "", {"", ""});
  expect(open, "a < b </think> c </think> d", {"a < b ", " c </think> d"});
}

TEST(Reasoning, OpenedByTheAnswer) {
  const AnswerSyntax maybe = syntax("qwen3", kMaybe);
  expect(maybe, "<think>\nwhy\n</think>\n\nAnswer", {"why", "Answer"});
  expect(maybe, "\n <think>why", {"why", ""});
  expect(maybe, "\n Answer <think>no</think>", {"", "\n Answer <think>no</think>"});
  expect(maybe, "<thin", {"", "<thin"});
  expect(maybe, " \n", {"", " \n"});
  expect(maybe, "</think>\n\nAnswer", {"", "Answer"});
  expect(maybe, "why</think>Answer", {"", "why</think>Answer"});
}

TEST(Reasoning, ClosedByThePrompt) {
  expect(syntax("qwen3", kClosed), "Answer", {"", "Answer"});
  expect(syntax("qwen3", kClosed), "<think>why</think>\nAnswer", {"why", "Answer"});
}

TEST(Reasoning, CallsFollowThoughts) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  expect(syntax("qwen3", kOpen, "hermes"), "<tool_call> is no call\n</think>\n\n" + call,
         {"<tool_call> is no call", "", {"f"}});
  expect(syntax("qwen3", kMaybe, "hermes"), call, {"", "", {"f"}});
  // A call may end a thought by itself.
  expect(syntax("glm45", kOpen, "glm45"), "why<tool_call>f\n</tool_call>", {"why", "", {"f"}});
  expect(syntax("minimax_m2", kOpen, "minimax_m2"), "why\n<minimax:tool_call><invoke name=\"f\"></invoke>",
         {"why", "", {"f"}});
  expect(syntax("kimi_k2", kOpen), "why<|tool_calls_section_begin|>x", {"why", "<|tool_calls_section_begin|>x"});
  expect(syntax("qwen3", kOpen), "why\n<tool_call>\n<function=f>", {"why", "<tool_call>\n<function=f>"});
}

TEST(Reasoning, MarksAroundTheAnswer) {
  const AnswerSyntax hunyuan = syntax("hunyuan_a13b", kMaybe);
  expect(hunyuan, "<think>\nwhy\n</think>\n<answer>\nAnswer\n</answer>", {"why", "Answer"});
  expect(hunyuan, "<think>\n\n</think>\n<answer>\nAnswer\nmore", {"", "Answer\nmore"});
  expect(hunyuan, "Answer </answer>", {"", "Answer </answer>"});
  expect(syntax("ernie45", kOpen), "why\n</think>\n\n<response>\nAnswer\n</response>\n", {"why", "Answer"});
  const AnswerSyntax cohere = syntax("cohere_command3", kMaybe);
  expect(cohere, "<|START_THINKING|>why<|END_THINKING|><|START_RESPONSE|>Answer<|END_RESPONSE|>", {"why", "Answer"});
  expect(cohere, "<|START_RESPONSE|>Answer<|END_RESPONSE|>", {"", "Answer"});
}

TEST(Reasoning, EverySyntaxReadsWhatItWrites) {
  for (const ReasoningSyntax* s : reasoning_syntaxes()) {
    if (s->keep || !s->tools.empty()) continue;
    const AnswerSyntax both{.tools = nullptr, .reasoning = s, .thought = kMaybe};
    for (const std::string& begin : s->begin) {
      for (const std::string& end : s->end) expect(both, begin + "why" + end + "Answer", {"why", "Answer"});
    }
  }
  expect(syntax("gemma4", kMaybe), "<|channel>why<channel|>Answer", {"why", "Answer"});
  expect(syntax("gemma4", kMaybe), "<|channel>", {"", ""});
}

TEST(Reasoning, AppendThinkKeepsTheThought) {
  expect(syntax("minimax_m2_append_think", kOpen), "why\n</think>\n\nAnswer", {"", "<think>why\n</think>\n\nAnswer"});
}

TEST(Reasoning, PromptsTellWhereAThoughtBegins) {
  const auto start = [](const char* name, const char* prompt) {
    return thought_start(*reasoning_syntax(name), prompt);
  };
  EXPECT_EQ(start("qwen3", "<|im_start|>assistant\n<think>\n"), kOpen);
  EXPECT_EQ(start("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n"), kClosed);
  EXPECT_EQ(start("qwen3", "<think><|im_end|>\n<|im_start|>assistant\n"), kMaybe);
  EXPECT_EQ(start("deepseek_r1", "<｜Assistant｜>"), kOpen);
  EXPECT_EQ(start("deepseek_v3", "<｜Assistant｜></think>"), kClosed);
  EXPECT_EQ(start("gemma4", "<|turn>model\n<|channel>thought\n<channel|>"), kClosed);
  EXPECT_EQ(start("gemma4", "<|turn>model\n<|channel>thought\n"), kOpen);
  EXPECT_EQ(start("qwen3", ""), kMaybe);
}

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Reasoning, IsFoundInTemplates) {
  const auto name = [](const std::string& source) {
    const ReasoningSyntax* found = find_reasoning_syntax(source);
    return found == nullptr ? std::string() : std::string(found->name);
  };
  EXPECT_EQ(name("{{ messages }}"), "");
  EXPECT_EQ(name("{% if '</think>' in content %}<｜Assistant｜>"), "deepseek_r1");
  EXPECT_EQ(name("<｜Assistant｜><think>\n </think>"), "deepseek_v3");
  EXPECT_EQ(name("<|im_start|><think>\n\n</think>"), "qwen3");
  EXPECT_EQ(name("[gMASK]<sop></think>"), "glm45");
  EXPECT_EQ(name("[THINK]"), "mistral");
  EXPECT_EQ(name(file(std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m/chat_template.jinja")), "");
}

TEST(Reasoning, IsFoundInPublicTemplates) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (goldens == nullptr) GTEST_SKIP() << "SLUICE_GOLDENS is not set: the public chat templates were not checked";
  const std::vector<std::pair<const char*, const char*>> names = {
      {"Apertus-8B-Instruct", "apertus"},
      {"Cohere2MoE", "cohere_command3"},
      {"GLM-4.7-Flash", "glm45"},
      {"HuggingFaceTB-SmolLM3-3B", "qwen3"},
      {"Kimi-K2-Thinking", "kimi_k2"},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3"},
      {"Qwen-Qwen2.5-7B-Instruct", ""},
      {"deepseek-ai-DeepSeek-V3.1", "deepseek_v3"},
      {"google-gemma-4-31B-it", "gemma4"},
      {"meta-llama-Llama-3.3-70B-Instruct", ""},
      {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral"},
      {"moonshotai-Kimi-K2", ""},
      {"stepfun-ai-Step-3.5-Flash", "qwen3"}};
  for (const auto& [model, name] : names) {
    const std::string source = file(std::string(goldens) + "/chat_template/" + model + ".jinja");
    ASSERT_FALSE(source.empty()) << model;
    const ReasoningSyntax* found = find_reasoning_syntax(source);
    EXPECT_EQ(found == nullptr ? "" : found->name, name) << model;
  }
}

TEST(Reasoning, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const ReasoningSyntax* s : reasoning_syntaxes()) {
    EXPECT_TRUE(names.insert(s->name).second) << s->name;
    for (const std::string_view alias : s->aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
  EXPECT_EQ(reasoning_syntax("nothing"), nullptr);
}

TEST(Reasoning, HostileAnswersTakeLinearTime) {
  for (const char* name : {"qwen3", "hunyuan_a13b", "gemma4"}) {
    for (const ThoughtStart start : {kOpen, kMaybe}) {
      for (const std::string& piece : {std::string("<"), std::string("\n"), std::string(" "), std::string("<think>"),
                                       std::string("<answer>\n</answer>\n")}) {
        const std::vector<std::string> pieces(kHostileBytes / piece.size(), piece);
        const auto begin = std::chrono::steady_clock::now();
        parse(syntax(name, start), pieces);
        ThoughtTracker tracker(*reasoning_syntax(name), start);
        for (const std::string& p : pieces) tracker.push(p);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << name << piece;
      }
    }
  }
}

TEST(ThoughtTracker, FollowsMarksInEverySplit) {
  const auto count = [](const char* name, ThoughtStart start, const std::string& text, size_t size) {
    ThoughtTracker tracker(*reasoning_syntax(name), start);
    int inside = 0;
    for (size_t i = 0; i < text.size(); i += size) {
      const bool before = tracker.inside();
      tracker.push(text.substr(i, size));
      inside += before && tracker.inside() ? 1 : 0;
    }
    return inside;
  };
  EXPECT_EQ(count("qwen3", kOpen, "why</think>Answer", 1), 10);
  EXPECT_EQ(count("qwen3", kMaybe, "\n<think>why</think>Answer", 1), 10);
  EXPECT_EQ(count("qwen3", kMaybe, "Answer<think>why</think>", 1), 0);
  EXPECT_EQ(count("qwen3", kMaybe, "\n<think>why</think>Answer", 100), 0);
  EXPECT_EQ(count("kimi_k2", kOpen, "why<|tool_calls_section_begin|>", 1), 30);
}

bool accepts(const std::shared_ptr<const grammar::Grammar>& grammar, const std::string& text) {
  static const auto tokens =
      std::make_shared<const grammar::Vocabulary>(std::vector<std::string>(), grammar::Vocabulary::Options{});
  grammar::Matcher m(grammar, tokens);
  return m.accept(text) && m.complete();
}

std::shared_ptr<const grammar::Grammar> after_thought(const char* name, ThoughtStart start) {
  grammar::Budget budget;
  return grammar::compile("after_thought", after_thought_grammar(name, start, "regex", "[0-9]+"), {.budget = budget});
}

TEST(Reasoning, GrammarsBeginAfterThoughts) {
  const auto open = after_thought("qwen3", kOpen);
  EXPECT_TRUE(accepts(open, "why </thin 5 \n</think>\n\n42"));
  EXPECT_TRUE(accepts(open, "</think>42"));
  EXPECT_FALSE(accepts(open, "42"));
  EXPECT_FALSE(accepts(open, "why</think>no"));
  EXPECT_FALSE(accepts(open, "why</think>4</think>2"));
  const auto maybe = after_thought("qwen3", kMaybe);
  EXPECT_TRUE(accepts(maybe, "42"));
  EXPECT_TRUE(accepts(maybe, "<think>why</think>42"));
  EXPECT_FALSE(accepts(maybe, "why</think>42"));
  const auto closed = after_thought("qwen3", kClosed);
  EXPECT_TRUE(accepts(closed, "42"));
  EXPECT_FALSE(accepts(closed, "<think>why</think>42"));
  const auto hunyuan = after_thought("hunyuan_a13b", kMaybe);
  EXPECT_TRUE(accepts(hunyuan, "<think>why</think>\n<answer>\n42\n</answer>"));
  EXPECT_TRUE(accepts(hunyuan, "<think>why</think>42"));
  // R1 may write the begin itself.
  EXPECT_TRUE(accepts(after_thought("deepseek_r1", kOpen), "<think>why</think>42"));
}

TEST(Reasoning, MarksOfGrammarsMayBeSpecialTokens) {
  // 0: <think>, 1: </think>, 2: "why", 3: "42"
  const std::vector<std::string> tokens = {"", "", "why", "42"};
  const auto special = [](std::string_view text) -> std::optional<TokenId> {
    if (text == "<think>") return 0;
    if (text == "</think>") return 1;
    return std::nullopt;
  };
  grammar::Budget budget;
  const auto grammar = grammar::compile("after_thought", after_thought_grammar("qwen3", kMaybe, "regex", "[0-9]+"),
                                        {.budget = budget, .special = special});
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(tokens, grammar::Vocabulary::Options{.width = 4});
  grammar::Matcher m(grammar, vocabulary);
  uint32_t mask = 0;
  const auto next = [&] { return m.fill_mask({&mask, 1}), mask; };
  EXPECT_EQ(next(), 0b1001u);
  EXPECT_TRUE(m.accept(TokenId{0}));
  EXPECT_EQ(next(), 0b1110u);
  EXPECT_TRUE(m.accept(TokenId{2}));
  EXPECT_TRUE(m.accept(TokenId{1}));
  EXPECT_EQ(next(), 0b1000u);
  EXPECT_TRUE(m.accept(TokenId{3}));
  EXPECT_TRUE(m.complete());
}

}  // namespace
}  // namespace sluice::reasoning_test
