// Templates that --chat-template knows by name.
#include "chat/builtin_templates.h"

#include <gtest/gtest.h>

#include "chat/chat_template.h"
#include "sluice/error.h"

namespace sluice::builtin_templates_test {
namespace {

struct Turn {
  const char* role;
  const char* content;
};

std::string render(const std::string& name, std::vector<Turn> turns, bool generation = true) {
  ChatInput input;
  input.messages = Json::array();
  for (const auto& [role, content] : turns) input.messages.push_back({{"role", role}, {"content", content}});
  input.add_generation_prompt = generation;
  return ChatTemplate::from_source(builtin_template(name).value(), Json::object()).render(input);
}

const std::vector<Turn> kTalk = {{"system", "S"}, {"user", "Hi"}, {"assistant", "Yo"}, {"user", "Bye"}};

TEST(BuiltinTemplates, Texts) {
  const std::pair<const char*, const char*> kTexts[] = {
      {"chatml",
       "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
       "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
      {"llama2", "[INST] S\nHi [/INST]Yo</s>[INST] Bye [/INST]"},
      {"llama2-sys", "[INST] <<SYS>>\nS\n<</SYS>>\n\nHi [/INST]Yo</s>[INST] Bye [/INST]"},
      {"llama2-sys-bos", "[INST] <<SYS>>\nS\n<</SYS>>\n\nHi [/INST]Yo</s><s>[INST] Bye [/INST]"},
      {"llama3",
       "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_"
       "id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
       "Bye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"mistral-v1", " [INST] S\n\nHi [/INST] Yo</s> [INST] Bye [/INST]"},
      {"mistral-v3", "[INST] S\n\nHi[/INST] Yo</s>[INST] Bye[/INST]"},
      {"mistral-v3-tekken", "[INST]S\n\nHi[/INST]Yo</s>[INST]Bye[/INST]"},
      {"mistral-v7", "[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] Hi[/INST] Yo</s>[INST] Bye[/INST]"},
      {"mistral-v7-tekken", "[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST]Yo</s>[INST]Bye[/INST]"},
      {"gemma",
       "<start_of_turn>user\nS\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n"
       "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"},
      {"orion", "Human: S\n\nHi\n\nAssistant: </s>Yo</s>Human: Bye\n\nAssistant: </s>"},
      {"monarch", "system\nS</s>\n<s>user\nHi</s>\n<s>assistant\nYo</s>\n<s>user\nBye</s>\n<s>assistant\n"},
      {"openchat",
       "S<|end_of_turn|>GPT4 Correct User: Hi<|end_of_turn|>GPT4 Correct Assistant: Yo<|end_of_turn|>"
       "GPT4 Correct User: Bye<|end_of_turn|>GPT4 Correct Assistant:"},
      {"vicuna", "S\n\nUSER: Hi\nASSISTANT: Yo</s>\nUSER: Bye\nASSISTANT:"},
      {"deepseek3", "S\n\n<｜User｜>Hi<｜Assistant｜>Yo<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜>"},
      {"rwkv-world", "System: S\n\nUser: Hi\n\nAssistant: Yo\n\nUser: Bye\n\nAssistant:"},
      {"bailing2",
       "<role>SYSTEM</role>S<|role_end|><role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>Yo<|role_end|>"
       "<role>HUMAN</role>Bye<|role_end|><role>ASSISTANT</role>"},
      {"kimi-k2",
       "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
       "<|im_assistant|>assistant<|im_middle|>Yo<|im_end|><|im_user|>user<|im_middle|>Bye<|im_end|>"
       "<|im_assistant|>assistant<|im_middle|>"},
      {"gpt-oss",
       "<|start|>system<|message|>S<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|message|>Yo<|return|>"
       "<|start|>user<|message|>Bye<|end|><|start|>assistant"},
      {"gigachat",
       "<s>S<|message_sep|>user<|role_sep|>Hi<|message_sep|>available functions<|role_sep|>[]<|message_sep|>"
       "assistant<|role_sep|>Yo<|message_sep|>user<|role_sep|>Bye<|message_sep|>available functions<|role_sep|>[]"
       "<|message_sep|>assistant<|role_sep|>"},
      {"smolvlm",
       "<|im_start|>S\n\nUser: Hi<end_of_utterance>\nAssistant: Yo<end_of_utterance>\nUser: Bye<end_of_utterance>\n"
       "Assistant:"},
      {"minicpm", "S<用户>Hi<AI>Yo<用户>Bye<AI>"},
  };
  for (const auto& [name, text] : kTexts) EXPECT_EQ(render(name, kTalk), text) << name;
  EXPECT_EQ(render("llama2-sys-strip", {{"user", " Hi "}}), "[INST] Hi [/INST]");
  EXPECT_EQ(render("bailing2", {{"user", "Hi"}}, false),
            "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>Hi<|role_end|>");
  EXPECT_EQ(render("pangu-embedded", {{"user", "Hi"}}, false), "[unused9]系统：[unused10][unused9]用户：Hi[unused10]");
}

TEST(BuiltinTemplates, AllRenderEveryMessage) {
  std::string names = builtin_template_names();
  int count = 0;
  for (size_t at = 0; at < names.size(); ++count) {
    const size_t end = std::min(names.find(", ", at), names.size());
    const std::string name = names.substr(at, end - at);
    const std::string text = render(name, kTalk, false);
    for (const char* content : {"Hi", "Yo", "Bye"}) EXPECT_NE(text.find(content), std::string::npos) << name;
    EXPECT_TRUE(render(name, kTalk).starts_with(text)) << name;
    at = end + 2;
  }
  EXPECT_EQ(count, 55);
}

TEST(BuiltinTemplates, NamesAreOptions) {
  const auto chat = ChatTemplate::from_config(R"({"bos_token":"<s>"})", "config", "chatml");
  ASSERT_TRUE(chat);
  EXPECT_TRUE(chat->lacks_first_tokens());
  EXPECT_EQ(chat->source(), builtin_template("chatml"));
  EXPECT_FALSE(ChatTemplate::from_config("{}", "config", "{{ 1 }}")->lacks_first_tokens());
  try {
    ChatTemplate::from_config("{}", "config", "chatlm");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kNotFound);
    EXPECT_NE(std::string(e.what()).find("there is no file 'chatlm' (expected a Jinja file, a template in one line, or "
                                         "one of: bailing, "),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace sluice::builtin_templates_test
