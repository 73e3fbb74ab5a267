// The pre-tokenizer "UnicodeScripts": splits where the script of the characters changes.
#pragma once

#include <memory>

#include "tokenizer/pretokenizer.h"

namespace sluice::tokenizer {

std::unique_ptr<PreTokenizer> load_unicode_scripts(const Field& field);

}  // namespace sluice::tokenizer
