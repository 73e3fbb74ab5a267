// Mistral: [TOOL_CALLS]f[ARGS]{...} for each call since tokenizer v11, maybe with [CALL_ID] behind the name; and
// [TOOL_CALLS][{"name": "f", "arguments": {...}}] before. One parser reads both.
#include "chat/tools/call_format.h"

namespace sluice::tools::mistral {
namespace {

const std::shared_ptr<const CallBody> object = json_body(),
                                      named = named_body({.between = "[ARGS]", .id = "[CALL_ID]"});

// Chooses between two forms of bodies: JSON objects begin with a brace.
class EitherReader final : public BodyReader {
 public:
  explicit EitherReader(const ToolFunctions& functions) : functions_(functions) {}
  Result read(std::string_view text, bool last, CallSink& sink) override {
    if (!reader_ && text.empty()) return {State::kMore, 0};
    if (!reader_) reader_ = (text.front() == '{' ? object : named)->reader(functions_);
    return reader_->read(text, last, sink);
  }

 private:
  const ToolFunctions& functions_;
  std::unique_ptr<BodyReader> reader_;
};

class EitherBody final : public CallBody {
 public:
  explicit EitherBody(std::shared_ptr<const CallBody> written) : written_(std::move(written)) {}
  std::unique_ptr<BodyReader> reader(const ToolFunctions& functions) const override {
    return std::make_unique<EitherReader>(functions);
  }
  grammar::NodeId build(grammar::Builder& builder, const ToolFunction& function,
                        const grammar::CompileContext& context) const override {
    return written_->build(builder, function, context);
  }

 private:
  const std::shared_ptr<const CallBody> written_;
};

const CallFormat list{.section_begin = {"[TOOL_CALLS]"},
                      .separator = ", ",
                      .list = true,
                      .text_after = false,
                      .body = std::make_shared<EitherBody>(object)};
const CallFormat calls{.call_begin = {"[TOOL_CALLS]"}, .text_after = false, .body = named};

bool in_list(std::string_view source) { return has_texts(source, {"[TOOL_CALLS]"}, {"[ARGS]"}); }
bool in_calls(std::string_view source) { return has_texts(source, {"[TOOL_CALLS]", "[ARGS]"}); }

ToolSyntax of_v11() {
  ToolSyntax syntax = call_syntax<calls>("mistral", in_calls);
  syntax.parser = call_syntax<list>("mistral", in_calls).parser;
  return syntax;
}

const ToolSyntax syntaxes[] = {of_v11(), call_syntax<list>("mistral_v3", in_list, {"mistral_v7"})};
const Registry<ToolSyntax> registered[] = {Registry<ToolSyntax>(syntaxes[0]), Registry<ToolSyntax>(syntaxes[1])};

}  // namespace
}  // namespace sluice::tools::mistral
