// The "decoder" of tokenizer.json as a chain of streaming stages. Decoding a whole sequence and decoding token by token
// run the same code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/files/json_field.h"

namespace sluice::tokenizer {

// One stage of a running decoding. Decoders operate on a list of strings, initially the tokens. A string may arrive in
// fragments, because Fuse joins all strings into one.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void fragment(std::string_view text) = 0;
  virtual void end_string() = 0;
  virtual void finish() = 0;  // the list is complete
};

// One decoder of the chain. Immutable.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  // Creates a stage at the start of a list that passes its output to `next`. The step and `next` must outlive the
  // stage.
  virtual std::unique_ptr<DecodeStage> start(DecodeStage& next) const = 0;
  // Transforms a token from the middle of a list, as bytes. Steps that only join strings leave it unchanged.
  virtual void apply_to_one(std::string& token) const = 0;
};

// A running decoding.
class Decoding {
 public:
  explicit Decoding(const std::vector<std::unique_ptr<DecodeStep>>& steps);
  void push(std::string_view token);
  void finish();
  // Returns the text produced since the last call.
  std::string take();

 private:
  class Sink final : public DecodeStage {
   public:
    void fragment(std::string_view text) override { out += text; }
    void end_string() override {}
    void finish() override {}
    std::string out;
  };
  std::unique_ptr<Sink> sink_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // the last stage of the chain comes first
};

class Decoder {
 public:
  // Without a field, tokens are joined with spaces. Throws Error(kUnsupportedModel) that names an unknown type.
  explicit Decoder(const std::optional<Field>& field);

  Decoding start() const { return Decoding(steps_); }
  std::string bytes_of(std::string_view token) const;

 private:
  void load(const Field& field);

  std::vector<std::unique_ptr<DecodeStep>> steps_;
};

}  // namespace sluice::tokenizer
