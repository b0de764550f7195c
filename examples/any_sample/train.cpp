// Samples of any type, one after another: sentences of different lengths, padded into batches. Each worker of each rank
// reads a share of the files, so the ranks have different numbers of batches, and train to the end inside of `join`:
//   lockstep run --nproc-per-node 3 ./any_sample_train [WORKERS]
#include <lockstep/c10d/distributed.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <random>

namespace {

constexpr std::int64_t kWords = 50;
constexpr std::int64_t kFiles = 7;

struct Sentence {
  std::vector<std::int64_t> words;
  bool is_question = false;
};

struct Batch {
  torch::Tensor words;    // int64 [n, longest], padded with 0
  torch::Tensor targets;  // int64 [n]
};
auto fields(Batch& batch) {
  return std::tie(batch.words, batch.targets);
}

// File f has 10 + 15 f sentences. Here they are made up; a program would open the file.
class Corpus : public lockstep::data::IterableDatasetOf<Sentence> {
 public:
  lockstep::data::SampleStream<Sentence> iterate(const lockstep::data::StreamShare& share) const override {
    return [share, file = share.part(), line = std::int64_t{0}]() mutable -> std::optional<Sentence> {
      while (file < kFiles && line == 10 + 15 * file) {
        file += share.parts();
        line = 0;
      }
      if (file >= kFiles) return std::nullopt;
      return make(file, line++);
    };
  }

 private:
  static Sentence make(std::int64_t file, std::int64_t line) {
    std::minstd_rand random(static_cast<std::uint32_t>(1000 * file + line + 1));
    Sentence sentence{std::vector<std::int64_t>(3 + random() % 8), random() % 2 == 0};
    for (std::int64_t& word : sentence.words) word = 2 + static_cast<std::int64_t>(random() % (kWords - 2));
    if (sentence.is_question) sentence.words.back() = 1;
    return sentence;
  }
};

Batch pad(const std::vector<Sentence>& sentences) {
  std::size_t longest = 0;
  for (const Sentence& sentence : sentences) longest = std::max(longest, sentence.words.size());
  const auto count = static_cast<std::int64_t>(sentences.size());
  Batch batch{torch::zeros({count, static_cast<std::int64_t>(longest)}, torch::kLong),
              torch::zeros({count}, torch::kLong)};
  for (std::int64_t i = 0; i < count; ++i) {
    const Sentence& sentence = sentences[static_cast<std::size_t>(i)];
    const auto length = static_cast<std::int64_t>(sentence.words.size());
    batch.words[i].slice(0, 0, length) = torch::tensor(sentence.words);
    batch.targets[i] = static_cast<std::int64_t>(sentence.is_question);
  }
  return batch;
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) { return out(embedding(words).mean(1)); }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(kWords, 16));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(16, 2));
};
TORCH_MODULE(Net);

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  torch::manual_seed(1);
  Net net;
  lockstep::DistributedDataParallel<Net> ddp(net);
  torch::optim::Adam optimizer(ddp.parameters(), 1e-2);
  lockstep::data::DataLoaderOf<Sentence, Batch> loader(
      Corpus(), {.batch_size = 8, .num_workers = argc > 1 ? std::stoi(argv[1]) : 0, .collate = pad});

  torch::Tensor sentences = torch::zeros({1}, torch::kLong);
  ddp.join([&] {
    for (Batch& batch : loader) {
      optimizer.zero_grad();
      torch::cross_entropy_loss(ddp->forward(batch.words), batch.targets).backward();
      optimizer.step();
      sentences += batch.words.size(0);
    }
  });
  std::cout << "Rank " + std::to_string(group.rank()) + " has read " + std::to_string(sentences.item<std::int64_t>()) +
                   " sentences\n";
  lockstep::all_reduce(sentences);
  if (group.rank() == 0) {
    std::cout << "Rank 0: all have read " + std::to_string(sentences.item<std::int64_t>()) + " sentences\n";
  }
  return 0;
}
