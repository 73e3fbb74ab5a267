// Parses JSON with a SAX handler that builds nlohmann values in linear time: ordered_json's own insertion scans all
// keys.
#include "base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "sluice/error.h"

namespace sluice {
namespace {

class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool v) override { return add(Json(v)); }
  bool number_integer(number_integer_t v) override { return add(Json(v)); }
  bool number_unsigned(number_unsigned_t v) override { return add(Json(v)); }
  bool number_float(number_float_t v, const string_t&) override { return add(Json(v)); }
  bool string(string_t& v) override { return count(kAllocated) && add(Json(std::move(v))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& k) override {
    if (!count(kKey)) return false;
    keys_.push_back(std::move(k));
    return true;
  }

  bool end_object() override {
    const auto& members = stack_.back().get_ref<const Json::object_t&>();
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const auto& member : members) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) return fail(fmt::format("duplicate key \"{}\"", std::string(twice->substr(0, 64))));
    return close();
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    constexpr int kOutOfRange = 406;  // nlohmann's number for a number that fp64 cannot hold
    if (e.id == kOutOfRange) return fail(fmt::format("number beyond the range of 64-bit floats (byte {})", position));
    // Format of nlohmann's message: "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error
    // while ..."
    std::string_view what = e.what();
    if (const size_t at = what.find(": "); at != std::string_view::npos) what.remove_prefix(at + 2);
    return fail(fmt::format("{} (byte {})", what, position));
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  // What a value costs beyond a number, in units of a number's memory.
  static constexpr size_t kAllocated = 3;  // an allocation, and its allocator's part
  static constexpr size_t kKey = 2;        // lies beside the value

  bool count(size_t values) {
    values_ += values;
    return values_ <= limits_.values || fail(fmt::format("more than {} values", limits_.values));
  }

  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= limits_.depth) {
      return fail(fmt::format("nested deeper than {} levels", limits_.depth));
    }
    if (!count(kAllocated)) return false;
    stack_.push_back(std::move(container));
    return true;
  }

  bool close() {
    Json done = std::move(stack_.back());
    stack_.pop_back();
    return add(std::move(done));
  }

  bool add(Json value) {
    if (!count(1)) return false;
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().is_array()) {
      stack_.back().get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      // ordered_map is a vector of pairs. Appending to the vector skips the scan for an equal key (see end_object).
      using Members = std::vector<std::pair<const std::string, Json>, Json::object_t::allocator_type>;
      auto& members = static_cast<Members&>(stack_.back().get_ref<Json::object_t&>());
      members.emplace_back(std::move(keys_.back()), std::move(value));
      keys_.pop_back();
    }
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json> stack_;
  std::vector<std::string> keys_;  // keys of the members whose values are being read
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  if (!Json::sax_parse(text, &builder, Json::input_format_t::json, /*strict=*/true)) {
    throw Error(ErrorCode::kInvalidRequest, builder.error().empty() ? "not JSON" : builder.error());
  }
  return builder.take();
}

Json read_json_file(const std::string& path, const JsonLimits& limits) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: cannot open file", path));
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: cannot read file", path));
  try {
    return parse_json(std::move(text).str(), limits);
  } catch (const Error& e) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", path, e.what()));
  }
}

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace sluice
