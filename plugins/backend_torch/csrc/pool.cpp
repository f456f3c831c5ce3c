#include "pool.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>

namespace plx {
namespace {

// An idle thread spins for this long before it sleeps: longer than the time between two operations of a step, and short enough
// to cost little on a machine with other busy processes.
constexpr int64_t kSpinNs = 50'000;
constexpr int kTaskBits = 16;
constexpr int64_t kMostTasks = (1 << kTaskBits) - 1;
constexpr int kMostThreads = 256;

// Everything that a thread needs to take a task, in one word, so that a task of a replaced job cannot be taken: job number (32
// bits), number of tasks (kTaskBits), next task (kTaskBits).
std::atomic<uint64_t> ticket{0};
std::atomic<Task> job_task{nullptr};
std::atomic<void*> job_context{nullptr};
std::atomic<int64_t> job_done{0};

std::atomic<bool> busy{false};
std::atomic<int> size{1};     // threads that share a job, the caller's among them
std::atomic<int> wanted{1};   // the same, but 0 while set_threads ends those that run
std::atomic<int> started{0};  // running threads, without the caller's
std::atomic<int> sleeping{0};
std::atomic<bool> awaited{false};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t job_there = PTHREAD_COND_INITIALIZER;
pthread_cond_t job_over = PTHREAD_COND_INITIALIZER;

int64_t next_of(uint64_t word) { return static_cast<int64_t>(word & kMostTasks); }
int64_t total_of(uint64_t word) { return static_cast<int64_t>((word >> kTaskBits) & kMostTasks); }

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t read_clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Spins until ready(), for at most kSpinNs; returns whether it is ready.
template <class Ready>
bool spin(Ready ready) {
  const int64_t until = read_clock() + kSpinNs;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (read_clock() < until);
  return ready();
}

// Runs tasks of the current job until none are left.
void take_tasks() {
  uint64_t word = ticket.load(std::memory_order_acquire);
  while (next_of(word) < total_of(word)) {
    // A job is replaced only when all its tasks are done. This one has a task left; if it still does at the exchange below,
    // the task and context read here belong to it.
    const Task task = job_task.load(std::memory_order_relaxed);
    void* const context = job_context.load(std::memory_order_relaxed);
    if (!ticket.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    const int64_t total = total_of(word);
    task(context, next_of(word));
    if (job_done.fetch_add(1) + 1 == total && awaited.load()) {
      pthread_mutex_lock(&mutex);
      pthread_cond_broadcast(&job_over);
      pthread_mutex_unlock(&mutex);
    }
    word = ticket.load(std::memory_order_acquire);
  }
}

bool is_idle(uint64_t seen, int number) { return ticket.load() == seen && number < wanted.load(); }

void* run_thread(void* argument) {
  const int number = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  while (number < wanted.load()) {
    take_tasks();
    const uint64_t seen = ticket.load();
    if (next_of(seen) < total_of(seen)) continue;
    if (spin([&] { return !is_idle(seen, number); })) continue;
    pthread_mutex_lock(&mutex);
    sleeping.fetch_add(1);
    while (is_idle(seen, number)) pthread_cond_wait(&job_there, &mutex);
    sleeping.fetch_sub(1);
    pthread_mutex_unlock(&mutex);
  }
  started.fetch_sub(1);
  return nullptr;
}

void forget_threads() {  // in the child of a fork, which has only the thread that forked
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&job_there, nullptr);
  pthread_cond_init(&job_over, nullptr);
  ticket = 0;  // a current job is the parent's, and its context may be on the stack of a thread that does not exist here
  wanted = size.load();  // the parent may have been changing it
  busy = awaited = false;
  started = sleeping = 0;
}

void start_threads() {
  static const int once = pthread_atfork(nullptr, nullptr, forget_threads);
  (void)once;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  for (int number = 1; number < wanted.load(); ++number) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, run_thread, reinterpret_cast<void*>(intptr_t{number}))) break;
    started.fetch_add(1);
  }
  pthread_attr_destroy(&attributes);
}

void wake_sleepers() {
  if (sleeping.load() == 0) return;
  pthread_mutex_lock(&mutex);
  pthread_cond_broadcast(&job_there);
  pthread_mutex_unlock(&mutex);
}

void await_job(int64_t total) {
  const auto over = [&] { return job_done.load() == total; };
  if (over() || spin(over)) return;
  pthread_mutex_lock(&mutex);
  awaited = true;
  while (!over()) pthread_cond_wait(&job_over, &mutex);
  awaited = false;
  pthread_mutex_unlock(&mutex);
}

void run_job(int64_t total, Task task, void* context) {
  job_task.store(task, std::memory_order_relaxed);
  job_context.store(context, std::memory_order_relaxed);
  job_done.store(0);
  const uint64_t number = (ticket.load() >> 2 * kTaskBits) + 1;
  ticket.store(number << 2 * kTaskBits | static_cast<uint64_t>(total) << kTaskBits);
  wake_sleepers();
  take_tasks();
  await_job(total);
}

void run_alone(int64_t total, Task task, void* context) {
  for (int64_t i = 0; i < total; ++i) task(context, i);
}

struct TaskRange {  // more tasks than a ticket can count, several of them in one
  Task task;
  void* context;
  int64_t total, size;
};

void run_range(void* context, int64_t index) {
  const TaskRange& range = *static_cast<TaskRange*>(context);
  const int64_t begin = index * range.size;
  const int64_t end = begin + range.size < range.total ? begin + range.size : range.total;
  for (int64_t i = begin; i < end; ++i) range.task(range.context, i);
}

}  // namespace

int count_threads() { return size.load(); }

void set_threads(int count) {
  count = std::clamp(count, 1, kMostThreads);
  if (count == size.load()) return;
  while (busy.exchange(true)) relax();  // wait for the current job
  wanted = 0;
  while (started.load() > 0) {
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&job_there);
    pthread_mutex_unlock(&mutex);
    const timespec moment{0, 50'000};
    nanosleep(&moment, nullptr);
  }
  size = count;
  wanted = count;
  busy = false;
}

void share_tasks(int64_t total, Task task, void* context) {
  if (total > kMostTasks) {
    TaskRange range{task, context, total, (total + kMostTasks - 1) / kMostTasks};
    share_tasks((total + range.size - 1) / range.size, run_range, &range);
    return;
  }
  if (total <= 1 || wanted.load() == 1 || busy.exchange(true)) return run_alone(total, task, context);
  if (started.load() == 0) start_threads();
  run_job(total, task, context);
  busy = false;
}

}  // namespace plx
