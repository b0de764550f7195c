// CollectiveStep: a base that marks optimizers whose step() communicates (SharedStep, ZeroRedundancyOptimizer).
// ElasticTraining, where each rank takes its steps alone, refuses such optimizers.
#pragma once

namespace lockstep {

class CollectiveStep {
 protected:
  CollectiveStep() = default;
  virtual ~CollectiveStep() = default;
};

}  // namespace lockstep
