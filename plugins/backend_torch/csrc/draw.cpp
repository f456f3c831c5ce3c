// Draws tokens as `parallax_core.api.draw` does: filters, then the best sum of logit and noise.
#include "operations.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>

#include "gumbel.h"
#include "scratch.h"

namespace plx {
namespace {

constexpr double kReaches[] = {4, 8, 12, HUGE_VAL};  // how far below the likeliest token filters look, over the temperature
constexpr double kRough = 1e-5, kPrecise = 1e-12;  // errors of sums of weights in float32 and in float64, of the sum
constexpr int64_t kFew = 128;                      // up to this many tokens get noise one by one

struct Candidate {
  double weight;  // its probability over that of the likeliest token
  float logit;
  int32_t token;
};

struct Total {  // of weights
  double sum;
  bool is_precise;  // whether it is rounded about once, in float64
};

bool is_likelier(const Candidate& a, const Candidate& b) { return a.logit > b.logit; }

double add_weights(const Candidate* begin, const Candidate* end) {
  double total = 0;
  for (; begin < end; ++begin) total += begin->weight;
  return total;
}

// Adds numbers with the errors of the additions, so that the sum is rounded about once (Neumaier, ZAMM 1974).
class ExactSum {
 public:
  void add(double number) {
    const double next = sum_ + number;
    lost_ += fabs(sum_) >= fabs(number) ? (sum_ - next) + number : (number - next) + sum_;
    sum_ = next;
  }

  double round() const { return sum_ + lost_; }

 private:
  double sum_ = 0, lost_ = 0;
};

// The likeliest tokens of a row.
class Candidates {
 public:
  Candidates(const Draw& draw, const float* logits, int64_t count, int64_t likeliest, char* scratch)
      : draw_(draw),
        logits_(logits),
        count_(count),
        likeliest_(likeliest),
        most_(logits[likeliest]),
        list_(reinterpret_cast<Candidate*>(scratch)),
        places_(reinterpret_cast<int32_t*>(list_ + count)) {}

  // The bytes of scratch for a row of `count` logits.
  static int64_t find_bytes(int64_t count) { return count * static_cast<int64_t>(sizeof(Candidate) + sizeof(int32_t)); }

  // Finds the tokens that filters keep, if all of them are within `reach` of the likeliest; else returns false.
  bool find(double reach) {
    const bool is_whole = reach == HUGE_VAL;
    gather(reach);
    least_ = draw_.min_p;
    if (draw_.top_k > 0 && draw_.top_k < count_) {
      if (kept_ < draw_.top_k && !is_whole) return false;
      keep_most();
      return keep_kept_share();
    }
    if (draw_.top_p >= 1) return is_whole || exp(-reach) < draw_.min_p / 2;
    if (is_whole) return keep_kept_share();
    if (!all_.sum) all_.sum = kernels->weigh_all(logits_, count_, most_, draw_.temperature);
    return keep_share(all_, false);
  }

  int64_t choose() const {
    const auto is_kept = [&](const Candidate& each) { return each.weight >= least_; };
    if (std::count_if(list_, list_ + kept_, is_kept) > kFew) {
      float border = most_;
      for (int64_t i = 0; i < kept_; ++i) border = is_kept(list_[i]) ? std::min(border, list_[i].logit) : border;
      return kernels->draw_any(draw_, logits_, count_, likeliest_, border);
    }
    Best best{logits_, draw_.temperature, draw_.key};
    best.consider(likeliest_);
    for (int64_t i = 0; i < kept_; ++i) {
      if (is_kept(list_[i])) best.consider(list_[i].token);
    }
    return best.token;
  }

 private:
  void gather(double reach) {
    const double border = std::max(static_cast<double>(most_) - reach * draw_.temperature, static_cast<double>(-FLT_MAX));
    kept_ = kernels->collect_from(logits_, count_, static_cast<float>(border), places_);
    for (int64_t i = 0; i < kept_; ++i) list_[i] = {weigh(logits_[places_[i]]), logits_[places_[i]], places_[i]};
  }

  double weigh(float logit) const {
    return exp(static_cast<double>(logit) / draw_.temperature - static_cast<double>(most_) / draw_.temperature);
  }

  // Keeps the top_k likeliest, and those as likely as the last of them.
  void keep_most() {
    if (kept_ <= draw_.top_k) return;
    Candidate *const last = list_ + draw_.top_k - 1, *const end = list_ + kept_;
    std::nth_element(list_, last, end, is_likelier);
    kept_ = std::partition(last + 1, end, [&](const Candidate& each) { return each.logit == last->logit; }) - list_;
  }

