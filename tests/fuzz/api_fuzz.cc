// Fuzzes request fields and messages with arbitrary JSON: the result is an ApiError that names a field, or fields
// within their ranges.
#include "base/check.h"
#include "server/errors.h"
#include "server/messages.h"
#include "server/openai/shared_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  using namespace sluice::server;
  constexpr int kVocab = 1000;
  if (size == 0) return 0;
  constexpr const char* kEndpoints[] = {"chat", "completions", "tokenize", "detokenize"};
  try {
    const Json body = parse_json({reinterpret_cast<const char*>(data) + 1, size - 1});
    if (!body.is_object()) return 0;
    Fields all;
    UnknownFields unknown;
    read_parameters(Registry<EndpointInfo>::find(kEndpoints[data[0] % 4])->parameters, body, kVocab, all, unknown);
    const auto& s = all.of<SamplingParams>();
    const int n = all.of<GenerationFields>().n;
    CHECK(s.temperature >= 0 && s.temperature <= 2 && s.top_p > 0 && s.top_p <= 1 && n >= 1 && n <= 128);
    CHECK(s.stop.size() <= kMaxStopStrings && s.min_tokens >= 0 && s.max_tokens.value_or(1) >= 0);
    for (const TokenId id : s.stop_token_ids) CHECK(id >= 0 && id < kVocab);
    for (const TokenId id : s.allowed_token_ids) CHECK(id >= 0 && id < kVocab);
    for (const auto& [id, bias] : s.logit_bias) CHECK(id >= 0 && id < kVocab && bias >= -100 && bias <= 100);
    const auto& fields = all.of<ConversationFields>();
    if (fields.messages.is_array()) {
      const Json messages = template_messages(fields.messages, unknown);
      CHECK(messages.size() == fields.messages.size());
    }
    if (fields.tools.is_array()) check_tools(fields.tools, unknown);
  } catch (const ApiError& e) {
    CHECK(e.status == 400 && !e.message.empty());
    dump_json(to_json(e));
  } catch (const Error& e) {
    CHECK(e.code == ErrorCode::kInvalidRequest);
  }
  return 0;
}
