// Bodies in a notation of their own, or in JSON.
#include <optional>
#include <utility>

#include "chat/tools/call_format.h"
#include "chat/tools/json_pieces.h"

namespace sluice {
namespace {

// Leaves the text to one of two readers, once its first visible character is known.
class EitherReader final : public BodyReader {
 public:
  EitherReader(std::unique_ptr<BodyReader> own, std::unique_ptr<BodyReader> json)
      : own_(std::move(own)), json_(std::move(json)) {}

  Result read(std::string_view text, bool last, CallSink& sink) override {
    if (!is_json_) {
      const std::string_view visible = trimmed(text);
      if (visible.empty()) return {State::kMore, 0};
      is_json_ = visible[0] == '{';
    }
    return (*is_json_ ? json_ : own_)->read(text, last, sink);
  }

 private:
  std::unique_ptr<BodyReader> own_, json_;
  std::optional<bool> is_json_{};
};

class OrJsonBody final : public CallBody {
 public:
  explicit OrJsonBody(std::shared_ptr<const CallBody> own) : own_(std::move(own)) {}

  std::unique_ptr<BodyReader> reader(const ToolFunctions& functions) const override {
    return std::make_unique<EitherReader>(own_->reader(functions), json_->reader(functions));
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
