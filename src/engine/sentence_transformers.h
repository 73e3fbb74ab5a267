// What the files of sentence-transformers beside a checkpoint say about making a text's vector of the model's hidden
// states: modules.json and the folders it names, config_sentence_transformers.json, sentence_bert_config.json.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nn/pooled.h"

namespace sluice {

struct EmbeddingFiles {
  bool present = false;                      // there is a modules.json
  std::optional<ops::Pooling> pooling{};     // none: left to the model
  std::vector<std::string> dense_folders{};  // in order
  std::vector<std::string> dense_tensors{};  // in order, of layers without activation that the checkpoint holds
  bool normalize = false;                    // to length 1
  int max_seq_length = 0;                    // tokens; 0: not said
  int truncate_dim = 0;                      // how many dimensions are given unless asked otherwise; 0: all
  // Texts that are put before the input, by name ("query", "document"), and the one that is when none is named.
  std::map<std::string, std::string> prompts{};
  std::string default_prompt{};
};

// What is done to the logits of a classifier.
enum class ScoreActivation { kNone, kSigmoid, kSoftmax };

// As config.json asks for it, in sentence-transformers' keys or by problem_type; else a sigmoid of a single label, a
// softmax over several.
ScoreActivation read_score_activation(const Config& config);

// Of the checkpoint's folder, or as its own file says. Throws Error(kUnsupportedModel | kCorruptFile) that names file
// and field of what is there and not supported.
EmbeddingFiles read_embedding_files(const Checkpoint& checkpoint);

// The dense layers of tensors and folders, the first one of `inputs` columns. Their weights count as the model's.
std::vector<Dense> load_dense(const EmbeddingFiles& files, LoadContext& context, int inputs);

}  // namespace sluice
