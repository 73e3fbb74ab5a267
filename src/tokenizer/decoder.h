// The "decoder" of tokenizer.json as a chain of streaming stages: decoding a whole sequence and decoding it token by
// token run the same code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/files/json_field.h"

namespace sluice::tokenizer {

// A stage of one running decoding. What decoders see is a list of strings, first the tokens; a string may come in
// fragments, because Fuse joins all strings into one.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void fragment(std::string_view text) = 0;
  virtual void end_string() = 0;
  virtual void finish() = 0;  // the list is complete
};

// One decoder of the chain, immutable.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  // A stage at the begin of a list that hands on to `next`. Both this and `next` outlive the stage.
  virtual std::unique_ptr<DecodeStage> start(DecodeStage& next) const = 0;
  // What becomes of a token somewhere inside of a list, as bytes. Steps that only join strings leave it alone.
  virtual void apply_to_one(std::string& token) const = 0;
};

// A decoding in progress.
class Decoding {
 public:
  explicit Decoding(const std::vector<std::unique_ptr<DecodeStep>>& steps);
  void push(std::string_view token);
  void finish();
  // The text that has come out since the last call.
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
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // the last of the chain first
};

class Decoder {
 public:
  // Without a field tokens are joined by spaces. Error(kUnsupportedModel) names an unknown type.
  explicit Decoder(const std::optional<Field>& field);

  Decoding start() const { return Decoding(steps_); }
  std::string bytes_of(std::string_view token) const;

 private:
  void load(const Field& field);

  std::vector<std::unique_ptr<DecodeStep>> steps_;
};

}  // namespace sluice::tokenizer
