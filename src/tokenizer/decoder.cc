// Implements the decoders of tokenizer.json. Each decoder has a step (its configuration) and a stage (its state).
#include "tokenizer/decoder.h"

#include <algorithm>
#include <array>

#include "tokenizer/byte_level.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

// A step whose stage is Stage(const Step&, DecodeStage& next).
template <class Step, class Stage>
class StepOf : public DecodeStep {
 public:
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override {
    return std::make_unique<Stage>(static_cast<const Step&>(*this), next);
  }
};

// A stage that passes on whole strings. It collects the pieces of `fragment` first.
template <class Step>
class WholeStringStage : public DecodeStage {
 public:
  WholeStringStage(const Step& step, DecodeStage& next) : step_(step), next_(next) {}
  void fragment(std::string_view text) final { string_ += text; }
  void end_string() final {
    string(string_);
    string_.clear();
  }
  void finish() override { next_.finish(); }

 protected:
  virtual void string(std::string& text) = 0;
  void emit(std::string_view text) {
    next_.fragment(text);
    next_.end_string();
  }

  const Step& step_;
  DecodeStage& next_;

 private:
  std::string string_;
};

std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  if (what.empty()) return std::string(text);
  std::string out;
  size_t copied = 0;
  for (size_t at; (at = text.find(what, copied)) != std::string_view::npos; copied = at + what.size()) {
    out += text.substr(copied, at - copied);
    out += by;
  }
  return out += text.substr(copied);
}

std::string behind_space(std::string_view text) {
  std::string out(1, ' ');
  return out += text;
}

// Used when there is no decoder: joins tokens with spaces.
struct JoinStep;
class JoinStage final : public DecodeStage {
 public:
  JoinStage(const JoinStep&, DecodeStage& next) : next_(next) {}
  void fragment(std::string_view text) override {
    if (ended_) next_.fragment(" ");
    ended_ = false;
    next_.fragment(text);
  }
  void end_string() override { ended_ = true; }
  void finish() override {
    next_.end_string();
    next_.finish();
  }

 private:
  DecodeStage& next_;
  bool ended_ = false;  // a string has ended and the next has not begun
};
struct JoinStep final : StepOf<JoinStep, JoinStage> {
  void apply_to_one(std::string& token) const override { token = behind_space(token); }
};

struct FuseStep;
class FuseStage final : public DecodeStage {
 public:
  FuseStage(const FuseStep&, DecodeStage& next) : next_(next) {}
  void fragment(std::string_view text) override { next_.fragment(text); }
  void end_string() override {}
  void finish() override {
    next_.end_string();
    next_.finish();
  }

 private:
  DecodeStage& next_;
};
struct FuseStep final : StepOf<FuseStep, FuseStage> {
  explicit FuseStep(const Field&) {}
  void apply_to_one(std::string&) const override {}
};

// Decodes the byte-level alphabet and joins all strings. A string with other characters stays unchanged.
struct ByteLevelStep;
class ByteLevelStage final : public WholeStringStage<ByteLevelStep> {
 public:
  using WholeStringStage::WholeStringStage;
  void string(std::string& text) override {
    std::string out;
    const auto bytes = byte_level_bytes(text);
    utf8_.push(bytes ? *bytes : text, out);
    if (!out.empty()) next_.fragment(out);
  }
  void finish() override {
    std::string out;
    utf8_.finish(out);
    next_.fragment(out);
    next_.end_string();
    next_.finish();
  }

 private:
  LossyUtf8 utf8_;
};
struct ByteLevelStep final : StepOf<ByteLevelStep, ByteLevelStage> {
  explicit ByteLevelStep(const Field&) {}
  void apply_to_one(std::string& token) const override {
    if (auto bytes = byte_level_bytes(token)) token = *std::move(bytes);
  }
};

// "<0xE4>" is a byte. A run of bytes becomes text if all of it is UTF-8, otherwise one U+FFFD per byte. This is known
// only at the end of the run.
struct ByteFallbackStep;
class ByteFallbackStage final : public WholeStringStage<ByteFallbackStep> {
 public:
  using WholeStringStage::WholeStringStage;
  void string(std::string& text) override;
  void finish() override {
    flush();
    next_.finish();
  }

