// Lists of OpenAI's API: which part of one the client asks for, and the answer.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/endpoint.h"

namespace sluice::server {

struct PageQuery {
  std::string after;  // id of the item before the first one; empty: from the start
  int limit = 20;
  bool descending = false;
};

// Reads `after`, `limit` and `order` of the request's query. `other` gets every further parameter and returns whether
// it knows it; unknown ones are treated as unknown fields. Throws ApiError that names the parameter.
PageQuery read_page_query(Call& call, const std::function<bool(std::string_view name, std::string_view value)>& other);

struct ListedItem {
  std::string id;
  std::string text;  // JSON
};

std::string list_text(const std::vector<ListedItem>& items, bool has_more);

}  // namespace sluice::server
