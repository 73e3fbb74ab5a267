// A published model: its configuration and named tensors, independent of the file format. Inside Sluice, Hugging Face's
// configuration keys and tensor names are used everywhere. Other formats are translated here.
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
#include "base/mmap.h"
#include "tensor/tensor.h"

namespace sluice {

class TextPart;
class ThreadPool;

// config.json with a record of the keys that were read, so that an unknown setting becomes an error instead of being
// ignored.
class Config {
 public:
  Config();
  Config(Json values, std::string origin);

  // Returns the value, or `fallback` when the key is absent or null. Throws Error(kUnsupportedModel) that names file
  // and key when the type is wrong. An integer is accepted as a number; a fraction is not accepted as an integer.
  template <class T>
  T get(std::string_view key, T fallback) const;
  // Returns the value. Throws an error that names the key when it is absent or null.
  template <class T>
  T at(std::string_view key) const;
  bool has(std::string_view key) const;          // present and not null; marks the key as read
  const Json* find(std::string_view key) const;  // nullptr when absent or null; marks the key as read
  // Returns a nested object with the origin "config.json: rope_parameters"; empty when absent. It keeps its own record
  // of the keys that were read, so the caller must also check its unread().
  Config object(std::string_view key) const;
  // Rejects a setting by name: throws Error(kUnsupportedModel) "origin: 'key': message".
  [[noreturn]] void refuse(std::string_view key, const std::string& message) const;
  void ignore(std::string_view key) const { read_.insert(std::string(key)); }

  // Returns the keys that nobody has read and that may influence inference. Harmless keys (architectures, dtype,
  // initializer_range, *_token_id, transformers_version, dropout rates, ...; the table is in config.cc) and null values
  // are left out. If the list is not empty after a family has built its model, the checkpoint has an unknown setting.
  std::vector<std::string> unread() const;
  const std::string& origin() const { return origin_; }
  const Json& values() const { return *values_; }

 private:
  std::shared_ptr<const Json> values_;  // an object
  std::string origin_;
  mutable std::set<std::string, std::less<>> read_;
};

// Reads a JSON object written by Python: NaN, Infinity and -Infinity are accepted, as numbers for get<double>. Throws
// Error(kCorruptFile) that names the file.
Config read_config(const std::string& path);

// One tensor in a mapped file. `data` is valid as long as the Checkpoint and may be unaligned.
struct TensorEntry {
  std::string name;
  DType dtype = nullptr;  // type of the first piece, if there are several
  Shape shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  // How the memory differs from a dense tensor of that shape. Tensors that other formats reorder are read in a
  // different order; nothing is copied.
  bool transposed = false;       // a matrix stored column by column
  std::vector<Tensor> pieces{};  // consecutive runs of rows, each with its own stride and type

  bool row_scales = false;  // for 8-bit floats: all blocks of a row share one scale

  // If not null, the file stores another form (formats/quantized/quantized.h), and `data` is null. The function writes
  // rows [begin, begin + count) of a dense matrix to `to`. Several threads may call it.
  std::function<void(int64_t begin, int64_t count, std::byte* to)> compute{};
  // Returns the entry with data: itself, or computed into `memory`. `memory` grows if needed and must outlive the
  // result.
  TensorEntry in_memory(ThreadPool& pool, Buffer& memory) const;
  // Returns some rows as runs, like rows(). Computes only these if needed.
  std::vector<Tensor> rows_in_memory(int64_t begin, int64_t count, ThreadPool& pool, Buffer& memory) const;

  Tensor view() const;  // a view of dense memory
  // Returns the runs of rows that make up rows [begin, begin + count) of the matrix [rows, columns] in memory. For a
  // transposed entry this is the matrix's transpose. With three dimensions, all matrices form one, stacked vertically.
  std::vector<Tensor> rows(int64_t begin, int64_t count) const;
  void read(float* to) const;  // writes all elements, rows in order
};
using TensorMap = std::map<std::string, TensorEntry, std::less<>>;  // by name

// Sampling defaults and end tokens from generation_config.json (or config.json).
struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;  // each of them ends a sequence
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k, max_new_tokens;
  bool do_sample = false;
};

// A weights file and its modification time when it was opened.
struct SourceFile {
  size_t bytes = 0;
  int64_t modified_ns = 0;  // ns since 1970
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  // Hints that all weights will be read in order. Reads ahead in the background.
  virtual void read_ahead() const {}

  Config config;
  GenerationConfig generation;
  std::string folder;            // folder of the tokenizer and templates
  bool keep_types = false;       // whether types intentionally differ between matrices
  std::string pooling;           // not empty: an embedding model, pooled by "mean", "cls" or "lasttoken"
  bool fp8_activations = false;  // whether inputs of 8-bit matrices should also be quantized to 8-bit floats
  std::shared_ptr<const TextPart> text_part;  // not null: only the text decoder of a multimodal checkpoint
  // Returns the equivalent of tokenizer_config.json (chat templates, special tokens) when the weights file contains it.
  virtual std::string tokenizer_config() const { return {}; }
  const TensorMap& tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;
  size_t total_bytes() const;  // sum over all tensors
  const std::vector<SourceFile>& files() const { return sources_; }
  // Throws Error(kCorruptFile) if a mapped file became shorter. What was computed from its tensors must not be used.
  void check_files() const;
  bool maps(const std::byte* data) const;  // whether this is an address in a mapped file

 protected:
  const MappedFile& map_file(const std::string& path);  // maps a file of weights and adds it to files()

  TensorMap tensors_;
  std::vector<std::unique_ptr<MappedFile>> mapped_;

 private:
  std::vector<SourceFile> sources_;
};

struct OpenOptions {
  bool allow_bin = false;  // accept torch.save files, which contain pickles (formats/torch/torch_file.h)
};

// Opens a checkpoint in a registered format (formats/checkpoint_format.h). `path` is a folder, a file, or the name of a
// model in the local Hugging Face cache (hub/cache.h). Throws Error(kNotFound | kCorruptFile | kUnsupportedModel) that
// names the file and the field or tensor.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options = {});

}  // namespace sluice
