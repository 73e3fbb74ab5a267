// What a model is loaded for.
#pragma once

namespace sluice {

enum class Task {
  kGenerate,
  kEmbed,  // a vector for a text
  kScore,  // a score per label for a text or a pair of texts: classifiers, rerankers
};
constexpr const char* to_string(Task task) {
  return task == Task::kGenerate ? "generate" : task == Task::kEmbed ? "embed" : "score";
}

}  // namespace sluice