 private:
  void flush() {
    if (valid_utf8_prefix(run_) == run_.size()) {
      if (!run_.empty()) emit(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) emit(kReplacementCharacter);
    }
    run_.clear();
  }
  std::string run_;
};
struct ByteFallbackStep final : StepOf<ByteFallbackStep, ByteFallbackStage> {
  explicit ByteFallbackStep(const Field&) {}
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    return static_cast<char>(value);
  }
  void apply_to_one(std::string& token) const override {
    if (const auto byte = byte_of(token)) token.assign(1, *byte);
  }
};
void ByteFallbackStage::string(std::string& text) {
  if (const auto byte = ByteFallbackStep::byte_of(text)) {
    run_.push_back(*byte);
    return;
  }
  flush();
  emit(text);
}

// Removes up to `start` characters `content` from the start of each string, and up to `stop` from its end.
struct StripStep;
class StripStage final : public DecodeStage {
 public:
  StripStage(const StripStep& step, DecodeStage& next);
  void fragment(std::string_view text) override;
  void end_string() override;
  void finish() override { next_.finish(); }

 private:
  const StripStep& step_;
  DecodeStage& next_;
  int64_t front_;     // characters still to remove at the start
  int64_t held_ = 0;  // trailing characters that may still be removed
};
struct StripStep final : StepOf<StripStep, StripStage> {
  explicit StripStep(const Field& field)
      : front(field.at("start").integer(0, INT64_MAX)), end(field.at("stop").integer(0, INT64_MAX)) {
    append_utf8(content, field.at("content").character());
  }
  void apply_to_one(std::string&) const override {}  // only affects the ends of a text, not an inner token
  std::string content;
  int64_t front, end;
};
StripStage::StripStage(const StripStep& step, DecodeStage& next) : step_(step), next_(next), front_(step.front) {}
void StripStage::fragment(std::string_view text) {
  while (front_ > 0 && text.starts_with(step_.content)) {
    text.remove_prefix(step_.content.size());
    --front_;
  }
  if (text.empty()) return;
  front_ = 0;
  if (step_.end == 0) return next_.fragment(text);
  int64_t trailing = 0;
  for (; text.ends_with(step_.content); ++trailing) text.remove_suffix(step_.content.size());
  if (!text.empty()) {
    for (; held_ > 0; --held_) next_.fragment(step_.content);
    next_.fragment(text);
  }
  for (held_ += trailing; held_ > step_.end; --held_) next_.fragment(step_.content);
}
void StripStage::end_string() {
  front_ = step_.front;
  held_ = 0;
  next_.end_string();
}

// Replaces the replacement character with a space, or with nothing in the first string.
struct MetaspaceStep;
class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(const MetaspaceStep& step, DecodeStage& next) : step_(step), next_(next) {}
  void fragment(std::string_view text) override;
  void end_string() override {
    first_ = false;
    next_.end_string();
  }
  void finish() override { next_.finish(); }

 private:
  const MetaspaceStep& step_;
  DecodeStage& next_;
  bool first_ = true;
};
struct MetaspaceStep final : StepOf<MetaspaceStep, MetaspaceStage> {
  explicit MetaspaceStep(const Field& field) {
    append_utf8(replacement, field.at("replacement").character());
    const auto scheme = field.find("prepend_scheme");
    prepends = scheme ? scheme->string() != "never" : field.boolean_or("add_prefix_space", true);
  }
  void apply_to_one(std::string& token) const override { token = replace_all(token, replacement, " "); }
  std::string replacement;
  bool prepends;
};
void MetaspaceStage::fragment(std::string_view text) {
  next_.fragment(replace_all(text, step_.replacement, first_ && step_.prepends ? "" : " "));
}

// Replaces a literal while the string arrives. It holds back text that may be the start of a match.
struct ReplaceLiteralStep;
class ReplaceLiteralStage final : public DecodeStage {
 public:
  ReplaceLiteralStage(const ReplaceLiteralStep& step, DecodeStage& next) : step_(step), next_(next) {}
  void fragment(std::string_view text) override;
  void end_string() override {
    next_.fragment(held_);
    held_.clear();
    next_.end_string();
  }
  void finish() override { next_.finish(); }

