// Finds out by trying which of two ways of copying for other ranks is faster at the moment.
//
// Plain stores leave lines in the cache of the writer's core; streaming stores go past it. Between cores that share a
// third-level cache plain stores are about twice as fast. Between others (another socket, another part of a large
// processor) each line that the other core has read costs its writer hundreds of nanoseconds, and streaming stores are
// five times as fast. No call tells which case it is, and the cores of a virtual machine move. So the copies are timed
// in rounds of a few chunks; the fastest chunk stands for its round. Now and then a round tries the other way: at once
// when a round was much slower than the one before, otherwise at growing intervals while the choice proves right.
//
// It reads no clock: it only computes with the times that it gets. One rank decides for all.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::comm {

enum class CopyWay : std::uint32_t { kPlain, kStreaming };

class CopyChoice {
 public:
  static constexpr int kChunksPerRound = 3;
  static constexpr int kFirstInterval = 2;  // rounds until the other way is tried
  static constexpr int kLastInterval = 128;
  static constexpr double kJump = 1.5;    // a round is slower than the one before by this factor: something has changed
  static constexpr double kBetter = 0.9;  // the other way must take at most this part of the time

  // The way for the next chunk.
  CopyWay way() const { return trying_ ? other() : chosen_; }

  // The cost of a chunk that was copied by way(), in time per byte.
  void record(double cost) {
    round_cost_ = chunks_ == 0 ? cost : std::min(round_cost_, cost);
    if (++chunks_ < kChunksPerRound) return;
    chunks_ = 0;
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
  int chunks_ = 0;  // of the current round
  int rounds_ = 0;  // since the last trial
  int interval_ = kFirstInterval;
  double round_cost_ = 0;
  double chosen_cost_ = 0;
};

}  // namespace lockstep::comm
