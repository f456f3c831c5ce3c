// Scratch memory that grows as needed.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace plx {

class Scratch {  // of one thread; freed when the thread ends
 public:
  ~Scratch() { free(data_); }

  // Returns `bytes` bytes, aligned to kAlignment, or null if there is no memory. The content taken before is lost.
  char* take(int64_t bytes) {
    if (bytes > size_) {
      free(data_);
      size_ = 0;
      data_ = static_cast<char*>(aligned_alloc(kAlignment, (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment));
      if (data_) size_ = bytes;
    }
    return data_;
  }

 private:
  static constexpr size_t kAlignment = 64;  // a cache line

  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace plx
