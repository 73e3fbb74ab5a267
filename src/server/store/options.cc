// The defaults of the store's options, and an early look at its file.
#include "server/store/store.h"

namespace sluice::server {

StoreOptions store_options(const ServerOptions& options) {
  const bool file = !options.store.empty();
  StoreOptions out;
  out.path = options.store;
  out.life = std::chrono::seconds(options.store_ttl);
  if (options.store_ttl == 0) out.life = file ? std::chrono::hours(30 * 24) : std::chrono::hours(1);
  out.max_bytes = options.store_size;
  if (options.store_size == 0) out.max_bytes = file ? int64_t{1} << 30 : int64_t{64} << 20;
  return out;
}

void check_store(const ServerOptions& options) {
  if (!options.store.empty()) open_database(options.store);
}

}  // namespace sluice::server
