// Options from a YAML file, read with yaml-cpp; see config_file.h.
#include "cli/config_file.h"

#include <fmt/core.h>
#include <yaml-cpp/yaml.h>

#include "base/json.h"
#include "cli/usage_error.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

constexpr int kMaxDepth = 32;

std::string place_of(const std::string& path, const YAML::Mark& mark) {
  return mark.is_null() ? path : fmt::format("{}:{}", path, mark.line + 1);
}

// A plain scalar is what JSON makes of its text; a quoted one is a string.
Json scalar(const YAML::Node& node) {
  if (node.Tag() == "!") return node.Scalar();
  try {
    return parse_json(node.Scalar());
  } catch (const Error&) {
    return node.Scalar();
  }
}

Json to_json(const YAML::Node& node, int depth) {
  if (depth > kMaxDepth) throw UsageError("is nested too deeply");
  Json out;
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return scalar(node);
    case YAML::NodeType::Sequence:
      out = Json::array();
      for (const YAML::Node& item : node) out.push_back(to_json(item, depth + 1));
      return out;
    case YAML::NodeType::Map:
      out = Json::object();
      for (const auto& item : node) out[item.first.as<std::string>()] = to_json(item.second, depth + 1);
      return out;
    default:
      return nullptr;
  }
}

void add_entry(const std::string& name, const YAML::Node& value, const std::string& place,
               std::vector<ConfigEntry>& out) {
  const auto add = [&](const std::string& text) { out.push_back({fmt::format("--{}={}", name, text), place}); };
  if (value.IsNull()) throw UsageError(fmt::format("{}: {}: has no value", place, name));
  if (value.IsScalar()) return add(value.Scalar());
  if (value.IsMap()) return add(dump_json(to_json(value, 0)));
  for (const YAML::Node& item : value) {
    if (item.IsNull()) throw UsageError(fmt::format("{}: {}: has an empty item", place, name));
    add(item.IsScalar() ? item.Scalar() : dump_json(to_json(item, 0)));
  }
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  std::vector<ConfigEntry> out;
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (root.IsNull()) return out;
    if (!root.IsMap()) throw UsageError(fmt::format("{}: expected a mapping of options to values", path));
    for (const auto& item : root) {
      const std::string place = place_of(path, item.first.Mark());
      if (!item.first.IsScalar()) throw UsageError(fmt::format("{}: expected the name of an option", place));
      std::string name = item.first.Scalar();
      while (name.starts_with('-')) name.erase(0, 1);
      for (const ConfigEntry& other : out) {
        if (other.place != place && other.word.starts_with("--" + name + "=")) {
          throw UsageError(fmt::format("{}: {} is given twice, also at {}", place, name, other.place));
        }
      }
      add_entry(name, item.second, place, out);
    }
  } catch (const YAML::BadFile&) {
    throw UsageError(fmt::format("--config {}: cannot open the file", path));
  } catch (const YAML::Exception& e) {
    throw UsageError(fmt::format("{}: {}", place_of(path, e.mark), e.msg));
  }
  return out;
}

}  // namespace sluice::cli
