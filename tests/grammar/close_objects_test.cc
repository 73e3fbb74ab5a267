// Schemas whose objects are closed: what they allow, and which ones stay open.
#include <gtest/gtest.h>

#include "grammar/json_schema/close.h"

namespace sluice::grammar::close_objects_test {
namespace {

TEST(CloseObjects, DeclaredObjectsGetNoOtherProperties) {
  const Json schema = parse_json(R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/d"}, "b": {"items":
      {"properties": {"c": {}}}}, "e": {"anyOf": [{"properties": {"f": {}}}, {"type": "null"}]}},
      "$defs": {"d": {"properties": {"x": {}}, "required": ["x"]}}})");
  const Json closed = close_objects(schema);
  EXPECT_EQ(closed["additionalProperties"], false);
  EXPECT_EQ(closed["$defs"]["d"]["additionalProperties"], false);
  EXPECT_EQ(closed["properties"]["b"]["items"]["additionalProperties"], false);
  EXPECT_EQ(closed["properties"]["e"]["anyOf"][0]["additionalProperties"], false);
  EXPECT_FALSE(closed["properties"]["a"].contains("additionalProperties"));
}

TEST(CloseObjects, WhatIsSaidOfOtherPropertiesStays) {
  for (const char* text :
       {R"({"properties": {"a": {}}, "additionalProperties": true})", R"({"type": "object"})", "true",
        R"({"properties": {"a": {}}, "required": ["b"]})", R"({"const": {"properties": {"a": 1}}})"}) {
    EXPECT_EQ(close_objects(parse_json(text)), parse_json(text)) << text;
  }
}

// Closed alternatives of oneOf would match texts that the open ones forbid; closed parts of allOf match nothing.
TEST(CloseObjects, ComposedSchemasStayOpen) {
  for (const char* text :
       {R"({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})",
        R"({"properties": {"x": {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}}})",
        R"({"properties": {"a": {}}, "not": {"required": ["b"]}})",
        R"({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}, {"required": ["a"]}]})",
        R"({"properties": {"a": {}}, "$ref": "#/$defs/d", "$defs": {"d": {}}})"}) {
    EXPECT_EQ(close_objects(parse_json(text)), parse_json(text)) << text;
  }
}

}  // namespace
}  // namespace sluice::grammar::close_objects_test
