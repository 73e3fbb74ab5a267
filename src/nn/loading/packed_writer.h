// Writes weights that were packed into a device's memory to a file, while the model already serves.
#pragma once

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "nn/loading/packed_file.h"
#include "tensor/tensor.h"

namespace sluice {

class PackedWriter {
 public:
  // The file is from_device and not filled. `weights` are all of its weights in order, in `memory`, and do not change
  // any more. Starts a thread that writes the file. An error is logged as a warning, and leaves no file.
  PackedWriter(std::shared_ptr<PackedFile> file, std::vector<std::shared_ptr<const Buffer>> weights, Memory& memory);
  ~PackedWriter();  // leaves no file if the thread is not done
  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;

 private:
  std::jthread thread_;
};

}  // namespace sluice
