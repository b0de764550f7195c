// A program with core and vision: transforms, and a model in a wrapper.
#include <lockstep/core.h>
#include <lockstep/vision.h>

#include <cstdio>

int main() {
  lockstep::ProcessGroupGuard group;
  const lockstep::data::Compose transforms({lockstep::data::Resize{32}, lockstep::data::ToTensor{}});
  lockstep::models::MnistNet net;
  lockstep::DistributedDataParallel ddp(net);
  const torch::Tensor scores = ddp->forward(torch::zeros({1, 1, 28, 28}));
  std::printf("rank %d of %d: %d transforms, %d classes\n", group.rank(), group.world_size(),
              static_cast<int>(transforms.transforms().size()), static_cast<int>(scores.size(1)));
}
