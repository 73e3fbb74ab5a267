// The blocks of an answer: reasoning, text and calls of tools, in the order in which they come. Dialects whose answers
// are lists of such blocks print them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/request.h"

namespace sluice::server {

struct AnswerBlock {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;      // kCall: the JSON text of the arguments
  std::string id, name;  // kCall
};

class AnswerBlocks {
 public:
  // Is told what happens, for streams. Indices are those of blocks().
  class Observer {
   public:
    virtual void on_begin(size_t index, const AnswerBlock& block) = 0;
    virtual void on_piece(size_t index, const AnswerBlock& block, std::string_view piece) = 0;
    virtual void on_end(size_t index, const AnswerBlock& block) = 0;

   protected:
    ~Observer() = default;
  };

  // Calls without an id get one that starts with the prefix. The observer may be null.
  AnswerBlocks(std::string call_id_prefix, Observer* observer)
      : call_id_prefix_(std::move(call_id_prefix)), observer_(observer) {}

  void add(const Delta& delta);
  void end();  // ends the last block; nothing follows

  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  bool calls_tools() const { return calls_ > 0; }
  std::string text_of(AnswerBlock::Kind kind) const;  // of all blocks of the kind together

 private:
  void append(AnswerBlock::Kind kind, std::string_view piece);
  void begin(AnswerBlock block);

  const std::string call_id_prefix_;
  Observer* const observer_;
  std::vector<AnswerBlock> blocks_;
  bool open_ = false;  // the last block
  int calls_ = 0;
};

}  // namespace sluice::server
