// Fields and messages of API requests from arbitrary JSON: an ApiError that names something, or fields in their ranges.
#include "base/check.h"
#include "server/errors.h"
#include "server/messages.h"
#include "server/parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  using namespace sluice::server;
  constexpr int kVocab = 1000;
  if (size == 0) return 0;
  constexpr Endpoint kEndpoints[] = {kChat, kCompletions, kTokenize, kDetokenize};
  try {
    const Json body = parse_json({reinterpret_cast<const char*>(data) + 1, size - 1});
    if (!body.is_object()) return 0;
    RequestFields fields;
    UnknownFields unknown;
    read_parameters(kEndpoints[data[0] % 4], body, kVocab, fields, unknown);
    const SamplingParams& s = fields.sampling;
    CHECK(s.temperature >= 0 && s.temperature <= 2 && s.top_p > 0 && s.top_p <= 1 && fields.n >= 1 && fields.n <= 128);
    CHECK(s.stop.size() <= kMaxStopStrings && s.min_tokens >= 0 && s.max_tokens.value_or(1) >= 0);
    for (const TokenId id : s.stop_token_ids) CHECK(id >= 0 && id < kVocab);
    for (const TokenId id : s.allowed_token_ids) CHECK(id >= 0 && id < kVocab);
    for (const auto& [id, bias] : s.logit_bias) CHECK(id >= 0 && id < kVocab && bias >= -100 && bias <= 100);
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