 private:
  const ReplaceLiteralStep& step_;
  DecodeStage& next_;
  std::string held_;
};
struct ReplaceLiteralStep final : StepOf<ReplaceLiteralStep, ReplaceLiteralStage> {
  ReplaceLiteralStep(std::string literal, std::string content)
      : literal(std::move(literal)), content(std::move(content)) {}
  void apply_to_one(std::string& token) const override { token = replace_all(token, literal, content); }
  std::string literal, content;
};
void ReplaceLiteralStage::fragment(std::string_view text) {
  const std::string_view literal = step_.literal;
  held_ += text;
  size_t done = 0;
  for (size_t at; (at = held_.find(literal, done)) != std::string::npos; done = at + literal.size()) {
    next_.fragment(std::string_view(held_).substr(done, at - done));
    next_.fragment(step_.content);
  }
  const std::string_view rest = std::string_view(held_).substr(done);
  size_t keep = std::min(literal.size() - 1, rest.size());
  while (keep > 0 && !literal.starts_with(rest.substr(rest.size() - keep))) --keep;
  next_.fragment(rest.substr(0, rest.size() - keep));
  held_ = std::string(rest.substr(rest.size() - keep));
}

struct ReplaceRegexStep;
class ReplaceRegexStage final : public WholeStringStage<ReplaceRegexStep> {
 public:
  using WholeStringStage::WholeStringStage;
  void string(std::string& text) override;
};
struct ReplaceRegexStep final : StepOf<ReplaceRegexStep, ReplaceRegexStage> {
  ReplaceRegexStep(Pattern pattern, std::string content) : pattern(std::move(pattern)), content(std::move(content)) {}
  void apply_to_one(std::string& token) const override { token = pattern.replace(token, content); }
  Pattern pattern;
  std::string content;
};
void ReplaceRegexStage::string(std::string& text) { emit(step_.pattern.replace(text, step_.content)); }

std::unique_ptr<DecodeStep> load_replace(const Field& field) {
  Pattern pattern(field.at("pattern"));
  std::string content(field.at("content").string());
  if (const std::string* literal = pattern.literal()) {
    return std::make_unique<ReplaceLiteralStep>(*literal, std::move(content));
  }
  return std::make_unique<ReplaceRegexStep>(std::move(pattern), std::move(content));
}

// The clean-up of English spacing used by WordPiece and CTC.
std::string clean_up(std::string text) {
  constexpr auto kRules = std::to_array<std::array<std::string_view, 2>>({{" .", "."},
                                                                          {" ?", "?"},
                                                                          {" !", "!"},
                                                                          {" ,", ","},
                                                                          {" ' ", "'"},
                                                                          {" n't", "n't"},
                                                                          {" 'm", "'m"},
                                                                          {" do not", " don't"},
                                                                          {" 's", "'s"},
                                                                          {" 've", "'ve"},
                                                                          {" 're", "'re"}});
  for (const auto& [what, by] : kRules) text = replace_all(text, what, by);
  return text;
}

// A string starts a new word unless it begins with the prefix.
struct WordPieceStep;
class WordPieceStage final : public WholeStringStage<WordPieceStep> {
 public:
  using WholeStringStage::WholeStringStage;
  void string(std::string& text) override;

 private:
  bool first_ = true;
};
struct WordPieceStep final : StepOf<WordPieceStep, WordPieceStage> {
  explicit WordPieceStep(const Field& field)
      : prefix(field.at("prefix").string()), cleanup(field.at("cleanup").boolean()) {}
  std::string decode(std::string text, bool first) const {
    if (!first) text = text.starts_with(prefix) ? text.substr(prefix.size()) : behind_space(text);
    return cleanup ? clean_up(std::move(text)) : text;
  }
  void apply_to_one(std::string& token) const override { token = decode(std::move(token), false); }
  std::string prefix;
  bool cleanup;
};
void WordPieceStage::string(std::string& text) {
  emit(step_.decode(text, first_));
  first_ = false;
}

// Replaces the suffix with a space, or with nothing in the last string. So each string waits for the next one.
struct BpeStep;
class BpeStage final : public WholeStringStage<BpeStep> {
 public:
  using WholeStringStage::WholeStringStage;
  void string(std::string& text) override;
  void finish() override;

