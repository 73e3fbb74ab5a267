// The states of an automaton that any plain text may follow.
#pragma once

#include <vector>

#include "grammar/automaton.h"

namespace sluice::grammar {

// Plain text consists of whole characters that a JSON string holds as they are: not control characters, '"' and '\'.
// By state: whether every plain text is the beginning of a text that goes on from this state. May be false where only
// several ways through a nondeterministic automaton together have all plain texts.
std::vector<bool> states_before_any_text(const Automaton& language);

}  // namespace sluice::grammar
