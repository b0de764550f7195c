// Code of docs/failures.md and of the headers of elastic, as it stands there.
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "lockstep/c10d/distributed.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/elastic/elastic_training.h"
#include "lockstep/elastic/micro_batch_loader.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "lockstep/store/file_store.h"
#include "net.h"

namespace lockstep {
namespace {

[[maybe_unused]] void outlive(Net& net, torch::optim::SGD& optimizer, MicroBatchLoader<data::Example>& loader,
                              Loss loss_of) {
  init_process_group("", {.enable_reconfigure = true});
  std::optional<DistributedDataParallel<Net>> ddp;
  ElasticTraining training({.rebuild = [&] { ddp.emplace(net); }, .seed = 1});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  training.add_loader(loader);  // a MicroBatchLoader
  if (!training.join()) return;
  training.run(1000, {.gradients =
                          [&](ElasticStep& step) {
                            step.backward(*ddp, [&](const MicroBatch& micro_batch) {
                              data::Example& batch = loader.next(micro_batch);
                              return loss_of((*ddp)->forward(batch.data), batch.target);
                            });
                          },
                      .update = [&](std::int64_t) { optimizer.step(); }});
}

[[maybe_unused]] void replace(Net& net, bool is_newcomer) {
  std::optional<DistributedDataParallel<Net>> ddp;
  ElasticTraining training({.rebuild = [&] { ddp.emplace(net); },
                            .seed = 1,
                            .newcomers = comm::FileStore::open("/shared/newcomers").value(),
                            .newcomer_timeout = std::chrono::seconds(10)});
  if (is_newcomer && !training.join()) return;  // it was not needed
}

[[maybe_unused]] void shard(Net& net) {
  std::optional<DistributedDataParallel<Net>> ddp;
  // clang-format off
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(net->parameters(), torch::optim::AdamOptions(1e-3), {.copies = 2});
  ElasticTraining training({.rebuild = [&] { ddp.emplace(net); }, .seed = 1});
  training.add_model(*net);
  training.add_optimizer(optimizer);   // stays the same object after a death
  // clang-format on
}

[[maybe_unused]] void micro_batches(const data::TensorDataset& dataset, const MicroBatch& micro_batch) {
  MicroBatchLoader loader(dataset, {.batch_size = 64, .shuffle = true});
  auto& batch = loader.next(micro_batch);
  static_cast<void>(batch);
}

}  // namespace
}  // namespace lockstep
