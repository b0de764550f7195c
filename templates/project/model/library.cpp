// The model as a shared object, with which `lockstep evaluate`, `predict`, `checkpoint export` and `train` use it.
#include <lockstep/trainer/model_library.h>

#include "model/net.h"

namespace {

std::shared_ptr<NetImpl> make_net(const lockstep::ModelRequest& request) {
  return std::make_shared<NetImpl>(request.num_classes);
}

}  // namespace

LOCKSTEP_MODEL(make_net)
