// Which of two ways of copying for other ranks is the faster one here and now, found out by trying.
//
// Plain stores leave lines in the cache of the writer's core; streaming stores go past it. Between cores that share a
// third-level cache plain stores are about twice as fast; between others (another socket, another part of a large
// processor) each line that the other core has read costs its writer hundreds of nanoseconds, and streaming stores are
// five times as fast. No call tells which it is, and a virtual machine's cores wander. So the work is watched in rounds
// of a few pieces, each judged by its fastest piece, and now and then a round goes the other way: at once when a round
// was much slower than the one before, else at growing intervals while the choice proves right.
//
// Pure arithmetic on what it is told; used by one rank for all.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::comm {

enum class CopyWay : std::uint32_t { kPlain, kStreaming };

class CopyChoice {
 public:
  static constexpr int kPiecesARound = 3;
  static constexpr int kFirstInterval = 2;  // rounds until the other way is tried
  static constexpr int kLastInterval = 128;
  static constexpr double kJump = 1.5;    // slower than the round before by this: something has changed
  static constexpr double kBetter = 0.9;  // the other way must be faster by this

  // For the next piece.
  CopyWay way() const { return trying_ ? other() : chosen_; }

  // What a piece cost that went way(), in time per byte.
  void record(double cost) {
    round_cost_ = pieces_ == 0 ? cost : std::min(round_cost_, cost);
    if (++pieces_ < kPiecesARound) return;
    pieces_ = 0;
    trying_ ? end_trial() : end_round();
  }

 private:
  CopyWay other() const { return chosen_ == CopyWay::kPlain ? CopyWay::kStreaming : CopyWay::kPlain; }

  void end_round() {
    const bool jumped = chosen_cost_ > 0 && round_cost_ > kJump * chosen_cost_;
    chosen_cost_ = round_cost_;
    if (jumped) interval_ = kFirstInterval;
    trying_ = jumped || ++rounds_ >= interval_;
  }

  void end_trial() {
    trying_ = false;
    rounds_ = 0;
    if (round_cost_ < kBetter * chosen_cost_) {
      chosen_ = other();
      chosen_cost_ = round_cost_;
      interval_ = kFirstInterval;
    } else {
      interval_ = std::min(2 * interval_, kLastInterval);
    }
  }

  CopyWay chosen_ = CopyWay::kPlain;
  bool trying_ = false;
  int pieces_ = 0;  // of the round at hand
  int rounds_ = 0;  // since the last trial
  int interval_ = kFirstInterval;
  double round_cost_ = 0;
  double chosen_cost_ = 0;
};

}  // namespace lockstep::comm
