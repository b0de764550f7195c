// CollectiveStep: a base that marks optimizers whose step() communicates (SharedStep, ZeroRedundancyOptimizer).
// ElasticTraining takes some of them through the deaths of ranks, and refuses the others.
#pragma once

namespace lockstep {

namespace nn_detail {
class SurvivingStep;
}

class CollectiveStep {
 public:
  // For ElasticTraining alone. Null: a rank that dies in step() leaves the others without a whole state.
  virtual nn_detail::SurvivingStep* surviving_step() { return nullptr; }

 protected:
  CollectiveStep() = default;
  virtual ~CollectiveStep() = default;
};

}  // namespace lockstep
