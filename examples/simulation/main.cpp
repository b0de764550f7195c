// A simulation that trains a network as it runs: the supervised example of NVIDIA's TorchFort, in C++. A quantity moves
// through a periodic square (linear advection), and a linear layer learns its divergence from its values. All ranks
// simulate, each a slab of the grid. Every second rank trains too, on whole grids; these ranks have a communicator of
// their own.
//
//   mpirun -n 4 ./simulation             gradients by DistributedDataParallel, on Lockstep's engine
//   mpirun -n 4 ./simulation mpi         the same on backend mpi
//   mpirun -n 4 ./simulation by-hand     gradients by MPI_Allreduce, one after the other: the program of before
#include <lockstep/c10d/mpi_communicator.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <mpi.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr int kSide = 32;  // of the grid
constexpr int kCells = kSide * kSide;
constexpr int kBatch = 8;    // grids for a trainer in a step of training
constexpr int kBefore = 50;  // steps of time before the training begins
constexpr int kTrainingSteps = 60;
constexpr int kValidation = 10;  // steps of time after the training
constexpr double kTimeStep = 0.01;
constexpr double kSpeedX = 1, kSpeedY = 0.789;

// One moment: values and divergences of some rows of the grid, or of all.
struct State {
  std::vector<float> values;
  std::vector<float> divergences;
};

// This rank's slab.
class Advection {
 public:
  explicit Advection(MPI_Comm communicator) : communicator_(communicator) {
    int size = 0;
    MPI_Comm_rank(communicator, &rank_);
    MPI_Comm_size(communicator, &size);
    for (int rank = 0; rank <= size; ++rank) begins_.push_back(kSide * rank / size * kSide);
    for (int rank = 0; rank < size; ++rank) counts_.push_back(begins_[rank + 1] - begins_[rank]);
  }

  // The exact solution, in place of a solver.
  void advance() {
    time_ += kTimeStep;
    now_ = {};
    for (int cell = begins_[rank_]; cell < begins_[rank_ + 1]; ++cell) {
      const double x = M_PI * (-1 + 2.0 / kSide * (cell % kSide) - kSpeedX * time_);
      const double y = M_PI * (-1 + 2.0 / kSide * (cell / kSide) - kSpeedY * time_);
      now_.values.push_back(float(std::sin(x) * std::sin(y)));
      now_.divergences.push_back(
          float(M_PI * (kSpeedX * std::cos(x) * std::sin(y) + kSpeedY * std::sin(x) * std::cos(y))));
    }
  }

  // Collective: the whole grid on rank `root`.
  State gather(int root) const {
    State all{std::vector<float>(kCells), std::vector<float>(kCells)};
    const auto one = [&](const std::vector<float>& own, std::vector<float>& result) {
      MPI_Gatherv(own.data(), int(own.size()), MPI_FLOAT, result.data(), counts_.data(), begins_.data(), MPI_FLOAT,
                  root, communicator_);
    };
    one(now_.values, all.values);
    one(now_.divergences, all.divergences);
    return all;
  }

 private:
  MPI_Comm communicator_;
  int rank_ = 0;
  std::vector<int> begins_, counts_;  // cells of the ranks
  double time_ = 0;
  State now_;
};

struct Batch {
  torch::Tensor values;  // {grids, kCells}
  torch::Tensor divergences;
};

// Simulates `grids` steps of time for each rank that trains. Collective; the result is the batch of this rank, which is
// empty where it does not train.
Batch simulate(Advection& simulation, int grids, int trainers, int trainer) {
  std::vector<torch::Tensor> values, divergences;
  for (int i = 0; i < grids * trainers; ++i) {
    simulation.advance();
    const State state = simulation.gather(/*root=*/2 * (i % trainers));
    if (i % trainers != trainer) continue;
    values.push_back(torch::tensor(state.values));
    divergences.push_back(torch::tensor(state.divergences));
  }
  if (values.empty()) return {};
  return {torch::stack(values), torch::stack(divergences)};
}

