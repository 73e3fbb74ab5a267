// Chat templates: folders, special tokens, guarded variables, and the goldens of 28 public templates.
#include "chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// 2026-01-15 12:00 local time, the day the goldens were made for.
std::chrono::system_clock::time_point golden_time() {
  std::tm day{};
  day.tm_year = 2026 - 1900;
  day.tm_mday = 15;
  day.tm_hour = 12;
  day.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&day));
}

// The arguments of a golden row as the input of a chat template.
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
}  // namespace sluice
