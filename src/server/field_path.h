// Names a field inside a request, for errors: "messages[2].content". The text is made only when it is asked for, so
// that a check of a million elements formats nothing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::server {

// A path refers to its parent and to its key: both must outlive it. Only a named path has children.
class FieldPath {
 public:
  FieldPath(std::string_view name) : key_(name) {}    // NOLINT(google-explicit-constructor): a name is a path
  FieldPath(const char* name) : key_(name) {}         // NOLINT(google-explicit-constructor)
  FieldPath(const std::string& name) : key_(name) {}  // NOLINT(google-explicit-constructor)
  FieldPath(std::string&&) = delete;

  FieldPath operator[](size_t index) const& { return FieldPath(this, {}, index); }          // "path[3]"
  FieldPath operator/(std::string_view key) const& { return FieldPath(this, key, kNone); }  // "path.key"
  FieldPath operator[](size_t index) const&& = delete;
  FieldPath operator/(std::string_view key) const&& = delete;

  std::string str() const;
  operator std::string() const { return str(); }  // NOLINT(google-explicit-constructor): errors take texts

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  FieldPath(const FieldPath* parent, std::string_view key, size_t index) : parent_(parent), key_(key), index_(index) {}

  const FieldPath* parent_ = nullptr;
  std::string_view key_;
  size_t index_ = kNone;
};

// The first names of fields that nothing knows; the others are only counted.
class UnknownFields {
 public:
  static constexpr size_t kMostNames = 8;

  void add(const FieldPath& path) {
    if (names_.size() < kMostNames) names_.push_back(path.str());
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  bool more() const { return count_ > names_.size(); }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  size_t count_ = 0;
};

}  // namespace sluice::server
