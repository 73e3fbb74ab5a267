// Each format is a few pieces of Jinja around a loop over the messages, in which `c` is the text of message `m`.
#include "chat/builtin_templates.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice {
namespace {

struct Format {
  std::string_view name;
  std::string_view each;        // for a message
  std::string_view answer;      // what the model's answer begins after, as the inside of a Jinja string
  std::string_view begin = "";  // before the messages
};

// The system's text comes before the first message of the user, and turns of the user begin with [INST].
constexpr std::string_view kMistral =
    "{% if not s.inside %}{{ lead + '[INST]' + trail }}{% set s.inside = true %}{% endif %}"
    "{% if m.role == 'system' %}{{ c + '\\n\\n' }}{% elif m.role == 'user' %}{{ c + lead + '[/INST]' }}"
    "{% else %}{{ trail + (c | trim if trims else c) + '</s>' }}{% set s.inside = false %}{% endif %}";
constexpr std::string_view kMistral7 =
    "{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + trail + c + '[/SYSTEM_PROMPT]' }}"
    "{% elif m.role == 'user' %}{{ '[INST]' + trail + c + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ trail + c + '</s>' }}{% endif %}";
constexpr std::string_view kLlama2 =
    "{% if trims %}{% set c = c | trim %}{% endif %}"
    "{% if not s.inside %}{{ again }}{% set s.inside = true %}{% endif %}"
    "{% if m.role == 'system' %}{{ '<<SYS>>\\n' + c + '\\n<</SYS>>\\n\\n' if marks else c + '\\n' }}"
    "{% elif m.role == 'user' %}{{ c + ' [/INST]' }}"
    "{% else %}{{ c + '</s>' }}{% set s.inside = false %}{% endif %}";
constexpr std::string_view kGranite4 =
    "{{ '<|start_of_role|>' + m.role | replace('assistant_tool_call', 'assistant') + '<|end_of_role|>' }}"
    "{% if m.role == 'assistant_tool_call' %}{{ '<|tool_call|>' }}{% endif %}{{ c + '<|end_of_text|>\\n' }}";
constexpr std::string_view kGranite4Answer = "<|start_of_role|>assistant<|end_of_role|>";
constexpr std::string_view kBailing =
    "{{ '<role>' + ('HUMAN' if m.role == 'user' else m.role | upper) + '</role>' + c }}";
constexpr std::string_view kHunyuanVision =
    "{% if m.role == 'system' and loop.first %}{{ c + '<｜hy_place▁holder▁no▁3｜>' }}"
    "{% elif m.role == 'user' %}{{ c + '<｜hy_User｜>' }}"
    "{% elif m.role == 'assistant' %}{{ c + '<｜hy_Assistant｜>' }}{% endif %}";

constexpr Format kFormats[] = {
    {"bailing", kBailing, "<role>ASSISTANT</role>"},
    {"bailing-think", kBailing, "<role>ASSISTANT</role><think>"},
    {"bailing2", "{{ '<role>' + ('HUMAN' if m.role == 'user' else m.role | upper) + '</role>' + c + '<|role_end|>' }}",
     "<role>ASSISTANT</role>",
     "{% if messages[0].role != 'system' %}"
     "{{ '<role>SYSTEM</role>detailed thinking off<|role_end|>' }}{% endif %}"},
    {"chatglm3", "{{ '<|' + m.role + '|>\\n ' + c }}", "<|assistant|>", "{{ '[gMASK]sop' }}"},
    {"chatglm4", "{{ '<|' + m.role + '|>\\n' + c }}", "<|assistant|>\\n", "{{ '[gMASK]<sop>' }}"},
    {"chatml", "{{ '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>\\n' }}", "<|im_start|>assistant\\n"},
    {"command-r",
     "{% if m.role == 'system' %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + c | trim + '<|END_OF_TURN_TOKEN|>' }}"
     "{% elif m.role == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + c | trim + '<|END_OF_TURN_TOKEN|>' }}"
     "{% elif m.role == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + c | trim + "
     "'<|END_OF_TURN_TOKEN|>' }}{% endif %}",
     "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"deepseek",
     "{% if m.role == 'system' %}{{ c }}"
     "{% elif m.role == 'user' %}{{ '### Instruction:\\n' + c + '\\n' }}"
     "{% elif m.role == 'assistant' %}{{ '### Response:\\n' + c + '\\n<|EOT|>\\n' }}{% endif %}",
     "### Response:\\n"},
    {"deepseek-ocr", "{{ c }}", ""},
    {"deepseek2",
     "{% if m.role == 'system' %}{{ c + '\\n\\n' }}"
     "{% elif m.role == 'user' %}{{ 'User: ' + c + '\\n\\n' }}"
     "{% elif m.role == 'assistant' %}{{ 'Assistant: ' + c + '<｜end▁of▁sentence｜>' }}{% endif %}",
     "Assistant:"},
    {"deepseek3",
     "{% if m.role == 'system' %}{{ c + '\\n\\n' }}"
     "{% elif m.role == 'user' %}{{ '<｜User｜>' + c }}"
     "{% elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + c + '<｜end▁of▁sentence｜>' }}{% endif %}",
     "<｜Assistant｜>"},
    {"exaone-moe", "{{ '<|' + m.role + '|>\\n' + c | trim + '<|endofturn|>\\n' }}", "<|assistant|>\\n"},
    {"exaone3",
     "{% if m.role == 'system' %}{{ '[|system|]' + c | trim + '[|endofturn|]\\n' }}"
     "{% elif m.role == 'user' %}{{ '[|user|]' + c | trim + '\\n' }}"
     "{% elif m.role == 'assistant' %}{{ '[|assistant|]' + c | trim + '[|endofturn|]\\n' }}{% endif %}",
     "[|assistant|]"},
    {"exaone4", "{{ '[|' + m.role + '|]' + c | trim + ('\\n' if m.role == 'user' else '[|endofturn|]\\n') }}",
     "[|assistant|]"},
    {"falcon3", "{{ '<|' + m.role + '|>\\n' + c + '\\n' }}", "<|assistant|>\\n"},
    {"gemma",
     "{% if m.role == 'system' %}{% set s.system = s.system + c | trim %}{% else %}"
     "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
     "{% if s.system and m.role != 'assistant' %}{{ s.system + '\\n\\n' }}{% set s.system = '' %}{% endif %}"
     "{{ c | trim + '<end_of_turn>\\n' }}{% endif %}",
     "<start_of_turn>model\\n", "{% set s = namespace(system='') %}"},
    {"gigachat",
     "{% if loop.first %}{{ '<s>' }}{% endif %}"
     "{% if m.role == 'system' and loop.first %}{{ c + '<|message_sep|>' }}"
     "{% elif m.role == 'user' %}"
     "{{ 'user<|role_sep|>' + c + '<|message_sep|>available functions<|role_sep|>[]<|message_sep|>' }}"
     "{% elif m.role == 'assistant' %}{{ 'assistant<|role_sep|>' + c + '<|message_sep|>' }}{% endif %}",
     "assistant<|role_sep|>"},
    {"glmedge", "{{ '<|' + m.role + '|>\\n' + c }}", "<|assistant|>"},
    {"gpt-oss",
     "{{ '<|start|>' + m.role + '<|message|>' + c + ('<|return|>' if m.role == 'assistant' else '<|end|>') }}",
     "<|start|>assistant"},
    {"granite",
     "{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' }}"
     "{% if m.role == 'assistant_tool_call' %}{{ '<|tool_call|>' }}{% endif %}{{ c + '<|end_of_text|>\\n' }}",
     kGranite4Answer},
    {"granite-4.0", kGranite4, kGranite4Answer},
    {"granite-4.1", kGranite4, kGranite4Answer},
    {"grok-2",
     "{% if m.role == 'system' %}{{ 'System: ' + c | trim + '<|separator|>\\n\\n' }}"
     "{% elif m.role == 'user' %}{{ 'Human: ' + c | trim + '<|separator|>\\n\\n' }}"
     "{% elif m.role == 'assistant' %}{{ 'Assistant: ' + c + '<|separator|>\\n\\n' }}{% endif %}",
     "Assistant:"},
    {"hunyuan-dense",
     "{% if m.role == 'system' and loop.first %}{{ c + '<｜hy_place▁holder▁no▁3｜>' }}"
     "{% elif m.role == 'user' %}{{ '<｜hy_User｜>' + c + '<｜hy_Assistant｜>' }}"
     "{% elif m.role == 'assistant' %}{{ '<｜hy_Assistant｜>' + c + '<｜hy_place▁holder▁no▁2｜>' }}{% endif %}",
     ""},
    {"hunyuan-moe",
     "{% if m.role == 'assistant' %}{{ c + '<|eos|>' }}{% else %}"
     "{{ '<|startoftext|>' + c + ('<|extra_4|>' if m.role == 'system' else '<|extra_0|>') }}{% endif %}",
     ""},
    {"hunyuan-ocr", kHunyuanVision, "", "{{ '<｜hy_begin▁of▁sentence｜>' }}"},
    {"hunyuan-vl", kHunyuanVision, "", "{{ '<｜hy_begin▁of▁sentence｜>' }}"},
    {"kimi-k2",
     "{{ '<|im_' + ('system' if m.role == 'tool' else m.role) + '|>' + m.role + '<|im_middle|>' + c + '<|im_end|>' }}",
     "<|im_assistant|>assistant<|im_middle|>"},
    {"llama2", kLlama2, "",
     "{% set s = namespace(inside=true) %}{% set again = '[INST] ' %}{% set marks = false %}{% set trims = false %}"
     "{{ '[INST] ' }}"},
    {"llama2-sys", kLlama2, "",
     "{% set s = namespace(inside=true) %}{% set again = '[INST] ' %}{% set marks = true %}{% set trims = false %}"
     "{{ '[INST] ' }}"},
    {"llama2-sys-bos", kLlama2, "",
     "{% set s = namespace(inside=true) %}{% set again = '<s>[INST] ' %}{% set marks = true %}{% set trims = false %}"
     "{{ '[INST] ' }}"},
    {"llama2-sys-strip", kLlama2, "",
     "{% set s = namespace(inside=true) %}{% set again = '[INST] ' %}{% set marks = true %}{% set trims = true %}"
     "{{ '[INST] ' }}"},
    {"llama3", "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + c | trim + '<|eot_id|>' }}",
     "<|start_header_id|>assistant<|end_header_id|>\\n\\n"},
    {"llama4", "{{ '<|header_start|>' + m.role + '<|header_end|>\\n\\n' + c | trim + '<|eot|>' }}",
     "<|header_start|>assistant<|header_end|>\\n\\n"},
    {"megrez", "{{ '<|role_start|>' + m.role + '<|role_end|>' + c + '<|turn_end|>' }}",
     "<|role_start|>assistant<|role_end|>"},
    {"minicpm", "{{ '<用户>' + c | trim + '<AI>' if m.role == 'user' else c | trim }}", ""},
    {"mistral-v1", kMistral, "",
     "{% set s = namespace(inside=false) %}{% set lead = ' ' %}{% set trail = ' ' %}{% set trims = false %}"},
    {"mistral-v3", kMistral, "",
     "{% set s = namespace(inside=false) %}{% set lead = '' %}{% set trail = ' ' %}{% set trims = true %}"},
    {"mistral-v3-tekken", kMistral, "",
     "{% set s = namespace(inside=false) %}{% set lead = '' %}{% set trail = '' %}{% set trims = false %}"},
    {"mistral-v7", kMistral7, "", "{% set trail = ' ' %}"},
    {"mistral-v7-tekken", kMistral7, "", "{% set trail = '' %}"},
    {"monarch", "{{ ('' if loop.first else '<s>') + m.role + '\\n' + c + '</s>\\n' }}", "<s>assistant\\n"},
    {"openchat",
     "{{ c + '<|end_of_turn|>' if m.role == 'system' else "
     "'GPT4 Correct ' + m.role | capitalize + ': ' + c + '<|end_of_turn|>' }}",
     "GPT4 Correct Assistant:"},
    {"orion",
     "{% if m.role == 'system' %}{% set s.system = s.system + c %}{% elif m.role == 'user' %}"
     "{{ 'Human: ' + (s.system + '\\n\\n' if s.system else '') + c + '\\n\\nAssistant: </s>' }}"
     "{% set s.system = '' %}{% else %}{{ c + '</s>' }}{% endif %}",
     "", "{% set s = namespace(system='') %}"},
    {"pangu-embedded",
     "{% set names = {'system': '系统', 'user': '用户', 'assistant': '助手', 'tool': '工具', 'function': '方法'} %}"
     "{% if loop.first and m.role != 'system' %}{{ '[unused9]系统：[unused10]' }}{% endif %}"
     "{% if m.role in names %}{{ '[unused9]' + names[m.role] + '：' + c + '[unused10]' }}{% endif %}",
     "[unused9]助手："},
    {"phi3", "{{ '<|' + m.role + '|>\\n' + c + '<|end|>\\n' }}", "<|assistant|>\\n"},
    {"phi4", "{{ '<|im_start|>' + m.role + '<|im_sep|>' + c + '<|im_end|>' }}", "<|im_start|>assistant<|im_sep|>"},
    {"rwkv-world",
     "{% if m.role == 'system' %}{{ 'System: ' + c | trim + '\\n\\n' }}"
     "{% elif m.role == 'user' %}{{ 'User: ' + c | trim + '\\n\\n' + ('Assistant:' if loop.last and "
     "add_generation_prompt else '') }}"
     "{% elif m.role == 'assistant' %}{{ 'Assistant: ' + c | trim + '\\n\\n' }}{% endif %}",
     ""},
    {"seed_oss", "{{ '<seed:bos>' + m.role + '\\n' + (c | trim if m.role == 'assistant' else c) + '<seed:eos>' }}",
     "<seed:bos>assistant\\n"},
    {"smolvlm",
     "{{ c + '\\n\\n' if m.role == 'system' else "
     "('User: ' if m.role == 'user' else 'Assistant: ') + c + '<end_of_utterance>\\n' }}",
     "Assistant:", "{{ '<|im_start|>' }}"},
    {"solar-open", "{{ '<|begin|>' + m.role + '<|content|>' + c + '<|end|>' }}", "<|begin|>assistant"},
    {"vicuna",
     "{% if m.role == 'system' %}{{ c + '\\n\\n' }}"
     "{% elif m.role == 'user' %}{{ 'USER: ' + c + '\\n' }}"
     "{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + c + '</s>\\n' }}{% endif %}",
     "ASSISTANT:"},
    {"vicuna-orca",
     "{% if m.role == 'system' %}{{ 'SYSTEM: ' + c + '\\n' }}"
     "{% elif m.role == 'user' %}{{ 'USER: ' + c + '\\n' }}"
     "{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + c + '</s>\\n' }}{% endif %}",
     "ASSISTANT:"},
    {"yandex",
     "{% if m.role == 'user' %}{{ ' Пользователь: ' + c + '\\n\\n' }}"
     "{% elif m.role == 'assistant' %}{{ ' Ассистент: ' + c + '\\n\\n' }}{% endif %}",
     " Ассистент:[SEP]"},
    {"zephyr", "{{ '<|' + m.role + '|>\\n' + c + '<|endoftext|>\\n' }}", "<|assistant|>\\n"},
};
static_assert(std::ranges::is_sorted(kFormats, {}, &Format::name));

}  // namespace

std::optional<std::string> builtin_template(std::string_view name) {
  const auto* const format = std::ranges::find(kFormats, name, &Format::name);
  if (format == std::end(kFormats)) return std::nullopt;
  std::string text = fmt::format("{}{{% for m in messages %}}{{% set c = m.content or '' %}}{}{{% endfor %}}",
                                 format->begin, format->each);
  if (!format->answer.empty()) {
    text += fmt::format("{{% if add_generation_prompt %}}{{{{ '{}' }}}}{{% endif %}}", format->answer);
  }
  return text;
}

std::string builtin_template_names() {
  std::string names;
  for (const Format& format : kFormats) names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  return names;
}

}  // namespace sluice
