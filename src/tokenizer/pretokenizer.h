// The "pre_tokenizer" of tokenizer.json: splits text into pieces, which tokens never cross.
#pragma once

#include <memory>
#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/pieces.h"

namespace sluice::tokenizer {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits each piece further. May rewrite the text.
  virtual void apply(Pieces& pieces) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  // Whether the last step is ByteLevel. The model must then read the bytes of its pieces in the byte-level alphabet.
  // The text itself is not rewritten, because that would only double it.
  bool byte_level = false;
};

// Flattens nested sequences into one list. Throws Error(kUnsupportedModel) that names an unknown type.
PreTokenizers load_pretokenizers(const Field& field);

}  // namespace sluice::tokenizer
