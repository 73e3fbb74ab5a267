// Texts and pairs of texts on their way to the engine, and scores on their way back.
#include "server/openai/pooling_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <iterator>
#include <numeric>

#include "server/rows.h"
#include "server/text_object.h"

namespace sluice::server {
namespace {

static_assert(std::endian::native == std::endian::little, "vectors are sent as they lie in memory");

using Type = Parameter::Type;

void set_truncate(Fields& f, const Json& v) {
  f.of<PoolingFields>().truncate = v.get<int>();
  if (v == 0)
    throw invalid_value("truncate_prompt_tokens",
                        "Invalid 'truncate_prompt_tokens': expected -1 or at least 1, but got 0.");
}

void set_truncation_side(Fields& f, const Json& v) {
  constexpr std::string_view kSides[] = {"left", "right"};
  const auto& side = v.get_ref<const std::string&>();
  expect_one_of(side, "truncation_side", kSides);
  f.of<PoolingFields>().keep_end = side == "left";
}

constexpr auto kTruncation = std::to_array<Parameter>({
    {.name = "truncate_prompt_tokens",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "none: longer texts are errors",
     .help = "cut longer texts to this many tokens; -1: the model's limit",
     .set = set_truncate},
    {.name = "truncation_side",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "right",
     .help = "which end of a longer text is cut off: left or right; pairs of texts are cut at the right",
     .set = set_truncation_side},
});

constexpr Parameter kPairs[] = {refused("max_tokens_per_query", "[0]", "Use 'truncate_prompt_tokens'"),
                                refused("max_tokens_per_doc", "[0]", "Use 'truncate_prompt_tokens'"),
                                refused("instruction", R"([""])")};

void set_encoding_format(Fields& f, const Json& v) {
  const auto& name = v.get_ref<const std::string&>();
  constexpr std::string_view kFormats[] = {"float", "base64"};
  expect_one_of(name, "encoding_format", kFormats);
  f.of<PoolingFields>().base64 = name == "base64";
}

constexpr auto kInput = std::to_array<Parameter>({
    {.name = "input",
     .type = Type::kAny,
     .max_bytes = kTextsBytes,
     .fallback = "required, unless there are messages",
     .help = "a string, an array of token ids, or an array of such inputs, at most 2048; also llama.cpp's objects with "
             "prompt_string or content, in place of a string",
     .set = assign<&PoolingFields::input>},
    {.name = "encoding_format",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "float",
     .help = "float: numbers; base64: fp32, little endian",
     .set = set_encoding_format},
    refused("embed_dtype", R"(["float32"])"),
    refused("endianness", R"(["native","little"])"),
    refused("padding", R"(["do_not_pad"])"),
});

constexpr Parameter kActivation[] = {{.name = "use_activation",
                                      .type = Type::kBoolean,
                                      .fallback = "true",
                                      .help = "false: scores are logits, and vectors are not normalized",
                                      .set = assign<&PoolingFields::use_activation>}};

std::string base64_of(std::span<const float> values) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t j) { return j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u; };
    const uint32_t three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t j = 0; j < 4; ++j) {
      const bool padding = i + j > bytes.size();
      out += padding ? '=' : kDigits[three >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

// Prints the shortest decimals that round to the same fp32 values.
std::string numbers_of(std::span<const float> values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", values[i]);
  }
  out += ']';
  return out;
}

// Cuts tokens that are whole as they are, if texts may be cut.
PooledText cut(Call& call, std::vector<TokenId> tokens) {
  const auto context = static_cast<size_t>(call.info().max_model_len);
  const int asked = call.fields.of<PoolingFields>().truncate;
  const size_t limit = asked > 0 ? static_cast<size_t>(asked) : context;
  if (asked != 0 && tokens.size() > limit) keep_tokens(tokens, limit, call.fields.of<PoolingFields>().keep_end);
  return {.tokens = std::move(tokens), .types = {}};
}

// A conversation as one text. As in vLLM, the template does not begin an answer unless it is asked to.
PooledText chat_text(Call& call) {
  auto& chat = call.fields.of<ConversationFields>();
  chat.add_generation_prompt = chat.add_generation_prompt.value_or(false);
  return cut(call, tokenize_chat(call, /*with_tools=*/true));
}

bool all_integers(const Json& array) {
  return std::all_of(array.begin(), array.end(), [](const Json& v) { return v.is_number_integer(); });
}

}  // namespace

std::span<const Parameter> input_parameters() { return kInput; }
std::span<const Parameter> truncation_parameters() { return kTruncation; }
std::span<const Parameter> pair_parameters() { return kPairs; }
std::span<const Parameter> activation_parameter() { return kActivation; }

PooledText encode_text(Call& call, std::string_view text, std::optional<std::string_view> pair,
                       const std::string& path) {
  const int context = call.info().max_model_len;
  const int asked = call.fields.of<PoolingFields>().truncate;
  if (asked == 0) check_text_length(text.size() + (pair ? pair->size() : 0), context, path);
  const int truncate = asked < 0 ? context : asked;
  if (truncate > context) {
    throw invalid_value("truncate_prompt_tokens",
                        fmt::format("Invalid 'truncate_prompt_tokens': the model's limit is {} tokens.", context));
  }
  try {
    const bool keep_end = call.fields.of<PoolingFields>().keep_end;
    return call.engine().encode(text, pair, {.tokens = truncate, .keep_end = keep_end});
  } catch (const Error& e) {
    if (!e.param.empty()) throw;
    throw Error(e.code, e.what(), path, e.reason);
  }
}

