// Bodies in a notation of their own, or in JSON, which begins with a brace.
#include <utility>

#include "chat/tools/call_format.h"

namespace sluice {
namespace {

// Leaves the text to the reader of one of two bodies, once its first character is known.
class EitherReader final : public BodyReader {
 public:
  EitherReader(const CallBody& own, const CallBody& json, const ToolFunctions& functions)
      : own_(own), json_(json), functions_(functions) {}

  Result read(std::string_view text, bool last, CallSink& sink) override {
    if (!reader_ && text.empty()) return {State::kMore, 0};
    if (!reader_) reader_ = (text.front() == '{' ? json_ : own_).reader(functions_);
    return reader_->read(text, last, sink);
  }

 private:
  const CallBody &own_, &json_;
  const ToolFunctions& functions_;
  std::unique_ptr<BodyReader> reader_;
};

class OrJsonBody final : public CallBody {
 public:
  explicit OrJsonBody(std::shared_ptr<const CallBody> own) : own_(std::move(own)) {}

  std::unique_ptr<BodyReader> reader(const ToolFunctions& functions) const override {
    return std::make_unique<EitherReader>(*own_, *json_, functions);
  }
  grammar::NodeId build(grammar::Builder& builder, const ToolFunction& function,
                        const grammar::CompileContext& context) const override {
    return own_->build(builder, function, context);
  }

 private:
  const std::shared_ptr<const CallBody> own_, json_ = json_body();
};

}  // namespace

std::shared_ptr<const CallBody> or_json_body(std::shared_ptr<const CallBody> body) {
  return std::make_shared<const OrJsonBody>(std::move(body));
}

}  // namespace sluice
