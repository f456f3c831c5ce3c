// A pool of threads that share the tasks of one job at a time.
#pragma once

#include <cstdint>
#include <type_traits>

namespace plx {

using Task = void (*)(void* context, int64_t index);

int count_threads();
void set_threads(int count);

// Calls task(context, i) once for each i in 0 .. total - 1, on this thread and the pool's, and returns when all are done.
// The caller takes tasks too, so it never waits for a thread that has not begun. While the pool has a job of another thread,
// the caller runs its own job alone.
void share_tasks(int64_t total, Task task, void* context);

template <class Body>
void share(int64_t total, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  share_tasks(
      total, [](void* context, int64_t index) { (*static_cast<Plain*>(context))(index); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace plx