 private:
  std::optional<std::string> waiting_;
};
struct BpeStep final : StepOf<BpeStep, BpeStage> {
  explicit BpeStep(const Field& field) : suffix(field.at("suffix").string()) {}
  void apply_to_one(std::string& token) const override { token = replace_all(token, suffix, " "); }
  std::string suffix;
};
void BpeStage::string(std::string& text) {
  if (waiting_) emit(replace_all(*waiting_, step_.suffix, " "));
  waiting_ = text;
}
void BpeStage::finish() {
  if (waiting_) emit(replace_all(*waiting_, step_.suffix, ""));
  next_.finish();
}

// CTC for speech: repeated strings count once, padding is dropped.
struct CtcStep;
class CtcStage final : public WholeStringStage<CtcStep> {
 public:
  using WholeStringStage::WholeStringStage;
  void string(std::string& text) override;

 private:
  std::optional<std::string> previous_;
};
struct CtcStep final : StepOf<CtcStep, CtcStage> {
  explicit CtcStep(const Field& field)
      : pad(field.at("pad_token").string()),
        delimiter(field.at("word_delimiter_token").string()),
        cleanup(field.at("cleanup").boolean()) {}
  void apply_to_one(std::string& token) const override {
    token = replace_all(token, pad, "");
    if (cleanup) token = replace_all(clean_up(std::move(token)), delimiter, " ");
  }
  std::string pad, delimiter;
  bool cleanup;
};
void CtcStage::string(std::string& text) {
  if (previous_ == text) return;
  previous_ = text;
  step_.apply_to_one(text);
  if (!text.empty()) emit(text);
}

template <class T>
std::unique_ptr<DecodeStep> configured(const Field& field) {
  return std::make_unique<T>(field);
}

struct DecoderType {
  std::string_view name;
  std::unique_ptr<DecodeStep> (*load)(const Field&);
};
constexpr auto kDecoders = std::to_array<DecoderType>({
    {"BPEDecoder", configured<BpeStep>},
    {"ByteFallback", configured<ByteFallbackStep>},
    {"ByteLevel", configured<ByteLevelStep>},
    {"CTC", configured<CtcStep>},
    {"Fuse", configured<FuseStep>},
    {"Metaspace", configured<MetaspaceStep>},
    {"Replace", load_replace},
    {"Strip", configured<StripStep>},
    {"WordPiece", configured<WordPieceStep>},
});

}  // namespace

Decoder::Decoder(const std::optional<Field>& field) {
  if (field) {
    load(*field);
  } else {
    steps_.push_back(std::make_unique<JoinStep>());
  }
}

void Decoder::load(const Field& field) {
  const Field type = field.at("type");
  if (type.string() == "Sequence") {
    field.at("decoders").for_each([&](const Field& step) { load(step); });
    return;
  }
  const auto* known =
      std::find_if(kDecoders.begin(), kDecoders.end(), [&](const DecoderType& t) { return t.name == type.string(); });
  if (known == kDecoders.end()) type.unsupported(fmt::format("unknown decoder \"{}\"", type.string()));
  steps_.push_back(known->load(field));
}

std::string Decoder::bytes_of(std::string_view token) const {
  std::string bytes(token);
  for (const auto& step : steps_) {
    step->apply_to_one(bytes);
    if (valid_utf8_prefix(bytes) != bytes.size()) break;  // an incomplete character, which later steps do not change
  }
  return bytes;
}

Decoding::Decoding(const std::vector<std::unique_ptr<DecodeStep>>& steps) : sink_(std::make_unique<Sink>()) {
  DecodeStage* next = sink_.get();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    stages_.push_back((*step)->start(*next));
    next = stages_.back().get();
  }
}

void Decoding::push(std::string_view token) {
  DecodeStage& first = stages_.empty() ? *sink_ : *stages_.back();
  first.fragment(token);
  first.end_string();
}

void Decoding::finish() { (stages_.empty() ? static_cast<DecodeStage&>(*sink_) : *stages_.back()).finish(); }

std::string Decoding::take() { return std::exchange(sink_->out, {}); }

}  // namespace sluice::tokenizer
