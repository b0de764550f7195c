// ResNet-18 on a folder of pictures, with the usual augmentation.
//
//   lockstep run --nproc-per-node 2 ./image_folder_train FOLDER [EPOCHS]     FOLDER/CLASS/*.jpg
#include <lockstep/data/data_loader.h>
#include <lockstep/datasets/image_folder.h>
#include <lockstep/lockstep.h>
#include <lockstep/models/resnet.h>
#include <lockstep/nn/distributed_data_parallel.h>

#include <cstdio>
#include <exception>
#include <string>

namespace data = lockstep::data;

void train(const std::string& folder, int epochs) {
  lockstep::ProcessGroupGuard group;
  const auto device = lockstep::local_device();
  data::ImageFolder pictures(
      folder, data::Compose({data::RandomResizedCrop{224}, data::RandomHorizontalFlip{},
                             data::ColorJitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4}, data::ToTensor{},
                             data::Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}}));
  auto model = lockstep::models::resnet18({.num_classes = static_cast<std::int64_t>(pictures.classes().size())});
  model->to(device);
  lockstep::DistributedDataParallel<lockstep::models::ResNet> ddp(model);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-4));
  data::DataLoader loader(std::move(pictures), {.batch_size = 32, .shuffle = true, .num_workers = 2});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    double loss_sum = 0.0;
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(ddp->forward(images.to(device)), labels.to(device));
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    if (lockstep::get_rank() == 0)
      std::printf("epoch %d: loss %.3f\n", epoch, loss_sum / static_cast<double>(loader.size()));
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [EPOCHS]; FOLDER has a subfolder of pictures for each class\n", argv[0]);
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::stoi(argv[2]) : 90);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "image_folder_train: %s\n", error.what());
    return 1;
  }
}
