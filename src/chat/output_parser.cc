// The parser of answers without structure.
#include "chat/output_parser.h"

#include <utility>

namespace sluice {
namespace {

class TextParser final : public OutputParser {
 public:
  void push(std::string text, std::vector<Delta>& deltas) override {
    if (!text.empty()) deltas.emplace_back(TextDelta{std::move(text)});
  }
  void finish(std::vector<Delta>&) override {}
};

}  // namespace

std::unique_ptr<OutputParser> make_text_parser() { return std::make_unique<TextParser>(); }

}  // namespace sluice