bool is_chat(Call& call) { return call.fields.of<ConversationFields>().messages.is_array(); }

std::string prompt_text(Call& call, const std::optional<std::string>& prompt_name) {
  if (is_chat(call) && prompt_name) {
    throw ApiError{.message = "Setting both 'prompt_name' and 'messages' is not supported.",
                   .param = "prompt_name",
                   .code = "invalid_parameter_combination"};
  }
  const ModelInfo& model = call.info();
  const std::string name = prompt_name.value_or(model.default_prompt);
  if (name.empty()) return {};
  const auto found = model.prompts.find(name);
  if (found == model.prompts.end()) {
    throw invalid_value("prompt_name",
                        fmt::format("Invalid 'prompt_name': the model has no prompt '{}'.", quotable(name)));
  }
  return found->second;
}

std::vector<PooledText> input_texts(Call& call, const Json& input, const std::string& before, const FieldPath& path) {
  std::vector<PooledText> texts;
  const auto add = [&](const Json& value, const FieldPath& where) {
    if (value.is_array()) {
      texts.push_back({.tokens = expect_token_ids(value, where, call.info().vocab_size), .types = {}});
      return;
    }
    const std::string text = value.is_object() ? text_of_object(value, where) : expect_string(value, where);
    if (text.empty()) throw invalid_value(where, fmt::format("Invalid '{}': it has no text.", where.str()));
    if (call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(true)) {
      texts.push_back(encode_text(call, before + text, {}, where));
    } else {
      texts.push_back(cut(call, tokenize_text(call, before + text, false, where)));
    }
  };
  if (is_chat(call)) {
    if (input.is_null()) return {chat_text(call)};
    throw ApiError{.message = "Setting both 'input' and 'messages' is not supported.",
                   .param = "messages",
                   .code = "invalid_parameter_combination"};
  }
  if (input.is_null()) throw missing_parameter(path.str());
  if (input.is_string() || input.is_object() || (input.is_array() && !input.empty() && all_integers(input))) {
    add(input, path);
  } else if (input.is_array()) {
    expect_array(input, path, 1, kMostTexts);
    for (size_t i = 0; i < input.size(); ++i) add(input[i], path[i]);
  } else {
    throw invalid_type(path, "a string, an array or an object", input);
  }
  return texts;
}

std::optional<bool> normalize_of(Call& call, std::optional<bool> normalize) {
  const std::optional<bool> activate = call.fields.of<PoolingFields>().use_activation;
  if (!activate || !call.info().embeds()) return normalize;
  if (!normalize || *normalize == *activate) return activate;
  throw ApiError{.message = "'normalize' and 'use_activation' ask for different vectors.",
                 .param = "use_activation",
                 .code = "invalid_parameter_combination"};
}

std::string vector_text(std::span<const float> values, bool base64) {
  return base64 ? fmt::format("\"{}\"", base64_of(values)) : numbers_of(values);
}

void expect_scores(const Call& call) {
  const ModelInfo& model = call.info();
  if (model.task == Task::kGenerate && !model.embeds()) refuse_task(call, "score texts");
  if (model.task == Task::kScore && model.vector_size != 1) {
    refuse_task(call, fmt::format("give one score per pair of texts, but {} labels", model.vector_size));
  }
}

PoolingJob pairs_job(Call& call, const std::vector<std::pair<std::string, std::string>>& pairs,
                     const std::string& first, const std::string& second, bool one_to_all) {
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = {},
                             .param = second,
                             .dimensions = 0,
                             .normalize = true,
                             .activate = call.fields.of<PoolingFields>().use_activation,
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  const bool vectors = call.info().embeds();
  const FieldPath field = second;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [a, b] = pairs[i];
    if (!vectors) {
      job.request.texts.push_back(encode_text(call, a, b, field[i]));
      continue;
    }
    if (i == 0 || !one_to_all) job.request.texts.push_back(encode_text(call, a, {}, first));
    job.request.texts.push_back(encode_text(call, b, {}, field[i]));
  }
  return job;
}

std::vector<float> scores_of(const PoolingResult& result, Task task, bool one_to_all) {
  std::vector<float> scores;
  if (task == Task::kScore) {
    for (const std::vector<float>& vector : result.vectors) scores.push_back(vector.front());
    return scores;
  }
  for (size_t i = 1; i < result.vectors.size(); i += one_to_all ? 1 : 2) {
    const std::vector<float>&a = result.vectors[one_to_all ? 0 : i - 1], &b = result.vectors[i];
    scores.push_back(static_cast<float>(std::inner_product(a.begin(), a.end(), b.begin(), 0.0)));
  }
  return scores;
}

Json usage_of(const PoolingResult& result) {
  return {{"prompt_tokens", result.prompt_tokens}, {"total_tokens", result.prompt_tokens}};
}

std::string next_id(std::string_view kind) {
  static std::atomic<uint64_t> next{0};
  return fmt::format("{}-{:x}", kind, next++);
}

}  // namespace sluice::server
