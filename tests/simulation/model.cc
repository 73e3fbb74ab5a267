// The simulated model: a family of its own, registered as all others are.
#include "simulation/model.h"

#include <fmt/core.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/json.h"
#include "formats/safetensors.h"
#include "nn/model.h"

namespace sluice::simulation {
namespace {

Pace pace;

uint64_t extend(uint64_t state, TokenId token) {
  uint64_t x = state ^ (static_cast<uint64_t>(token) + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Words of small letters; one token in 64 ends the text.
TokenId next_token(uint64_t state) {
  constexpr uint64_t kEndEvery = 64, kSpaceEvery = 6;
  if (state % kEndEvery == 0) return kEndToken;
  const uint64_t rest = state / kEndEvery;
  return rest % kSpaceEvery == 0 ? ' ' : static_cast<TokenId>('a' + rest / kSpaceEvery % 26);
}

class HashModel final : public Model {
 public:
  explicit HashModel(int max_len) {
    shape_.family = "simulated";
    shape_.vocab = shape_.width = kVocabulary;
    shape_.max_positions = max_len;
    shape_.kv = {{.kv_heads = 1, .head_dim = kFloats, .value_dim = kFloats}};
    shape_.rope_class = [](int) { return 0; };
  }

  const ModelShape& shape() const override { return shape_; }
  size_t activation_bytes(int, int rows) const override {
    return static_cast<size_t>(rows) * kVocabulary * sizeof(float) + 4096;
  }

  StepOutput forward(ops::Ctx& c, const BatchView& batch, KvCache& kv, StateCache&) override {
    auto* cache = reinterpret_cast<float*>(kv.layer(0).k.data);
    std::vector<uint64_t> states(static_cast<size_t>(batch.size()));
    const int block_size = static_cast<int>(kv.layer(0).k.shape[2]);
    for (int s = 0; s < batch.sequences(); ++s) {
      const int32_t* table = batch.block_table.data() + s * batch.block_table_stride;
      for (int row = batch.query_start[s]; row < batch.query_start[s + 1]; ++row) {
        const int position = batch.positions[row];
        uint64_t state = 0;
        if (position > 0) {
          const int before = position - 1;
          const int64_t slot = int64_t{table[before / block_size]} * block_size + before % block_size;
          std::memcpy(&state, cache + slot * kFloats, sizeof state);
        }
        state = extend(state, batch.tokens[row]);
        std::memcpy(cache + int64_t{batch.slots[row]} * kFloats, &state, sizeof state);
        states[static_cast<size_t>(row)] = state;
      }
    }
    const auto rows = static_cast<int64_t>(batch.sample_rows.size());
    const Tensor logits = c.arena.take(&kFloat32, {rows, kVocabulary});
    float* out = logits.f32();
    std::fill(out, out + rows * kVocabulary, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      constexpr float kCertain = 60;
      out[i * kVocabulary + next_token(states[static_cast<size_t>(batch.sample_rows[i])])] = kCertain;
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(pace.per_step + pace.per_token * batch.size()));
    return {.logits = logits};
  }

 private:
  static constexpr int kFloats = 2;  // that hold a state
  ModelShape shape_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  const int positions = config.at<int>("max_position_embeddings");
  config.ignore("vocab_size");
  Weights(context).vector("weight", 1);
  return std::make_unique<HashModel>(max_len > 0 ? max_len : positions);
}

const ModelFamily family{.name = "simulated", .architectures = {"SimulatedForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

// The character that stands for a byte in byte-level vocabularies (GPT-2).
std::string symbol(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

Json tokenizer_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[symbol(byte)] = byte;
  const Json end = {{"id", kEndToken}, {"content", "<end>"},  {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false}, {"special", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"vocab", vocabulary},
            {"merges", Json::array()}}}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  CHECK(out.good(), "{}", path);
}

}  // namespace

Answer answer_to(std::span<const TokenId> prompt, int most, bool past_end) {
  uint64_t state = 0;
  for (const TokenId token : prompt) state = extend(state, token);
  Answer out;
  while (out.tokens < most && !out.ended) {
    const TokenId token = next_token(state);
    ++out.tokens;
    if (token != kEndToken) out.text += static_cast<char>(token);
    out.ended = token == kEndToken && !past_end;
    state = extend(state, token);
  }
  return out;
}

void write_model_files(const std::string& folder, int max_positions) {
  write(folder + "/config.json", dump_json({{"architectures", {"SimulatedForCausalLM"}},
                                            {"max_position_embeddings", max_positions},
                                            {"vocab_size", kVocabulary},
                                            {"torch_dtype", "float32"},
                                            {"eos_token_id", kEndToken}}));
  write(folder + "/generation_config.json", dump_json({{"eos_token_id", kEndToken}}));
  write(folder + "/tokenizer.json", dump_json(tokenizer_json()));
  write(folder + "/tokenizer_config.json",
        dump_json({{"eos_token", "<end>"},
                   {"chat_template",
                    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}|{% endfor %}"
                    "{% if add_generation_prompt %}>{% endif %}"}}));
  float one = 1;
  const NamedTensor weight{.name = "weight", .tensor = Tensor(reinterpret_cast<std::byte*>(&one), &kFloat32, {1})};
  write_safetensors(folder + "/model.safetensors", std::span(&weight, 1));
}

void set_pace(const Pace& p) { pace = p; }

}  // namespace sluice::simulation
