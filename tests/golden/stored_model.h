// A golden's configuration and weights, which a test changes before it writes them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "golden/folder_model.h"
#include "support/hashed_weights.h"

namespace sluice {

struct StoredMatrix {
  Shape shape;
  std::vector<float> values;
};

// Tensors by name, with the changes that families make.
struct StoredModel {
  Json config;
  std::map<std::string, StoredMatrix> tensors;

  void set(const Json& keys) {
    for (const auto& [key, value] : keys.items()) config[key] = value;
  }
  void move(const std::string& from, const std::string& to) {
    config[to] = config.at(from);
    config.erase(from);
  }
  // Replaces `from` in all names that contain it.
  void rename(const std::string& from, const std::string& to) {
    std::map<std::string, StoredMatrix> renamed;
    for (auto& [name, matrix] : tensors) {
      std::string now = name;
      if (const size_t at = now.find(from); at != std::string::npos) now.replace(at, from.size(), to);
      renamed[now] = std::move(matrix);
    }
    tensors = std::move(renamed);
  }
  void scale(const std::string& part, float by) {
    for (auto& [name, matrix] : tensors) {
      if (name.find(part) == std::string::npos) continue;
      for (float& v : matrix.values) v *= by;
    }
  }
  // Fuses q, k and v of every layer into one tensor: chunks of rows [tensor, first row, rows] one below the other.
  struct Chunk {
    char tensor;
    int64_t row, rows;
  };
  void fuse_qkv(const std::string& name, const std::vector<Chunk>& chunks, const std::string& kind = "weight") {
    for (int layer = 0; layer < config.at("num_hidden_layers"); ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
      StoredMatrix fused;
      int64_t rows = 0;
      for (const Chunk& chunk : chunks) {
        const StoredMatrix& from = tensors.at(fmt::format("{}{}_proj.{}", prefix, chunk.tensor, kind));
        const int64_t width = from.shape.elements() / from.shape[0];
        const auto begin = from.values.begin() + chunk.row * width;
        fused.values.insert(fused.values.end(), begin, begin + chunk.rows * width);
        rows += chunk.rows;
      }
      const auto count = static_cast<int64_t>(fused.values.size());
      fused.shape = kind == "bias" ? Shape{rows} : Shape{rows, count / rows};
      for (char t : {'q', 'k', 'v'}) tensors.erase(fmt::format("{}{}_proj.{}", prefix, t, kind));
      tensors[prefix + name + "." + kind] = std::move(fused);
    }
  }
};

inline StoredModel read_stored_model(const std::string& name) {
  const std::filesystem::path golden = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch" / name;
  StoredModel model;
  model.config = read_json_file((golden / "config.json").string());
  for (const Json& row : read_json_file((golden / "weights.json").string())) {
    StoredMatrix matrix;
    for (const Json& dim : row.at("shape")) matrix.shape.append(dim.get<int64_t>());
    for (uint16_t bits : testing::hashed_weights(row)) matrix.values.push_back(bf16_to_float(bits));
    model.tensors[row.at("name").get<std::string>()] = std::move(matrix);
  }
  return model;
}

inline void write(StoredModel& model, const testing::TempFolder& folder) {
  std::vector<NamedTensor> tensors;
  for (auto& [name, matrix] : model.tensors) {
    tensors.push_back({name, Tensor(matrix.values.data(), &kFloat32, matrix.shape)});
  }
  write_model(folder, model.config, tensors);
}

}  // namespace sluice
