// The web page: static files inside the program, which need no API key. They call the API, which asks for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"
#include "server/router.h"

namespace sluice::server {

struct PageFile {
  std::string path;  // in URLs
  std::string_view content;
  std::string_view content_type;
  std::string etag;
};

// All files of the page, in no order.
const std::vector<PageFile>& page_files();
// Null when the page has no such file.
const PageFile* find_page_file(std::string_view path);
// The file, or 304 if the client has it already.
HttpResponse page_response(const PageFile& file, const HttpRequest& request);

// The routes of the files, and of the table of chat parameters that the page makes its settings from.
std::vector<Route> page_routes();

}  // namespace sluice::server
