// Forks while a job is under way, as a process with threads may: the child has the pool to itself, and none of that job.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "pool.h"

static std::atomic<int> begun{0};
static std::atomic<bool> is_child{false};
static std::atomic<bool> is_free{false};
static std::atomic<int> strays{0};  // tasks of the parent's job that the child did

static void hold_task(void*, int64_t) {
  ++begun;
  if (is_child) ++strays;
  while (!is_child && !is_free) std::this_thread::yield();
}

static int run_child() {
  is_child = true;
  for (int job = 0; job < 20; ++job) {
    std::vector<char> done(100, 0);
    plx::share(100, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
    for (char each : done) {
      if (each != 1) return 1;
    }
  }
  return strays ? 2 : 0;
}

int main() {
  plx::set_threads(8);
  std::thread caller([] { plx::share_tasks(64, hold_task, nullptr); });
  while (begun == 0) std::this_thread::yield();
  int failures = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const pid_t child = fork();
    if (child == 0) _exit(run_child());
    int status = 0;
    waitpid(child, &status, 0);
    failures += status != 0;
  }
  is_free = true;
  caller.join();
  std::printf("%d of 20 children went wrong\n", failures);
  return failures ? 1 : 0;
}
