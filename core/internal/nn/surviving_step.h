// What ElasticTraining needs of an optimizer whose step() communicates, to take it through the deaths of ranks.
//
// step() has two halves: a local one, which no death can disturb, and an exchange, after which every rank has all
// values. So when a rank dies in the exchange, the others have all made the local half, or can make it, and get the
// values from one another. Functions that are called collective are collective over the world.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>

namespace lockstep::nn_detail {

class SurvivingStep {
 public:
  // Why ElasticTraining cannot take this optimizer, and what to do; empty: it can.
  virtual std::string why_not() const = 0;
  // What must be the same on all ranks, a line each.
  virtual std::string description() const = 0;
  // Whether the program has loaded a state.
  virtual bool has_loaded() const = 0;
  // An optimizer of the kind that steps, with the present options of all groups, and without parameters.
  virtual std::unique_ptr<torch::optim::Optimizer> without_parameters() const = 0;
  virtual void take_options(const torch::optim::Optimizer& from) = 0;

  // Until it is called with an empty function, step() may be called once. step() makes the local half, in the group of
  // an earlier world too, and gives `around` the function that makes the exchange. When `around` returns, all values
  // must be there.
  using Around = std::function<void(const std::function<void()>& exchange)>;
  virtual void set_around(Around around) = 0;

  // This rank's state differs from the state of the others. This rank drops its state, and regain() brings it back.
  // After an error in regain() this rank may have a part of the state.
  virtual void forget() = 0;
  // Collective. Describes the state that no rank has; empty: all is there.
  virtual std::string lost() = 0;
  // Collective. All ranks have made the local half: each value comes from a rank that has stepped it.
  virtual void share_values() = 0;
  // Collective. Divides the state among the ranks of the present world. After an error each rank has at least what it
  // had before, and the function may be called again.
  virtual void regain() = 0;

 protected:
  ~SurvivingStep() = default;
};

}  // namespace lockstep::nn_detail
