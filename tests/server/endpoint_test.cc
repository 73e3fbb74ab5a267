// An endpoint and a dialect are one file: this one adds both, and nothing else knows of them.
#include "server/endpoint.h"

#include "server/server_fixture.h"

namespace sluice::server::endpoint_test {
namespace {

const Dialect kPlain{.name = "test-plain", .error_body = [](const ApiError& error) {
                       return dump_json({{"oops", error.message}});
                     }};
const Registry<Dialect> registered_dialect{kPlain};

struct NoteFields {
  std::string text;
  int times = 1;
};

constexpr Parameter kParameters[] = {{.name = "text",
                                      .type = Parameter::Type::kString,
                                      .max_bytes = 16,
                                      .required = true,
                                      .fallback = "required",
                                      .help = "what to repeat",
                                      .set = assign<&NoteFields::text>},
                                     {.name = "times",
                                      .type = Parameter::Type::kInteger,
                                      .min = 1,
                                      .max = 3,
                                      .fallback = "1",
                                      .help = "how often",
                                      .set = assign<&NoteFields::times>}};

const EndpointInfo kPut{.name = "test-put",
                        .dialect = &kPlain,
                        .method = "PUT",
                        .paths = {"/test/notes"},
                        .help = "repeats a text",
                        .parameters = {kParameters},
                        .run = [](Call& call) {
                          const auto& fields = call.fields.of<NoteFields>();
                          std::string out;
                          for (int i = 0; i < fields.times; ++i) out += fields.text;
                          call.send({.body = dump_json({{"note", out}}), .headers = call.warnings()});
                        }};
const EndpointInfo kDelete{.name = "test-delete",
                           .dialect = &kPlain,
                           .method = "DELETE",
                           .paths = {"/test/notes/*"},
                           .help = "deletes nothing",
                           .run = [](Call& call) {
                             if (call.suffix == "none") throw ApiError{.status = 404, .message = "no such note"};
                             call.send({.body = dump_json({{"deleted", call.suffix}})});
                           }};
const Registry<EndpointInfo> registered_put{kPut}, registered_delete{kDelete};

class Endpoints : public ServerTest {
 protected:
  TestResponse put(std::string_view body, std::string_view headers = "Content-Type: application/json\r\n") {
    return send(fmt::format("PUT /test/notes HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{}\r\n{}",
                            body.size(), headers, body));
  }
};

TEST_F(Endpoints, AreAddedByTheirOwnFile) {
  EXPECT_EQ(put(R"({"text":"ab","times":2})").body, R"({"note":"abab"})");
  EXPECT_EQ(put(R"({"text":"ab","other":2})").headers.at("x-sluice-warning"), "unknown fields ignored: other");
  EXPECT_EQ(send(get_text("/test/notes/a%20b", "", "DELETE")).body, R"({"deleted":"a b"})");
  EXPECT_NE(get("/routes").body.find("/test/notes"), std::string::npos);
}

TEST_F(Endpoints, ErrorsAreInTheirDialect) {
  EXPECT_EQ(put("{}").body, R"({"oops":"Missing required parameter: 'text'."})");
  EXPECT_EQ(put(R"({"text":"ab","times":4})").status, 400);
  EXPECT_TRUE(put("{").body.starts_with(R"({"oops":"We could not parse)"));
  EXPECT_EQ(put("{}", "").body, R"({"oops":"The Content-Type of the request must be application/json."})");
  EXPECT_EQ(send(get_text("/test/notes/none", "", "DELETE")).body, R"({"oops":"no such note"})");
  // Requests that match no route get the default dialect's errors.
  expect_error(get("/test/nothing"), 404, "", "unknown_url");
}

TEST_F(Endpoints, RefusalsOfKeysAreInTheirDialect) {
  options.api_key = {"secret"};
  const TestResponse response = put(R"({"text":"ab"})");
  EXPECT_EQ(response.status, 401);
  EXPECT_TRUE(response.json().contains("oops")) << response.body;
}

}  // namespace
}  // namespace sluice::server::endpoint_test
