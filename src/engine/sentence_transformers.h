// The sentence-transformers files beside a checkpoint, which tell how to compute a text's embedding from the model's
// hidden states: modules.json and the folders it names, config_sentence_transformers.json, sentence_bert_config.json.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nn/pooled.h"

namespace sluice {

struct EmbeddingFiles {
  bool present = false;                      // there is a modules.json
  std::optional<ops::Pooling> pooling{};     // empty: the model family's default
  std::vector<std::string> dense_folders{};  // folders of dense layers, in order
  std::vector<std::string> dense_tensors{};  // tensors of the checkpoint's dense layers without activation, in order
  bool normalize = false;                    // normalizes embeddings to length 1
  int max_seq_length = 0;                    // tokens; 0: unset
  bool matryoshka = false;                   // leading dimensions are vectors, too
  std::vector<int> matryoshka_dimensions{};  // the only numbers of them; empty: any
  int truncate_dim = 0;                      // default number of dimensions of an embedding; 0: all
  // Prompts to prepend to the input, by name ("query", "document"), and the name of the default prompt.
  std::map<std::string, std::string> prompts{};
  std::string default_prompt{};
};

// The function applied to a classifier's logits.
enum class ScoreActivation { kNone, kSigmoid, kSoftmax };

// Returns the function that config.json sets by sentence-transformers' keys or by problem_type. The default is a
// sigmoid for one label and a softmax for several.
ScoreActivation read_score_activation(const Config& config);

// Reads the files in the checkpoint's folder, or the same settings in the checkpoint's own file. Throws
// Error(kUnsupportedModel | kCorruptFile), which names the file and field that is not supported.
EmbeddingFiles read_embedding_files(const Checkpoint& checkpoint);

// Loads the dense layers; the first one has `inputs` columns. Their weights count as part of the model's.
std::vector<Dense> load_dense(const EmbeddingFiles& files, LoadContext& context, int inputs);

}  // namespace sluice
