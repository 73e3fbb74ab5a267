// The names in a folder. std::filesystem::directory_iterator ends the program when memory runs out (libstdc++ 12).
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace sluice {

// Sorted, without "." and "..". Empty, with `unreadable` set, if the folder cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code& unreadable);

}  // namespace sluice
