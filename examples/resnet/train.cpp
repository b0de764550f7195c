// The job that everyone quotes for this stack: ResNet-18 on a folder of pictures with the usual augmentation, SGD with
// rate 0.001 and momentum 0.9, cross entropy. Seconds per epoch on 1, 2 and 4 processes make the table of speed-ups:
//
//   lockstep scaling --procs 1,2,4 -- ./resnet_train FOLDER [EPOCHS [SIDE [BATCH [SEED]]]] [OPTIONS]
//
// FOLDER has train/CLASS/*.jpg and test/CLASS/*.jpg. SIDE of the crops, 224 unless given; BATCH of each process, 32;
// SEED of weights, order and transforms, 1. OPTIONS: --resnet50 instead of ResNet-18; --bf16, the forward pass in
// bfloat16 where that is right; --channels-last, the layout that is often faster. `./dev bench train` runs it beside
// the same job in Python, and data_parallel.cpp is the same job in one process.
#include <utility>

#include "job.h"

namespace {

namespace data = lockstep::data;

void train(const resnet_job::Arguments& a) {
  const lockstep::ProcessGroupGuard group;
  data::ImageFolder pictures = resnet_job::train_pictures(a);
  auto net = resnet_job::make_net(a, static_cast<std::int64_t>(pictures.classes().size()));
  data::DataLoader train_loader(
      std::move(pictures), {.batch_size = a.batch, .shuffle = true, .seed = a.seed, .num_workers = data::kAutoWorkers});
  data::DataLoader test_loader(resnet_job::test_pictures(a), {.batch_size = a.batch, .exact = true, .num_workers = 1});
  auto optimizer = resnet_job::make_optimizer(net);
  resnet_job::Told told(group.rank() == 0, group.world_size());
  using Precision = lockstep::TrainingPrecision;
  lockstep::TrainerOptions options{.epochs = a.epochs,
                                   .precision = a.bf16 ? Precision::kBFloat16 : Precision::kFloat32,
                                   .channels_last = a.channels_last,
                                   .monitor = lockstep::Monitor::kAccuracy};
  options.callbacks.on_epoch_end = [&](const lockstep::EpochReport& epoch) { told.epoch(epoch); };
  options.callbacks.on_evaluation = [&](const lockstep::Evaluation& found) {
    told.accuracy(found.epoch, found.accuracies[0]);
  };
  lockstep::use_fast_batch_norm();
  lockstep::use_fast_convolution();
  lockstep::Trainer trainer(net, optimizer, options);
  trainer.fit(train_loader, test_loader, [&](data::Example& batch) -> lockstep::StepOutput {
    const torch::Tensor scores = net->forward(batch.data);
    return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
  });
  told.end();
}

}  // namespace

int main(int argc, char** argv) {
  return resnet_job::run(argc, argv, "FOLDER [EPOCHS [SIDE [BATCH [SEED]]]]", train);
}
