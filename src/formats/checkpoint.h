// A model as it was published: configuration and named tensors, whatever files they came from. Everything inside
// Sluice speaks Hugging Face's configuration keys and tensor names; other formats are translated at this edge.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "tensor/tensor.h"

namespace sluice {

class ThreadPool;

// config.json with a record of what was read, so that a setting nobody understood is an error and not a surprise.
class Config {
 public:
  Config();
  Config(Json values, std::string origin);

  // The value, or `fallback` when the key is absent or null. Throws Error(kUnsupportedModel) that names file and key
  // when the type is wrong (an integer where a number is wanted is fine; a fraction where an integer is, is not).
  template <class T>
  T get(std::string_view key, T fallback) const;
  // The value; absent or null is an error that names the key.
  template <class T>
  T at(std::string_view key) const;
  bool has(std::string_view key) const;          // present and not null; marks the key as read
  const Json* find(std::string_view key) const;  // nullptr when absent or null; marks the key as read
  // A nested object, empty when absent, with the origin "config.json: rope_parameters". It keeps its own record of what
  // was read: who takes it asks its unread(), too.
  Config object(std::string_view key) const;
  // Refuses a setting by name: throws Error(kUnsupportedModel) "origin: 'key': message".
  [[noreturn]] void refuse(std::string_view key, const std::string& message) const;
  void ignore(std::string_view key) const { read_.insert(std::string(key)); }

  // Keys nobody has read and that are not known to be without influence on inference (architectures, dtype,
  // initializer_range, *_token_id, transformers_version, dropout rates, ...; the table is in config.cc). A null asks
  // for nothing and is left out. Empty after a family has built its model, or the checkpoint asks for something
  // unknown.
  std::vector<std::string> unread() const;
  const std::string& origin() const { return origin_; }
  const Json& values() const { return *values_; }

 private:
  std::shared_ptr<const Json> values_;  // an object
  std::string origin_;
  mutable std::set<std::string, std::less<>> read_;
};

// Reads a JSON object written by Python: NaN, Infinity and -Infinity are accepted, as numbers for get<double>.
// Throws Error(kCorruptFile) that names the file.
Config read_config(const std::string& path);

// One tensor in a mapped file. `data` stays valid as long as the Checkpoint; it may be unaligned.
struct TensorEntry {
  std::string name;
  DType dtype = nullptr;  // of the first piece, if there are several
  Shape shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  // Where the memory differs from a dense tensor of that shape. What other formats reorder is put in order again by
  // reading it in another order: nothing is copied.
  bool transposed = false;       // a matrix whose columns lie one after the other
  std::vector<Tensor> pieces{};  // the rows, in order, each a run of them with a stride and a type of its own

  bool row_scales = false;  // of 8-bit floats: the blocks of a row share one scale

  // Not null: the file stores this in another form (formats/quantized/quantized.h), and `data` is null. Writes rows
  // [begin, begin
  // + count) of a dense matrix; may be called from several threads.
  std::function<void(int64_t begin, int64_t count, std::byte* to)> compute{};
  // The entry as one with data: itself, or computed into `memory`, which becomes larger if need be and has to outlive
  // it.
  TensorEntry in_memory(ThreadPool& pool, Buffer& memory) const;
  // Rows of it alone, computed likewise: runs of rows as in rows().
  std::vector<Tensor> rows_in_memory(int64_t begin, int64_t count, ThreadPool& pool, Buffer& memory) const;

  Tensor view() const;  // of dense memory
  // Runs of rows that are [begin, begin + count) of the matrix [rows, columns] in memory (of its transpose, when it is
  // transposed; of all matrices one below the other, when there are three dimensions).
  std::vector<Tensor> rows(int64_t begin, int64_t count) const;
  void read(float* to) const;  // all elements, rows in order
};

// What generation_config.json (or config.json) says about sampling defaults and ends.
struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;  // any of them ends a sequence
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k, max_new_tokens;
  bool do_sample = false;
};

// A file of weights, as it was when it was opened.
struct SourceFile {
  size_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  // Weights will be read, all of them and in order: reads ahead, in the background.
  virtual void read_ahead() const {}

  Config config;
  GenerationConfig generation;
  std::string folder;            // where tokenizer and templates are looked for
  bool keep_types = false;       // types differ from matrix to matrix on purpose
  std::string pooling;           // not empty: it makes vectors of texts, by "mean", "cls" or "lasttoken"
  bool fp8_activations = false;  // its quantizer means inputs of 8-bit matrices to be 8-bit floats as well
  // What tokenizer_config.json would say about chat templates and special tokens, when the weights' file holds them.
  virtual std::string tokenizer_config() const { return {}; }
  const std::map<std::string, TensorEntry, std::less<>>& tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;
  size_t total_bytes() const;  // of all tensors
  const std::vector<SourceFile>& files() const { return sources_; }

 protected:
  std::map<std::string, TensorEntry, std::less<>> tensors_;
  std::vector<SourceFile> sources_;
};

struct OpenOptions {
  bool allow_bin = false;  // weights in files of torch.save, which hold pickles (formats/torch/torch_file.h)
};

// Opens a checkpoint of a format that is registered (formats/checkpoint_format.h): a folder or a file, or the name of a
// model in the local Hugging Face cache (hub/cache.h).
// Throws Error(kNotFound | kCorruptFile | kUnsupportedModel) naming the file and the field or tensor.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options = {});

}  // namespace sluice
