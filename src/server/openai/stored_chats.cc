// Stored chat completions: GET /v1/chat/completions lists them; GET, POST and DELETE /v1/chat/completions/ID; GET
// /v1/chat/completions/ID/messages.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "server/endpoint.h"
#include "server/openai/chat_keeper.h"
#include "server/openai/dialect.h"
#include "server/openai/lists.h"
#include "server/openai/metadata.h"
#include "server/store/store.h"

namespace sluice::server::openai::stored_chats {
namespace {

constexpr std::string_view kMessages = "/messages";

ApiError not_found(std::string_view id) {
  return {.status = 404, .message = fmt::format("Chat completion with id '{}' not found.", quotable(id))};
}

// `what`: the rest of the path after the id.
std::string_view id_of(const Call& call, std::string_view what = {}) {
  std::string_view id = call.suffix;
  if (id.ends_with(what)) id.remove_suffix(what.size());
  if (!id.empty() && id.find('/') == std::string_view::npos) return id;
  throw ApiError{.status = 404,
                 .message = fmt::format("Unknown request URL: /v1/chat/completions/{}.", quotable(call.suffix)),
                 .code = "unknown_url"};
}

// The completion with its metadata, which may have changed since.
std::string text_of(const StoredChat& chat) {
  return fmt::format(R"({},"metadata":{}}})", std::string_view(chat.body).substr(0, chat.body.size() - 1),
                     chat.metadata);
}

// List

// "metadata[KEY]" filters by a label.
bool add_filter(ChatQuery& query, std::string_view name, std::string_view value) {
  constexpr std::string_view kStart = "metadata[";
  if (name == "model") {
    query.model = value;
    return true;
  }
  if (!name.starts_with(kStart) || !name.ends_with(']')) return false;
  name.remove_prefix(kStart.size());
  name.remove_suffix(1);
  query.metadata.emplace_back(name, value);
  if (query.metadata.size() <= kMostLabels) return true;
  throw invalid_value("metadata", fmt::format("Invalid 'metadata': expected at most {} labels.", kMostLabels));
}

void list(Call& call) {
  ChatQuery query;
  PageQuery page = read_page_query(
      call, [&](std::string_view name, std::string_view value) { return add_filter(query, name, value); });
  Headers warnings = call.warnings();
  query.after = std::move(page.after);
  query.limit = page.limit;
  query.descending = page.descending;
  const auto found = call.shared->of<Store>()->chats(call.tenant, query);
  if (!found) {
    ApiError unknown = not_found(query.after);
    unknown.param = "after";
    throw unknown;
  }
  std::vector<ListedItem> items;
  for (const StoredChat& chat : found->items) items.push_back({.id = chat.id, .text = text_of(chat)});
  call.send({.body = list_text(items, found->has_more), .headers = std::move(warnings)});
}

// Messages

// A message of the request under an id. Content in parts is told apart from plain text.
Json message_of(std::string id, const Json& message) {
  Json out = {
      {"id", std::move(id)}, {"role", nullptr}, {"content", nullptr}, {"content_parts", nullptr}, {"name", nullptr}};
  out.update(message);
  if (out["content"].is_array()) {
    out["content_parts"] = std::move(out["content"]);
    out["content"] = nullptr;
  }
  return out;
}

// The index that follows on the id of a message.
size_t index_after(std::string_view after, std::string_view id, size_t messages) {
  size_t index = 0;
  std::string_view number = after;
  const bool ours = number.starts_with(id) && number.substr(id.size()).starts_with('-');
  if (ours) number.remove_prefix(id.size() + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (ours && error == std::errc() && end == number.data() + number.size() && index < messages) return index;
  throw ApiError{
      .status = 404, .message = fmt::format("Message with id '{}' not found.", quotable(after)), .param = "after"};
}

void list_messages(Call& call, std::string_view id) {
  const PageQuery page = read_page_query(call, [](std::string_view, std::string_view) { return false; });
  Headers warnings = call.warnings();
  const auto chat = call.shared->of<Store>()->chat(id, call.tenant);
  if (!chat) throw not_found(id);
  const Json messages = parse_json(chat->messages);
  const auto id_at = [&](size_t index) { return fmt::format("{}-{}", id, index); };
  const size_t count = messages.size();
  size_t done = 0;  // messages before the page
  if (!page.after.empty()) {
    const size_t index = index_after(page.after, id, count);
    done = page.descending ? count - index : index + 1;
  }
  const size_t end = std::min(count, done + static_cast<size_t>(page.limit));
  std::vector<ListedItem> items;
  for (size_t i = done; i < end; ++i) {
    const size_t index = page.descending ? count - 1 - i : i;
    items.push_back({.id = id_at(index), .text = dump_json(message_of(id_at(index), messages[index]))});
  }
  call.send({.body = list_text(items, end < count), .headers = std::move(warnings)});
}

// One completion

void get(Call& call) {
  if (call.suffix.ends_with(kMessages)) return list_messages(call, id_of(call, kMessages));
  const std::string_view id = id_of(call);
  const auto chat = call.shared->of<Store>()->chat(id, call.tenant);
  if (!chat) throw not_found(id);
  call.send({.body = text_of(*chat)});
}

void update(Call& call) {
  const std::string_view id = id_of(call);
  Headers warnings = call.warnings();
  const auto store = call.shared->of<Store>();
  const Json& metadata = *call.fields.of<ChatStoreFields>().metadata;
  if (!store->set_metadata(id, call.tenant, dump_json(metadata))) throw not_found(id);
  const auto chat = store->chat(id, call.tenant);
  if (!chat) throw not_found(id);  // another client erased it
  call.send({.body = text_of(*chat), .headers = std::move(warnings)});
}

void remove(Call& call) {
  const std::string_view id = id_of(call);
  if (!call.shared->of<Store>()->erase_chat(id, call.tenant)) throw not_found(id);
  call.send({.body = dump_json({{"id", id}, {"object", "chat.completion.deleted"}, {"deleted", true}})});
}

constexpr Parameter kMetadata[] = {[] {
  Parameter row = metadata_row("labels that take the place of those before", [](Fields& f, const Json& v) {
    f.of<ChatStoreFields>().metadata = &checked_metadata(v);
  });
  row.required = true;
  row.fallback = "required";
  return row;
}()};

const EndpointInfo list_endpoint{.name = "chat list",
                                 .dialect = &kOpenAi,
                                 .method = "GET",
                                 .paths = {"/v1/chat/completions", "/chat/completions"},
                                 .help = "stored chat completions",
                                 .without_model = true,
                                 .run = list};
const EndpointInfo get_endpoint{.name = "stored chat",
                                .dialect = &kOpenAi,
                                .method = "GET",
                                .paths = {"/v1/chat/completions/*", "/chat/completions/*"},
                                .help = "a stored chat completion, or its messages",
                                .without_model = true,
                                .run = get};
const EndpointInfo update_endpoint{.name = "chat update",
                                   .dialect = &kOpenAi,
                                   .paths = {"/v1/chat/completions/*", "/chat/completions/*"},
                                   .help = "changes the metadata of a stored chat completion",
                                   .parameters = {kMetadata},
                                   .without_model = true,
                                   .run = update};
const EndpointInfo delete_endpoint{.name = "chat delete",
                                   .dialect = &kOpenAi,
                                   .method = "DELETE",
                                   .paths = {"/v1/chat/completions/*", "/chat/completions/*"},
                                   .help = "forgets a stored chat completion",
                                   .without_model = true,
                                   .run = remove};
const Registry<EndpointInfo> registered_list{list_endpoint}, registered_get{get_endpoint},
    registered_update{update_endpoint}, registered_delete{delete_endpoint};

}  // namespace
}  // namespace sluice::server::openai::stored_chats
