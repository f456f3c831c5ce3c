#include "pool.h"

#include <pthread.h>
#include <time.h>

#include <atomic>

namespace plx {
namespace {

// A thread that finds nothing to do looks on for this long before it sleeps: longer than what lies between two operations
// of a step, and short enough to cost little on a machine whose cores others want.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kMostPieces = 0xffff;
constexpr int kMostThreads = 256;

// All a thread needs to know to take a piece, in one word, so that taking one and finding the job replaced exclude
// each other: job number (32 bits), pieces (16), next piece (16).
std::atomic<uint64_t> ticket{0};
std::atomic<Piece> job_piece{nullptr};
std::atomic<void*> job_context{nullptr};
std::atomic<int64_t> job_done{0};

std::atomic<bool> busy{false};
std::atomic<int> wanted{1};
std::atomic<int> started{0};  // threads that run, the caller's not among them
std::atomic<int> sleeping{0};
std::atomic<bool> awaited{false};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t job_there = PTHREAD_COND_INITIALIZER;
pthread_cond_t job_over = PTHREAD_COND_INITIALIZER;

int64_t next_of(uint64_t word) { return static_cast<int64_t>(word & 0xffff); }
int64_t total_of(uint64_t word) { return static_cast<int64_t>((word >> 16) & 0xffff); }

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

// Waits, without sleeping, until ready() or until it has looked on for long enough.
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

// Takes pieces of the job under way until there are none left.
void take_pieces() {
  uint64_t word = ticket.load(std::memory_order_acquire);
  while (next_of(word) < total_of(word)) {
    // A job is replaced only when all its pieces are done. This one has a piece that nobody has taken; if that is still
    // so at the exchange below, what was read here belongs to it.
    const Piece piece = job_piece.load(std::memory_order_relaxed);
    void* const context = job_context.load(std::memory_order_relaxed);
    if (!ticket.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    const int64_t total = total_of(word);
    piece(context, next_of(word));
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
    take_pieces();
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
  ticket = 0;  // a job under way is the parent's, and its context may be on the stack of a thread that is not here
  if (wanted == 0) wanted = 1;  // the parent was just changing it
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

void run_job(int64_t total, Piece piece, void* context) {
  job_piece.store(piece, std::memory_order_relaxed);
  job_context.store(context, std::memory_order_relaxed);
  job_done.store(0);
  const uint64_t number = (ticket.load() >> 32) + 1;
  ticket.store(number << 32 | static_cast<uint64_t>(total) << 16);
  wake_sleepers();
  take_pieces();
  await_job(total);
}

void run_alone(int64_t total, Piece piece, void* context) {
  for (int64_t i = 0; i < total; ++i) piece(context, i);
}

struct Bundle {  // pieces that are more than a ticket can count, several in one
  Piece piece;
  void* context;
  int64_t total, size;
};

void run_bundle(void* context, int64_t index) {
  const Bundle& bundle = *static_cast<Bundle*>(context);
  const int64_t begin = index * bundle.size;
  const int64_t end = begin + bundle.size < bundle.total ? begin + bundle.size : bundle.total;
  for (int64_t i = begin; i < end; ++i) bundle.piece(bundle.context, i);
}

}  // namespace

int count_threads() { return wanted.load(); }

void set_threads(int count) {
  while (busy.exchange(true)) relax();  // a job ends before its threads do
  wanted = 0;
  while (started.load() > 0) {
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&job_there);
    pthread_mutex_unlock(&mutex);
    const timespec moment{0, 50'000};
    nanosleep(&moment, nullptr);
  }
  wanted = count < 1 ? 1 : count > kMostThreads ? kMostThreads : count;
  busy = false;
}

void share_pieces(int64_t total, Piece piece, void* context) {
  if (total > kMostPieces) {
    Bundle bundle{piece, context, total, (total + kMostPieces - 1) / kMostPieces};
    share_pieces((total + bundle.size - 1) / bundle.size, run_bundle, &bundle);
    return;
  }
  if (total <= 1 || wanted.load() == 1 || busy.exchange(true)) return run_alone(total, piece, context);
  if (started.load() == 0) start_threads();
  run_job(total, piece, context);
  busy = false;
}

}  // namespace plx
