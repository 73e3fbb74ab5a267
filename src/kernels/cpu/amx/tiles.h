// Shapes of AMX tile registers (Intel SDM volume 1, chapter 18). Tiles 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7
// weights.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace sluice::SLUICE_ISA {

inline constexpr int kTileRows = 16;   // most rows in a tile
inline constexpr int kTileBytes = 64;  // most bytes in a row

struct [[gnu::packed]] TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Configures the tiles for a scope. Tiles 0 and 1 have rows0 rows of sums, tiles 2 and 3 rows1. Tiles of x have `bytes`
// bytes per row; tiles of weights have bytes / 4 rows.
class TileScope {
 public:
  TileScope(int rows0, int rows1, int bytes) {
    TileConfig config;
    const auto set = [&config](int tile, int rows, int row_bytes) {
      config.rows[tile] = static_cast<uint8_t>(rows);
      config.row_bytes[tile] = static_cast<uint16_t>(rows > 0 ? row_bytes : 0);
    };
    for (int tile = 0; tile < 4; ++tile) set(tile, tile < 2 ? rows0 : rows1, kTileBytes);
    set(4, rows0, bytes), set(5, rows1, bytes);
    for (int tile = 6; tile < 8; ++tile) set(tile, bytes / 4, kTileBytes);
    // GCC 12's intrinsic declares that it reads only eight bytes, so stores to the others may be dropped.
    // The memory that tiles will load must be written before.
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace sluice::SLUICE_ISA
