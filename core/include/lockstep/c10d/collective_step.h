// CollectiveStep: a base that marks optimizers whose step() communicates (SharedStep, ZeroRedundancyOptimizer). Who
// needs a step that each rank does alone, as ElasticTraining, refuses them.
#pragma once

namespace lockstep {

class CollectiveStep {
 protected:
  CollectiveStep() = default;
  virtual ~CollectiveStep() = default;
};

}  // namespace lockstep
