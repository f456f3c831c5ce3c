// Many small jobs, from one thread and from several at once, while the number of threads changes; for a sanitizer to watch.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "pool.h"

static bool run_jobs(int jobs) {
  for (int job = 0; job < jobs; ++job) {
    const int64_t total = job % 50 == 0 ? 70'000 : job % 13;
    std::vector<char> done(static_cast<size_t>(total), 0);
    plx::share(total, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
    for (char each : done) {
      if (each != 1) return false;
    }
  }
  return true;
}

// Operations choose their blocks by the number of threads, and may do so while another thread changes it.
static bool run_while_changing() {
  std::atomic<bool> over{false};
  std::thread changer([&] {
    for (int i = 0; i < 300; ++i) plx::set_threads(1 + i % 4);
    over = true;
  });
  bool right = true;
  while (!over) right = plx::count_threads() > 0 && run_jobs(14) && right;
  changer.join();
  return right;
}

int main() {
  std::atomic<bool> right{true};
  for (int count : {1, 4, 2, 3}) {
    plx::set_threads(count);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 2; ++caller) callers.emplace_back([&] { right = run_jobs(150) && right; });
    for (auto& caller : callers) caller.join();
    right = run_jobs(150) && right;
  }
  right = run_while_changing() && right;
  std::puts(right ? "right" : "wrong");
  return right ? 0 : 1;
}
