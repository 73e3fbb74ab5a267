// What public chat templates write as calls is what the parser of their syntax reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "chat/tools/testing.h"

namespace sluice::tool_testing::template_calls_test {
namespace {

struct Case {
  std::string_view syntax;
  TemplateCalls calls;
};

class TemplateCallsTest : public ::testing::TestWithParam<Case> {};

TEST_P(TemplateCallsTest, AreRead) { expect_template_calls(GetParam().syntax, GetParam().calls); }

INSTANTIATE_TEST_SUITE_P(
    JsonSyntaxes, TemplateCallsTest,
    ::testing::Values(
        Case{"apertus", {.file = "Apertus-8B-Instruct.jinja", .begin = "<|assistant_start|>", .end = ""}},
        Case{"hermes",
             {.file = "Bielik-11B-v3.0-Instruct.jinja", .begin = "<|im_start|>assistant\n", .end = "<|im_end|>"}},
        Case{"cohere_command3",
             {.file = "Cohere2MoE.jinja", .begin = "<|CHATBOT_TOKEN|>", .end = "<|END_OF_TURN_TOKEN|>"}},
        Case{"cohere_command3",
             {.file = "CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja",
              .begin = "<|END_THINKING|>",
              .end = "<|END_OF_TURN_TOKEN|>"}},
        Case{"gigachat3",
             {.file = "GigaChat3-10B-A1.8B.jinja",
              .begin = "assistant<|role_sep|>\n",
              .end = "<|message_sep|>",
              .calls = 1}},
        Case{"kimi_k2", {.file = "moonshotai-Kimi-K2.jinja", .begin = "assistant<|im_middle|>", .end = "<|im_end|>"}},
        Case{"hermes",
             {.file = "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
              .begin = "<|im_start|>assistant\n",
              .end = "<|im_end|>"}},
        Case{"hermes",
             {.file = "Qwen-Qwen2.5-7B-Instruct.jinja", .begin = "<|im_start|>assistant\n", .end = "<|im_end|>"}},
        Case{"hermes", {.file = "Reka-Edge.jinja", .begin = "assistant: ", .end = "<sep>"}},
        Case{"deepseek_v3",
             {.file = "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
              .begin = "<｜Assistant｜>",
              .end = "<｜end▁of▁sentence｜>",
              .strings = true}},
        Case{"deepseek_v31",
             {.file = "deepseek-ai-DeepSeek-V3.1.jinja", .begin = "</think>", .end = "<｜end▁of▁sentence｜>"}},
        Case{"functionary_v3.1",
             {.file = "meetkai-functionary-medium-v3.1.jinja", .begin = "<|end_header_id|>\n\n", .end = "<|eom_id|>"}},
        Case{"llama3_json",
             {.file = "meta-llama-Llama-3.1-8B-Instruct.jinja",
              .begin = "<|end_header_id|>\n\n",
              .end = "<|eot_id|>",
              .calls = 1}},
        Case{"llama3_json",
             {.file = "meta-llama-Llama-3.3-70B-Instruct.jinja",
              .begin = "<|end_header_id|>\n\n",
              .end = "<|eot_id|>",
              .calls = 1}},
        Case{"mistral", {.file = "mistralai-Ministral-3-14B-Reasoning-2512.jinja", .begin = "[/INST]", .end = "<EOS>"}},
        Case{"mistral", {.file = "unsloth-mistral-Devstral-Small-2507.jinja", .begin = "[/INST]", .end = "<EOS>"}}),
    [](const auto& info) {
      std::string name = info.param.calls.file;
      std::ranges::replace_if(
          name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
      return name;
    });

}  // namespace
}  // namespace sluice::tool_testing::template_calls_test
