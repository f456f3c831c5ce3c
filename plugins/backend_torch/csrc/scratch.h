// Memory that grows as it is needed.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace plx {

class Scratch {  // of one thread; goes with it
 public:
  ~Scratch() { free(data_); }

  // Returns so many bytes, aligned to 64, or null if there is no memory. What was taken before is lost.
  char* take(int64_t bytes) {
    if (bytes > size_) {
      free(data_);
      size_ = 0;
      data_ = static_cast<char*>(aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64));
      if (data_) size_ = bytes;
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace plx