  bool keep_kept_share() {
    Total total{weigh_kept(), true};
    return keep_share(total, true);
  }

  // Keeps the likeliest whose weights add up to their share of `total`, the sum of all weights; returns false if those gathered
  // do not, unless they are all (`is_complete`).
  bool keep_share(Total& total, bool is_complete) {
    if (draw_.top_p >= 1) return true;
    for (;; total = {weigh_precisely(), true}) {
      const double goal = draw_.top_p * total.sum, error = (total.is_precise ? kPrecise : kRough) * total.sum;
      if (!is_complete && add_weights(list_, list_ + kept_) < goal - error) return false;
      double reached = 0;
      const double border = find_border(goal, &reached);
      if (fabs(reached - goal) > error && fabs(reached - border - goal) > error) {
        least_ = std::max(least_, border);
        return true;
      }
      if (total.is_precise) return keep_in_order(goal, is_complete);
    }
  }

  // Does the same where rounding decides: adds the weights in the order of the reference.
  bool keep_in_order(double goal, bool is_complete) {
    std::sort(list_, list_ + kept_, is_likelier);
    double reached = 0, border = 0;
    for (int64_t i = 0; i < kept_ && (!i || reached < goal); ++i) reached += border = list_[i].weight;
    if (reached < goal && !is_complete) return false;
    least_ = std::max(least_, border);
    return true;
  }

  // Returns the largest weight so that those not below it add up to at least `goal`, and that sum.
  double find_border(double goal, double* reached) {
    Candidate *begin = list_, *end = list_ + kept_;
    double sum = 0;
    while (end - begin > 1) {
      Candidate* const middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, is_likelier);
      const double upper = add_weights(begin, middle);
      if (sum + upper >= goal) {
        end = middle;
      } else {
        sum += upper;
        begin = middle;
      }
    }
    *reached = sum + begin->weight;
    return begin->weight;
  }

  double weigh_precisely() const {
    ExactSum total;
    for (int64_t i = 0; i < count_; ++i) total.add(weigh(logits_[i]));
    return total.round();
  }

  double weigh_kept() const {
    ExactSum total;
    for (int64_t i = 0; i < kept_; ++i) total.add(list_[i].weight);
    return total.round();
  }

  const Draw& draw_;
  const float* const logits_;
  const int64_t count_, likeliest_;
  const float most_;
  Candidate* const list_;
  int32_t* const places_;
  int64_t kept_ = 0;
  Total all_{0, false};  // once it is needed; at least 1 then
  double least_ = 0;  // candidates of less weight are not kept
};

// Returns the drawn token, or -1 without memory.
int64_t draw_row(const Draw& draw, const float* logits, int64_t count) {
  float most;
  const int64_t likeliest = kernels->find_largest(logits, count, &most);
  if (most == -INFINITY) return 0;
  if (!draw.top_k && draw.top_p >= 1 && draw.min_p <= 0) return kernels->draw_any(draw, logits, count, likeliest, -FLT_MAX);
  static thread_local Scratch scratch;
  char* const room = scratch.take(Candidates::find_bytes(count));
  if (!room) return -1;
  Candidates candidates(draw, logits, count, likeliest, room);
  for (double reach : kReaches) {
    if (candidates.find(reach)) break;
  }
  return candidates.choose();
}

}  // namespace
}  // namespace plx

using namespace plx;

// Draws a token from each of some rows of logits, [rows][count], with a temperature above 0.
PLX_EXPORT int32_t plx_draw(const Draw* draws, int64_t number, const float* logits, int64_t count, int64_t* tokens) {
  std::atomic<bool> failed{false};
  share(number, [&](int64_t i) {
    tokens[i] = draw_row(draws[i], logits + draws[i].row * count, count);
    if (tokens[i] < 0) failed = true;
  });
  return failed ? kOutOfMemory : kOk;
}

// Sets the logits of some rows to minus infinity where bits of their masks are 0, the lowest bit first.
PLX_EXPORT void plx_forbid(const int64_t* rows, const uint8_t* const* masks, int64_t number, int64_t count, float* logits) {
  share(number, [&](int64_t i) { kernels->forbid(masks[i], count, logits + rows[i] * count); });
}

PLX_EXPORT int64_t plx_draw_bytes() { return sizeof(Draw); }
