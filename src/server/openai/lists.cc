// Reads queries and prints pages.
#include "server/openai/lists.h"

#include <fmt/core.h>

#include <charconv>

namespace sluice::server {
namespace {

constexpr int64_t kMostItems = 100;

int read_limit(const std::string& text) {
  int64_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  const bool number = error == std::errc() && end == text.data() + text.size();
  return static_cast<int>(expect_integer(number ? Json(limit) : Json(text), "limit", 1, kMostItems));
}

bool read_order(const std::string& text) {
  if (text == "asc" || text == "desc") return text == "desc";
  throw invalid_value("order",
                      fmt::format("Invalid value: '{}'. Supported values are: 'asc' and 'desc'.", quotable(text)));
}

Json id_json(std::string_view id) { return id.empty() ? Json() : Json(id); }

}  // namespace

PageQuery read_page_query(Call& call, const std::function<bool(std::string_view name, std::string_view value)>& other) {
  PageQuery out;
  for (const auto& [name, value] : query_parameters(call.target)) {
    if (name == "after") {
      out.after = value;
    } else if (name == "limit") {
      out.limit = read_limit(value);
    } else if (name == "order") {
      out.descending = read_order(value);
    } else if (!other(name, value)) {
      call.unknown.add(name);
    }
  }
  return out;
}

std::string list_text(const std::vector<ListedItem>& items, bool has_more) {
  std::string out = R"({"object":"list","data":[)";
  for (const ListedItem& item : items) {
    if (&item != items.data()) out += ',';
    out += item.text;
  }
  const std::string_view first = items.empty() ? std::string_view() : items.front().id;
  const std::string_view last = items.empty() ? std::string_view() : items.back().id;
  return out + fmt::format(R"(],"first_id":{},"last_id":{},"has_more":{}}})", dump_json(id_json(first)),
                           dump_json(id_json(last)), has_more);
}

}  // namespace sluice::server
