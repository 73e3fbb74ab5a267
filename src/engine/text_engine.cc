// Tokenization and chat rendering, for engines of every task.
#include "engine/text_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>

#include "base/json.h"
#include "chat/answer_parser.h"
#include "engine/prompt_vectors.h"
#include "engine/text.h"
#include "hub/cache.h"
#include "sluice/context.h"

namespace sluice {
namespace {

// How the template turns thoughts on and off.
void describe_thoughts(ModelInfo& info, const ChatTemplate& chat_template) {
  info.template_takes_effort = chat_template.names_variable("reasoning_effort");
  info.template_takes_no_effort = info.template_takes_effort && chat_template.has_string("none");
  for (const char* name : {"enable_thinking", "thinking"}) {
    if (info.thinking_switch.empty() && chat_template.names_variable(name)) info.thinking_switch = name;
  }
}

// The names of the labels of a model that scores.
std::vector<std::string> label_names(const Json& config, int labels) {
  std::vector<std::string> names;
  const auto given = config.find("id2label");
  for (int i = 0; i < labels; ++i) {
    names.push_back(fmt::format("LABEL_{}", i));
    if (given == config.end() || !given->is_object()) continue;
    const auto name = given->find(std::to_string(i));
    if (name != given->end() && name->is_string()) names.back() = name->get<std::string>();
  }
  return names;
}

}  // namespace

ModelInfo model_info(const LoadPlan& plan, const std::optional<ChatTemplate>& chat_template, const TextEnds& text) {
  ModelInfo info;
  const Checkpoint& checkpoint = *plan.checkpoint;
  info.path = checkpoint.folder;
  info.name = model_name(checkpoint.folder);
  info.family = plan.shape.family;
  info.dtype = plan.weight_type()->name;
  info.backend = plan.backend->name;
  info.parameters = plan.parameters;
  info.max_model_len = plan.max_model_len;
  info.kv_cache_tokens = static_cast<int64_t>(plan.blocks) * plan.block_size;
  if (plan.kv_dtype != nullptr) info.kv_cache_dtype = plan.kv_dtype->name;
  info.vocab_size = plan.shape.vocab;
  info.prompt_vector_width = plan.prompt_vector_width;
  info.eos_token_ids = checkpoint.generation.eos_token_ids;
  info.created = std::time(nullptr);
  info.has_chat_template = chat_template.has_value();
  if (chat_template) describe_thoughts(info, *chat_template);
  if (text.syntax.tools != nullptr) info.tool_syntax = text.syntax.tools->name;
  if (text.syntax.reasoning != nullptr) info.reasoning_syntax = text.syntax.reasoning->name;
  info.task = plan.task;
  info.vector_size = plan.task == Task::kGenerate ? 0 : plan.shape.width;
  if (plan.embedding_pooling) {
    info.embedding_pooling = *plan.embedding_pooling == HiddenPooling::kLast ? "last" : "mean";
    info.vector_size = plan.shape.hidden;
  }
  if (plan.task == Task::kScore) info.labels = label_names(checkpoint.config.values(), info.vector_size);
  info.matryoshka = plan.embedding.matryoshka;
  info.matryoshka_dimensions = plan.embedding.matryoshka_dimensions;
  info.prompts = plan.embedding.prompts;
  info.default_prompt = plan.embedding.default_prompt;
  info.default_sampling = text.sampling;
  return info;
}

namespace {

// Returns how many tokens of each of two texts to keep. The longer text is cut first, as in Hugging Face's tokenizers.
std::pair<size_t, size_t> keep_longest_first(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const bool swapped = first > second;
  size_t shorter = std::min(first, second), longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  return swapped ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

// What the tokenizer puts before every text, which is a token that begins texts or nothing.
std::vector<TokenId> tokens_before(const Tokenizer& tokenizer) {
  const std::vector<TokenId> added = tokenizer.surround({});
  TokenId probe = 0;
  while (std::ranges::find(added, probe) != added.end()) ++probe;
  std::vector<TokenId> around = tokenizer.surround({probe});
  around.erase(std::ranges::find(around, probe), around.end());
  return around;
}

}  // namespace

TextEngine::TextEngine(std::unique_ptr<ThreadPool> pool, LoadedModel loaded, TextEnds text)
    : pool_(std::move(pool)),
      loaded_(std::move(loaded)),
      tokenizer_(std::move(text.tokenizer)),
      template_(std::move(text.chat_template)),
      first_tokens_(tokens_before(*tokenizer_)),
      first_text_(template_ && template_->lacks_first_tokens()
                      ? tokenizer_->decode(first_tokens_, /*skip_special_tokens=*/false)
                      : std::string()),
      template_kwargs_(text.template_kwargs.empty() ? Json::object() : parse_json(text.template_kwargs)),
      config_(std::move(text.config)),
      reasoning_(text.syntax.reasoning),
      info_(model_info(loaded_.plan, template_, text)) {}

std::vector<TokenId> TextEngine::tokenize(std::string_view text, bool add_special_tokens) const {
  return tokenizer_->encode(text, add_special_tokens, {.most = pool_->threads()});
}

std::string TextEngine::detokenize(std::span<const TokenId> tokens, bool skip_special_tokens) const {
  for (const TokenId id : tokens) {
    if (id < 0 || id >= info_.vocab_size) {
      throw Error(ErrorCode::kInvalidRequest, fmt::format("token id {} is not in the vocabulary", id), "tokens",
                  "invalid_value");
    }
  }
  return tokenizer_->decode(tokens, skip_special_tokens);
}

std::string TextEngine::token_text(TokenId token) const { return std::string(tokenizer_->token_text(token)); }

std::string TextEngine::token_bytes(TokenId token) const { return tokenizer_->token_bytes(token); }

std::string TextEngine::render_chat(const ChatPrompt& chat) const {
  if (!template_) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("{} has no chat template: {}, or give one with --chat-template", info_.name,
                            info_.task == Task::kGenerate ? "use /v1/completions" : "send texts as 'input'"),
                "messages", "");
  }
  ChatInput input;
  input.messages = parse_json(chat.messages);
  if (!chat.tools.empty()) input.tools = parse_json(chat.tools);
  input.kwargs = template_kwargs_;
  if (!chat.template_kwargs.empty()) input.kwargs.update(parse_json(chat.template_kwargs));
  input.add_generation_prompt = chat.add_generation_prompt;
  input.continue_final_message = chat.continue_final_message;
  std::string text = template_->render(input, std::chrono::system_clock::now());
  return text.starts_with(first_text_) ? text : first_text_ + text;
}

