// Tests of chat templates: folders, special tokens, protected variables, and goldens of 28 public templates.
#include "chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "sluice/error.h"

namespace sluice::chat_template_test {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// 2026-01-15 12:00 local time, the time that the goldens were made for.
std::chrono::system_clock::time_point golden_time() {
  std::tm day{};
  day.tm_year = 2026 - 1900;
  day.tm_mday = 15;
  day.tm_hour = 12;
  day.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&day));
}

// Converts the arguments of a golden row to the input of a chat template.
ChatInput input_of(const Json& args) {
  ChatInput input;
  input.kwargs = Json::object();
  for (const auto& [key, value] : args.items()) {
    if (key == "messages") {
      input.messages = value;
    } else if (key == "tools") {
      input.tools = value;
    } else if (key == "documents") {
      input.documents = value;
    } else if (key == "add_generation_prompt") {
      input.add_generation_prompt = value.get<bool>();
    } else if (!key.ends_with("_token")) {
      input.kwargs[key] = value;
    }
  }
  return input;
}

Json special_tokens_of(const Json& args) {
  Json tokens = Json::object();
  for (const auto& [key, value] : args.items()) {
    if (key.ends_with("_token")) tokens[key] = value;
  }
  return tokens;
}

// A folder of files that is deleted with the test.
class ChatTemplateFolder : public ::testing::Test {
 protected:
  ChatTemplateFolder() : path_(fs::temp_directory_path() / fs::path("sluice_chat_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~ChatTemplateFolder() override { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  std::optional<ChatTemplate> open() const { return ChatTemplate::from_folder(path_.string()); }
  std::string error_of_open() const {
    try {
      open();
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kCorruptFile);
      return e.what();
    }
  }

  const fs::path path_;
};

ChatInput user_says(const std::string& text) {
  ChatInput input;
  input.messages = {{{"role", "user"}, {"content", text}}};
  return input;
}

const Json kTool = {{"type", "function"}, {"function", {{"name", "now"}, {"parameters", Json::object()}}}};

TEST_F(ChatTemplateFolder, WithoutTemplateThereIsNone) {
  EXPECT_FALSE(open());
  write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_FALSE(open());
}

TEST_F(ChatTemplateFolder, TakesTheTemplateAndTokensOfTheConfig) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}",
            "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "add_bos_token": true, "pad_token": null})");
  write("special_tokens_map.json", R"({"eos_token": "<other>", "pad_token": "<pad>"})");
  EXPECT_EQ(open()->render(user_says("hi")), "<s>hi</s><pad>");
}

TEST_F(ChatTemplateFolder, AFileOfItsOwnComesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  write("chat_template.jinja", "file {{ messages[0].role }}\n");
  EXPECT_EQ(open()->render(user_says("hi")), "file user");
  write("given.jinja", "given");
  EXPECT_EQ(ChatTemplate::from_folder(path_.string(), (path_ / "given.jinja").string())->render(user_says("hi")),
            "given");
}

TEST_F(ChatTemplateFolder, TheToolTemplateServesRequestsWithTools) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "{{ tools|length }} tools"}]})");
  ChatInput input = user_says("hi");
  EXPECT_EQ(open()->render(input), "plain");
  input.tools = Json::array();
  EXPECT_EQ(open()->render(input), "plain");
  input.tools = {kTool};
  EXPECT_EQ(open()->render(input), "1 tools");
  write("additional_chat_templates/tool_use.jinja", "additional");
  EXPECT_EQ(open()->render(input), "additional");
}

TEST_F(ChatTemplateFolder, WrongFilesAreNamed) {
  write("chat_template.jinja", "a\n{% if %}");
  EXPECT_THAT(error_of_open(), HasSubstr("chat_template.jinja: chat template, line 2"));
  write("chat_template.jinja", "\xFF\xFE");
  EXPECT_THAT(error_of_open(), HasSubstr("not UTF-8"));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(error_of_open(), HasSubstr("tokenizer_config.json: chat_template must be"));
}

TEST(ChatTemplate, KwargsAreVariables) {
  const ChatTemplate chat = ChatTemplate::from_source("{{ enable_thinking }}{{ deep.x }}", Json::object());
  ChatInput input = user_says("hi");
  input.kwargs = {{"enable_thinking", false}, {"deep", {{"x", 1}}}};
  EXPECT_EQ(chat.render(input), "False1");
}

TEST(ChatTemplate, KwargsOverrideNothing) {
  const ChatTemplate chat = ChatTemplate::from_source("x", {{"bos_token", "<s>"}});
  std::vector<Json> refused = {
      Json::array(), "text", {{"a", {{"chat_template", "x"}}}}, {{"a", {{{"chat_template", "x"}}}}}};
  for (const char* key : {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize",
                          "bos_token", "eos_token", "continue_final_message", "strftime_now"}) {
    refused.push_back({{key, 1}});
  }
  for (const Json& kwargs : refused) {
    ChatInput input = user_says("hi");
    input.kwargs = kwargs;
    try {
      chat.render(input);
      ADD_FAILURE() << kwargs;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      EXPECT_EQ(e.param, "chat_template_kwargs") << kwargs;
    }
  }
}

