// The "pre_tokenizer" of tokenizer.json: cuts text into the pieces that tokens never cross.
#pragma once

#include <memory>
#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/pieces.h"

namespace sluice::tokenizer {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts each piece further; may rewrite the text.
  virtual void apply(Pieces& pieces) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  // The last step is ByteLevel: the model has to read the bytes of its pieces in the byte-level alphabet. They are not
  // spelled out in the text, which would only double it.
  bool byte_level = false;
};

// Sequences, nested or not, become one list. Error(kUnsupportedModel) names an unknown type.
PreTokenizers load_pretokenizers(const Field& field);

}  // namespace sluice::tokenizer