std::shared_ptr<const PromptVectors> TextEngine::read_prompt_vectors(std::string_view file,
                                                                     const std::string& param) const {
  return sluice::read_prompt_vectors(file, info_, param);
}

Request TextEngine::chat_request(ChatRequest chat) const {
  Request& request = chat.request;
  if (info_.task != Task::kGenerate) return std::move(request);  // submit() refuses it
  const std::string text = render_chat(chat.chat);
  const size_t accepted = request.truncate_prompt ? kBytesTruncated : kBytesAlways;
  check_text_length(text.size(), info_.max_model_len, request.prompt_param, accepted);
  const std::vector<TokenId> own = tokenize(text, chat.add_special_tokens);
  request.prompt.insert(request.prompt.end(), own.begin(), own.end());  // behind its modules
  set_context_shift(request, info_.context_shift);
  fit_context(request, info_.max_model_len, "messages");
  if (!chat.chat.tools.empty() && !info_.tool_syntax.empty()) {
    request.tool_syntax = info_.tool_syntax;
    request.tools = std::move(chat.chat.tools);
  }
  if (reasoning_ != nullptr) {
    request.reasoning_syntax = info_.reasoning_syntax;
    request.thought = thought_start(*reasoning_, text);
  }
  return std::move(request);
}

PooledText TextEngine::encode(std::string_view text, std::optional<std::string_view> pair,
                              const Truncation& truncation) const {
  const int truncate = truncation.tokens;
  const auto most = static_cast<size_t>(info_.max_model_len);
  const size_t limit = truncate > 0 ? std::min(most, static_cast<size_t>(truncate)) : most;
  std::vector<TokenId> first = tokenizer_->encode(text, false, {.most = pool_->threads()});
  PooledText out;
  if (pair) {
    std::vector<TokenId> second = tokenizer_->encode(*pair, false, {.most = pool_->threads()});
    if (truncate > 0) {
      const size_t added = tokenizer_->join({}, {}).tokens.size(), room = limit > added ? limit - added : 0;
      const auto [keep_first, keep_second] = keep_longest_first(first.size(), second.size(), room);
      first.resize(keep_first);
      second.resize(keep_second);
    }
    Tokenizer::Pair joined = tokenizer_->join(first, second);
    out = {.tokens = std::move(joined.tokens), .types = std::move(joined.types)};
  } else {
    const size_t added = tokenizer_->surround({}).size();
    if (truncate > 0 && first.size() + added > limit) {
      keep_tokens(first, limit > added ? limit - added : 0, truncation.keep_end);
    }
    out.tokens = tokenizer_->surround(std::move(first));
  }
  if (out.tokens.size() <= limit) return out;
  throw Error(
      ErrorCode::kInvalidRequest,
      fmt::format("This model's maximum context length is {} tokens. However, your input resulted in {} tokens. "
                  "Please reduce the length of the input, or set 'truncate_prompt_tokens'.",
                  limit, out.tokens.size()),
      "", "context_length_exceeded");
}

}  // namespace sluice
