// The grammar of calls with parameters in tags.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "chat/tools/call_format.h"

namespace sluice {

// Languages that all calls of a syntax share. They are made when they are first needed.
class TagLanguages {
 public:
  // Types whose values a text must not look like.
  static constexpr unsigned kNumber = 1, kBoolean = 2, kArray = 4, kObject = 8;

  // `forgotten`: texts that the parser may take for an end of a value as well.
  TagLanguages(std::string end, std::vector<std::string> forgotten)
      : end_(std::move(end)), forgotten_(std::move(forgotten)) {}

  const std::string& end() const { return end_; }  // what ends a value
  const std::vector<std::string>& forgotten() const { return forgotten_; }
  grammar::Automaton with_end() const;                   // texts that hold the end
  grammar::Automaton names() const;                      // what can be written as a name
  grammar::Automaton json_string() const;                // JSON strings that do not hold the end
  grammar::Automaton json_character() const;             // a character of one, not the first of the end
  grammar::Automaton other_texts(unsigned types) const;  // what is neither a value of these types nor holds an end

 private:
  template <class Make>
  grammar::Automaton once(int key, Make make) const;

  const std::string end_;
  const std::vector<std::string> forgotten_;
  mutable std::mutex mutex_;
  mutable std::map<int, grammar::Automaton> made_;
};

grammar::NodeId build_tagged_call(grammar::Builder& builder, const TaggedCallMarks& marks,
                                  const TagLanguages& languages, const ToolFunction& function,
                                  const grammar::CompileContext& context);

}  // namespace sluice
