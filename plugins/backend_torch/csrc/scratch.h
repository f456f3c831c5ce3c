// Memory that grows as it is needed.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace plx {

class Scratch {  // of one thread; goes with it
 public:
  ~Scratch() { free(data_); }
  char* take(int64_t bytes) {
    if (bytes > size_) {
      free(data_);
      size_ = (bytes + 63) / 64 * 64;
      data_ = static_cast<char*>(aligned_alloc(64, static_cast<size_t>(size_)));
      if (!data_) abort();
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace plx
