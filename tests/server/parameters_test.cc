// Fields of all endpoints: every row is documented, and no field of a request is unbounded.
#include "server/endpoint.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>

#include "server/errors.h"

namespace sluice::server::parameters_test {
namespace {

using Type = Parameter::Type;

constexpr int kVocab = 1000;

const std::vector<const EndpointInfo*>& endpoints() { return Registry<EndpointInfo>::all(); }

TEST(Parameters, EveryRowIsDocumented) {
  const std::string text = parameters_markdown();
  EXPECT_GE(endpoints().size(), 9u);
  for (const EndpointInfo* endpoint : endpoints()) {
    ASSERT_FALSE(endpoint->paths.empty() && endpoint->shared.empty()) << endpoint->name;
    const std::string_view path = endpoint->paths.empty() ? endpoint->shared[0].path : endpoint->paths[0];
    EXPECT_NE(text.find(fmt::format("- {}: {} `{}`", endpoint->name, endpoint->method, path)), std::string::npos);
    for (const std::span<const Parameter> group : endpoint->parameters) {
      for (const Parameter& row : group) {
        EXPECT_NE(text.find(fmt::format("- `{}`", row.name)), std::string::npos) << row.name;
        if (row.type == Type::kUnsupported) continue;
        EXPECT_FALSE(row.help.empty()) << row.name;
        EXPECT_FALSE(row.fallback.empty()) << row.name;
      }
    }
  }
}

TEST(Parameters, ASharedPathHasAnOwnerThatReadsBodies) {
  for (const EndpointInfo* endpoint : endpoints()) {
    for (const SharedPath& shared : endpoint->shared) {
      const PathEndpoints all = endpoints_at(endpoint->method, shared.path);
      ASSERT_NE(all.owner, nullptr) << shared.path;
      EXPECT_NE(all.owner, endpoint) << shared.path;
      EXPECT_FALSE(all.owner->parameters.empty()) << shared.path;
      EXPECT_EQ(all.owner->flags, endpoint->flags) << shared.path << ' ' << endpoint->name;
    }
  }
}

TEST(Parameters, AnEndpointHasAFieldOnce) {
  for (const EndpointInfo* endpoint : endpoints()) {
    std::set<std::string_view> names;
    for (const std::span<const Parameter> group : endpoint->parameters) {
      for (const Parameter& row : group) {
        EXPECT_TRUE(names.insert(row.name).second) << endpoint->name << " has '" << row.name << "' twice";
      }
    }
  }
}

// Calls use(value) for values just above the row's limits, which may be large. None: the field has no limit, or needs
// none.
template <class Use>
void each_oversized(const Parameter& row, Use use) {
  const size_t items = row.max_items == Parameter::kVocabulary ? kVocab : row.max_items;
  const bool bytes = row.max_bytes > 0;
  const auto text = [&] { return Json(std::string(row.max_bytes + 1, 'a')); };
  const auto list = [](Json one) {
    Json all = Json::array();
    all.push_back(std::move(one));
    return all;
  };
  const auto object = [](Json one) {
    Json all = Json::object();
    all["a"] = std::move(one);
    return all;
  };
  switch (row.type) {
    case Type::kString:
      if (bytes) use(text());
      break;
    case Type::kObject:
      if (bytes) use(object(text()));
      break;
    case Type::kArray:
      if (bytes) use(list(text()));
      break;
    case Type::kStrings:
      if (!bytes) break;
      use(text());
      use(list(text()));
      if (items > 0) use(Json(std::vector<std::string>(items + 1, "a")));
      break;
    case Type::kAny:
      if (!bytes) break;
      use(text());
      use(list(text()));
      use(object(text()));
      break;
    case Type::kTokenIds:
      if (items > 0) use(Json(std::vector<int>(items + 1, 0)));
      break;
    case Type::kTokenBias:
      if (items > 0) {
        Json bias = Json::object();
        for (size_t i = 0; i <= items; ++i) bias[std::to_string(i)] = 0;
        use(std::move(bias));
      }
      break;
    case Type::kBoolean:
    case Type::kInteger:
    case Type::kNumber:
    case Type::kUnsupported:
      break;
  }
}

bool is_scalar(Type type) {
  return type == Type::kBoolean || type == Type::kInteger || type == Type::kNumber || type == Type::kUnsupported;
}

// A row that several endpoints share is read once: reading depends on the row alone.
TEST(Parameters, NoFieldIsUnbounded) {
  std::set<const Parameter*> read;
  for (const EndpointInfo* endpoint : endpoints()) {
    for (const std::span<const Parameter> group : endpoint->parameters) {
      for (const Parameter& row : group) {
        if (!read.insert(&row).second) continue;
        int values = 0;
        each_oversized(row, [&](Json value) {
          ++values;
          Fields fields;
          UnknownFields unknown;
          Json body = Json::object();
          body[std::string(row.name)] = std::move(value);
          try {
            read_parameters(endpoint->parameters, body, kVocab, fields, unknown);
            ADD_FAILURE() << row.name << " took " << dump_json(body).size() << " bytes";
          } catch (const ApiError& e) {
            EXPECT_TRUE(e.code.ends_with("_above_max_length") || e.code.ends_with("_above_max_size"))
                << row.name << ": " << e.message;
            EXPECT_EQ(e.param, row.name);
          }
        });
        EXPECT_TRUE(is_scalar(row.type) || values > 0) << row.name << " has no limit";
      }
    }
  }
}

TEST(Parameters, JsonBytesStopAtTheLimit) {
  EXPECT_EQ(json_bytes(Json::object(), 100), 2u);
  const Json value = {{"a", {1, 2.5, nullptr, "x"}}, {"b", true}};
  EXPECT_GE(json_bytes(value, 1000), dump_json(value).size());
  EXPECT_LE(json_bytes(value, 1000), dump_json(value).size() + 4);
  const Json many = std::vector<int>(1'000'000, 0);
  EXPECT_LT(json_bytes(many, 100), 200u);
}

TEST(Parameters, PathsAreText) {
  const FieldPath root = "messages";
  const FieldPath item = root[2];
  const FieldPath field = item / "content";
  EXPECT_EQ(root.str(), "messages");
  EXPECT_EQ(field.str(), "messages[2].content");
  UnknownFields unknown;
  for (int i = 0; i < 10; ++i) unknown.add(field);
  EXPECT_EQ(unknown.names().size(), UnknownFields::kMostNames);
  EXPECT_TRUE(unknown.more());
}

}  // namespace
}  // namespace sluice::server::parameters_test