TEST(ChatTemplate, TellsTheTimeGiven) {
  const ChatTemplate chat = ChatTemplate::from_source("{{ strftime_now('%d %b %Y') }}", Json::object());
  EXPECT_EQ(chat.render(user_says("hi"), golden_time()), "15 Jan 2026");
}

TEST(ChatTemplate, RendersTheDemoModel) {
  const auto chat = ChatTemplate::from_folder(SLUICE_SOURCE_DIR "/models/minnow-6m");
  ASSERT_TRUE(chat);
  ChatInput input;
  input.messages = parse_json(R"([
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"type": "function", "function": {"name": "now", "arguments": {"zone": "é <UTC>"}}},
      {"type": "function", "function": {"name": "now", "arguments": "{}"}}]},
    {"role": "tool", "content": "12:00"}])");
  input.tools = {kTool};
  EXPECT_EQ(
      chat->render(input),
      "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call these functions:\n<tools>\n"
      "{\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": {}}}\n"
      "</tools>\n\nTo call one, write a JSON object inside <tool_call></tool_call> tags.<|im_end|>\n"
      "<|im_start|>user\nWhat time is it?<|im_end|>\n"
      "<|im_start|>assistant\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"é <UTC>\"}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
  input = user_says("hi");
  input.add_generation_prompt = false;
  EXPECT_EQ(chat->render(input), "<|im_start|>user\nhi<|im_end|>\n");
  input.messages.push_back({{"role", "system"}, {"content", "late"}});
  EXPECT_THROW(chat->render(input), Error);
}

// The texts are those of transformers 5.24 (apply_chat_template with continue_final_message).
TEST(ChatTemplate, GoesOnWithTheLastMessage) {
  const auto demo = ChatTemplate::from_folder(SLUICE_SOURCE_DIR "/models/minnow-6m");
  ChatInput input = user_says("hi");
  input.add_generation_prompt = false;
  input.continue_final_message = true;
  EXPECT_EQ(demo->render(input), "<|im_start|>user\nhi");
  input.messages.push_back({{"role", "assistant"}, {"content", "I am "}});
  EXPECT_EQ(demo->render(input), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI am ");
  // A message that is part of another one, and a template that trims.
  input.messages[0]["content"] = "I am";
  const auto render = [&](const char* source) { return ChatTemplate::from_source(source, Json()).render(input); };
  EXPECT_EQ(render("{% for m in messages %}[{{ m.content }}]{% endfor %}"), "[I am][I am ");
  EXPECT_EQ(render("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"), "[I am][I am");
  EXPECT_EQ(render("{{ messages[-1].content[:4] + messages[-1].content }}"), "I amI am ");

  const auto error = [&](const char* source) -> std::string {
    try {
      return render(source);
    } catch (const Error& e) {
      EXPECT_EQ(e.param, "continue_final_message");
      return e.what();
    }
  };
  EXPECT_EQ(error("{{ messages[0].content }}"),
            "Invalid 'continue_final_message': the chat template does not show the last message.");
  input.add_generation_prompt = true;
  EXPECT_EQ(error("x"), "Invalid 'continue_final_message': it cannot be true together with 'add_generation_prompt'.");
  input.add_generation_prompt = false;
  input.messages.back()["content"] = nullptr;
  EXPECT_EQ(error("x"), "Invalid 'continue_final_message': the last message must have a text.");
}

TEST(ChatTemplateGoldens, RenderByteForByte) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (!goldens) GTEST_SKIP() << "SLUICE_GOLDENS is not set: the public chat templates were not checked";
  int templates = 0, rows = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(goldens) / "chat_template")) {
    if (entry.path().extension() != ".jinja") continue;
    ++templates;
    const std::string source = read_text(entry.path());
    std::ifstream vectors(fs::path(entry.path()).replace_extension(".vectors.jsonl"));
    ASSERT_TRUE(vectors) << entry.path();
    for (std::string line; std::getline(vectors, line);) {
      ++rows;
      const Json row = parse_json(line);
      SCOPED_TRACE(entry.path().stem().string() + " " + row["case"].get<std::string>());
      const ChatTemplate chat = ChatTemplate::from_source(source, special_tokens_of(row["args"]));
      std::string text, error;
      try {
        text = chat.render(input_of(row["args"]), golden_time());
      } catch (const Error& e) {
        error = e.what();
      }
      if (row.contains("error")) {
        EXPECT_NE(error, "") << "should fail with " << row["error"];
      } else {
        EXPECT_EQ(error, "");
        EXPECT_EQ(text, row["text"].get<std::string>());
      }
    }
  }
  EXPECT_EQ(templates, 28);
  EXPECT_EQ(rows, 28 * 13);
}

}  // namespace
}  // namespace sluice::chat_template_test