// The mean of the trainers' values.
template <typename Value>
void mean_by_hand(Value* values, std::int64_t count, MPI_Datatype type, MPI_Comm trainers) {
  int size = 0;
  MPI_Comm_size(trainers, &size);
  MPI_Allreduce(MPI_IN_PLACE, values, int(count), type, MPI_SUM, trainers);
  for (std::int64_t i = 0; i < count; ++i) values[i] /= Value(size);
}

class Training {
 public:
  Training(MPI_Comm trainers, const std::string& way) : trainers_(trainers), by_hand_(way == "by-hand") {
    if (by_hand_) {
      for (torch::Tensor& weights : model_->parameters()) {
        MPI_Bcast(weights.data_ptr<float>(), int(weights.numel()), MPI_FLOAT, 0, trainers);
      }
    } else {
      lockstep::init_process_group(trainers, way);
      ddp_.emplace(model_);
    }
  }
  ~Training() {
    ddp_.reset();
    lockstep::destroy_process_group();
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Returns the trainers' mean loss.
  double step(const Batch& batch) {
    optimizer_.zero_grad();
    const torch::Tensor predicted = by_hand_ ? model_->forward(batch.values) : ddp_->forward(batch.values);
    const torch::Tensor loss = torch::mse_loss(predicted, batch.divergences);
    loss.backward();
    if (by_hand_) {
      for (torch::Tensor& weights : model_->parameters()) {
        mean_by_hand(weights.mutable_grad().data_ptr<float>(), weights.numel(), MPI_FLOAT, trainers_);
      }
    }
    optimizer_.step();
    auto mean = loss.item<double>();
    mean_by_hand(&mean, 1, MPI_DOUBLE, trainers_);
    return mean;
  }

  double error(const Batch& batch) {
    const torch::NoGradGuard no_grad;
    return torch::mse_loss(model_->forward(batch.values), batch.divergences).item<double>();
  }

 private:
  MPI_Comm trainers_;
  bool by_hand_;
  torch::nn::Linear model_{(torch::manual_seed(1), torch::nn::Linear(kCells, kCells))};
  std::optional<lockstep::DistributedDataParallel<torch::nn::Linear>> ddp_;
  torch::optim::Adam optimizer_{model_->parameters(), torch::optim::AdamOptions(1e-3)};
};

void run(const std::string& way) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const bool trains = rank % 2 == 0;
  MPI_Comm trainers = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, trains ? 0 : MPI_UNDEFINED, rank, &trainers);
  Advection simulation(MPI_COMM_WORLD);
  for (int i = 0; i < kBefore; ++i) simulation.advance();

  std::unique_ptr<Training> training;
  if (trains) training = std::make_unique<Training>(trainers, way);
  const auto samples = [&](int grids) { return simulate(simulation, grids, (ranks + 1) / 2, trains ? rank / 2 : -1); };
  std::vector<double> seconds;  // of each step of training
  for (int step = 0; step < kTrainingSteps; ++step) {
    const Batch batch = samples(kBatch);
    if (!trains) continue;
    const auto start = std::chrono::steady_clock::now();
    const double loss = training->step(batch);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (rank == 0) std::printf("step %d loss %.9g\n", step, loss);
  }
  const Batch unseen = samples(kValidation);
  if (rank == 0) {
    std::sort(seconds.begin(), seconds.end());
    std::printf("mean squared error on later grids %.9g\n", training->error(unseen));
    std::printf("a step of training took %.0f us (median)\n", seconds[seconds.size() / 2] * 1e6);
  }
  training.reset();
  if (trains) MPI_Comm_free(&trainers);
}

}  // namespace

int main(int argc, char** argv) {
  // Backend mpi calls MPI from backward passes; the others would do with MPI_Init.
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  try {
    torch::set_num_threads(1);
    run(argc > 1 ? argv[1] : "lockstep");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulation: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
