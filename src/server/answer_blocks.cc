// A block ends where one of another kind, or another call, begins.
#include "server/answer_blocks.h"

#include <fmt/core.h>

#include <variant>

namespace sluice::server {

void AnswerBlocks::add(const Delta& delta) {
  if (const auto* text = std::get_if<TextDelta>(&delta)) return append(AnswerBlock::Kind::kText, text->text);
  if (const auto* text = std::get_if<ReasoningDelta>(&delta)) return append(AnswerBlock::Kind::kReasoning, text->text);
  if (const auto* call = std::get_if<ToolCallBegin>(&delta)) {
    begin({.kind = AnswerBlock::Kind::kCall,
           .text = {},
           .id = call->id.empty() ? fmt::format("{}{:02x}", call_id_prefix_, calls_) : call->id,
           .name = call->name});
    ++calls_;
    return;
  }
  append(AnswerBlock::Kind::kCall, std::get<ToolCallArguments>(delta).json);
}

void AnswerBlocks::append(AnswerBlock::Kind kind, std::string_view piece) {
  if (piece.empty()) return;
  if (!open_ || blocks_.back().kind != kind) begin({.kind = kind, .text = {}, .id = {}, .name = {}});
  blocks_.back().text += piece;
  if (observer_ != nullptr) observer_->on_piece(blocks_.size() - 1, blocks_.back(), piece);
}

void AnswerBlocks::begin(AnswerBlock block) {
  end();
  blocks_.push_back(std::move(block));
  open_ = true;
  if (observer_ != nullptr) observer_->on_begin(blocks_.size() - 1, blocks_.back());
}

void AnswerBlocks::end() {
  if (!std::exchange(open_, false)) return;
  if (observer_ != nullptr) observer_->on_end(blocks_.size() - 1, blocks_.back());
}

std::string AnswerBlocks::text_of(AnswerBlock::Kind kind) const {
  std::string text;
  for (const AnswerBlock& block : blocks_) {
    if (block.kind == kind) text += block.text;
  }
  return text;
}

}  // namespace sluice::server
