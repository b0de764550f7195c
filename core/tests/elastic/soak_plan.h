// Plans of a seed for a training: which ranks die or stand still, what happens to messages, and which links are cut.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "elastic/message_faults.h"
#include "elastic/program.h"

namespace lockstep::test {

// Of a message that the rank sends after it has done the step.
struct LateFault {
  int rank = 0;
  std::int64_t step = 0;
  MessageFault message;
};

// The link of a machine, from when the rank has done the step. The kernels send again what is lost.
struct Cut {
  int rank = 0;  // one that does not die
  std::int64_t step = 0;
  int machine = 0;
  std::chrono::milliseconds time{0};
};

struct SoakPlan {
  unsigned number = 0;
  int world = 2;
  int machines = 1;
  bool has_network = false;  // the machines are network namespaces; else they are machines in name
  int micro_batches = 2;
  bool adam = false;
  int copies = 0;  // of a sharded optimizer, as many as survive all kills at once; 0: a plain one
  std::vector<Death> faults = {};
  std::vector<LateFault> messages = {};
  std::vector<Cut> cuts = {};
  int culprit = -1;  // the rank whose fault ends the training with an error on all ranks; -1: there is none

  int kills() const {
    return static_cast<int>(
        std::count_if(faults.begin(), faults.end(), [](const Death& one) { return one.frozen.count() == 0; }));
  }
  bool dies(int rank) const {
    return std::any_of(faults.begin(), faults.end(),
                       [&](const Death& one) { return one.number == rank && one.frozen.count() == 0; });
  }
  bool loses_message() const {
    return std::any_of(messages.begin(), messages.end(),
                       [](const LateFault& one) { return one.message.kind == MessageFault::Kind::kDrop; });
  }
  std::chrono::seconds timeout() const { return std::chrono::seconds(culprit < 0 ? 60 : 5); }
};

inline constexpr std::chrono::seconds kBeyondTheTimeout{8};

class SoakPlanner {
 public:
  SoakPlanner(unsigned seed, unsigned number) : random_(seed * 100'003 + number) { plan_.number = number; }

  SoakPlan make() {
    plan_.world = 2 + below(7);
    plan_.adam = below(2) == 0;
    plan_.machines = 1 + below(std::min(3, plan_.world));
    plan_.micro_batches = plan_.world + below(3);
    for (int rank = 0; rank < plan_.world; ++rank) ranks_.push_back(rank);
    std::shuffle(ranks_.begin(), ranks_.end(), random_);
    below(8) == 0 ? add_culprit() : add_kills();
    plan_.has_network = plan_.machines > 1 && below(2) == 0;
    for (int i = below(3); i > 0; --i)
      plan_.faults.push_back({any_rank(), any_step(), static_cast<Place>(below(kPlaces)), {}, short_time(700)});
    for (int i = plan_.machines > 1 ? below(4) : 0; i > 0; --i)
      plan_.messages.push_back(
          {any_rank(), any_step(), {MessageFault::Kind::kDelay, below(3) == 0, below(12), short_time(700)}});
    // A culprit's error would not reach the ranks behind a cut link: these would blame the connection.
    for (int i = plan_.has_network && plan_.culprit < 0 ? below(3) : 0; i > 0; --i) add_cut();
    if (plan_.culprit < 0 && below(2) == 0) plan_.copies = plan_.kills() + 1;
    return plan_;
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  int any_rank() { return ranks_[static_cast<std::size_t>(below(plan_.world))]; }
  std::int64_t any_step() { return below(11); }
  std::chrono::milliseconds short_time(int limit) { return std::chrono::milliseconds(1 + below(limit)); }

  void add_kills() {
    if (plan_.machines > 1 && plan_.machines < plan_.world && below(4) == 0) return add_death_of_a_machine();
    const int kills = 1 + below(std::min(3, plan_.world - 1));
    for (int i = 0; i < kills; ++i) plan_.faults.push_back(random_death(ranks_[i], random_));
    if (kills > 1 && below(3) == 0) plan_.faults.back() = {ranks_[kills - 1], 0, Place::kRebuild};
  }
  void add_death_of_a_machine() {
    const int machine = below(plan_.machines);
    Death death = random_death(0, random_);
    for (death.number = machine; death.number < plan_.world; death.number += plan_.machines)
      plan_.faults.push_back(death);
  }
  // In an early step: a message of the last steps may be for ranks that have ended.
  void add_culprit() {
    plan_.culprit = any_rank();
    const std::int64_t step = below(6);
    const int kind = below(3);
    if (kind == 0) {
      const auto place = static_cast<Place>(below(kPlaces));
      plan_.faults.push_back({plan_.culprit, step, place, {}, kBeyondTheTimeout});
      return;
    }
    plan_.machines = std::max(2, plan_.machines);
    const auto fault = kind == 1 ? MessageFault::Kind::kDrop : MessageFault::Kind::kTruncate;
    plan_.messages.push_back({plan_.culprit, step, {fault, below(4) == 0, below(12)}});
  }
  void add_cut() {
    for (const int rank : ranks_) {
      if (plan_.dies(rank)) continue;
      plan_.cuts.push_back({rank, any_step(), below(plan_.machines), short_time(1000)});
      return;
    }
  }

  std::mt19937 random_;
  std::vector<int> ranks_;
  SoakPlan plan_;
};

inline std::string describe(const SoakPlan& plan) {
  constexpr std::array kPlaceNames{"forward",    "backward", "after backward", "update",
                                   "after step", "rebuild",  "any time"};
  constexpr std::array kFaultNames{"delayed", "dropped", "truncated"};
  std::string text = fmt::format("plan {}: {} ranks on {} machine(s){}", plan.number, plan.world, plan.machines,
                                 plan.has_network    ? " with a network"
                                 : plan.machines > 1 ? " in name"
                                                     : "");
  if (plan.copies > 0) text += fmt::format(", {} copies of a sharded optimizer's state", plan.copies);
  for (const Death& one : plan.faults) {
    text += fmt::format(", rank {} {} in step {} ({})", one.number,
                        one.frozen.count() > 0 ? fmt::format("stands still for {} ms", one.frozen.count()) : "dies",
                        one.step, kPlaceNames.at(static_cast<std::size_t>(one.place)));
  }
  for (const LateFault& one : plan.messages) {
    text += fmt::format(", a {} message of rank {} is {} ({} ms, after step {} and {} messages)",
                        one.message.is_control ? "control" : "data", one.rank,
                        kFaultNames.at(static_cast<std::size_t>(one.message.kind)), one.message.delay.count(), one.step,
                        one.message.after);
  }
  for (const Cut& one : plan.cuts)
    text += fmt::format(", machine {} is cut off for {} ms after step {}", one.machine, one.time.count(), one.step);
  return text;
}

}  // namespace lockstep::test
