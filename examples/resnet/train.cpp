// The job that everyone quotes for this stack: ResNet-18 on a folder of pictures with the usual augmentation, SGD with
// rate 0.001 and momentum 0.9, cross entropy. Seconds per epoch on 1, 2 and 4 processes make the table of speed-ups.
//
//   lockstep run --nproc-per-node 2 ./resnet_train FOLDER [EPOCHS [SIDE [BATCH [SEED]]]]
//
// FOLDER has train/CLASS/*.jpg and test/CLASS/*.jpg. SIDE of the crops, 224 unless given; BATCH of each process, 32;
// SEED of weights, order and transforms, 1. `./dev bench train` runs it beside the same job in Python.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <exception>
#include <string>

namespace data = lockstep::data;

namespace {

const data::Normalize kNormalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};

data::Compose augmentation(int side) {
  return data::Compose(
      {data::RandomResizedCrop{side}, data::RandomHorizontalFlip{}, data::RandomVerticalFlip{},
       data::RandomRotation{15.0}, data::RandomAffine{.degrees = 0.0, .translate = data::Point{0.1, 0.1}},
       data::ColorJitter{.brightness = 0.2, .contrast = 0.2, .saturation = 0.2}, data::ToTensor{}, kNormalize});
}

data::Compose plain(int side) {
  return data::Compose({data::Resize{side * 8 / 7}, data::CenterCrop{side}, data::ToTensor{}, kNormalize});
}

void train(const std::string& folder, std::int64_t epochs, int side, std::int64_t batch, std::uint64_t seed) {
  const lockstep::ProcessGroupGuard group;
  data::ImageFolder pictures(folder + "/train", augmentation(side));
  const auto classes = static_cast<std::int64_t>(pictures.classes().size());
  data::DataLoader train_loader(
      std::move(pictures), {.batch_size = batch, .shuffle = true, .seed = seed, .num_workers = data::kAutoWorkers});
  data::DataLoader test_loader(data::ImageFolder(folder + "/test", plain(side)),
                               {.batch_size = batch, .exact = true, .num_workers = 1});
  torch::manual_seed(seed);
  auto net = lockstep::models::resnet18({.num_classes = classes, .small_images = side < 64});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
  lockstep::TrainerOptions options{.epochs = epochs, .monitor = lockstep::Monitor::kAccuracy};
  options.callbacks.on_epoch_end = [&](const lockstep::EpochReport& epoch) {
    if (group.rank() != 0) return;
    std::printf("Rank 0, epoch %lld: %.2f s, %.2f pictures/s, loss %.4f\n", static_cast<long long>(epoch.epoch),
                epoch.seconds, static_cast<double>(epoch.samples) / epoch.seconds, epoch.loss);
  };
  options.callbacks.on_evaluation = [&](const lockstep::Evaluation& found) {
    if (group.rank() == 0) std::printf("Rank 0: test accuracy %.2f %%\n", 100 * found.accuracies[0]);
  };
  lockstep::Trainer trainer(net, optimizer, options);
  trainer.fit(train_loader, test_loader, [&](data::Example& batch) -> lockstep::StepOutput {
    const torch::Tensor scores = net->forward(batch.data);
    return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [EPOCHS [SIDE [BATCH [SEED]]]]; FOLDER has train/CLASS and test/CLASS\n",
                 argv[0]);
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::stoll(argv[2]) : 10, argc > 3 ? std::stoi(argv[3]) : 224,
          argc > 4 ? std::stoll(argv[4]) : 32, argc > 5 ? std::stoull(argv[5]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resnet_train: %s\n", error.what());
    return 1;
  }
}
