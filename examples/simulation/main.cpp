// A simulation that trains a network as it runs: heat in a ring, and a surrogate that learns what a piece of the ring
// does in ten steps of time. All ranks simulate. Every second rank trains too, on what it has just simulated; these
// ranks have a communicator of their own.
//
//   mpirun -n 4 ./simulation             gradients by DistributedDataParallel, on Lockstep's engine
//   mpirun -n 4 ./simulation mpi         the same on backend mpi
//   mpirun -n 4 ./simulation by-hand     gradients by MPI_Allreduce: the program of before
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

constexpr int kCells = 512;      // of a rank
constexpr int kStride = 10;      // steps of time that the surrogate makes at once
constexpr int kReach = kStride;  // cells on each side that a cell depends on then
constexpr int kRounds = 30;      // of simulating and training
constexpr double kConduction = 0.2;

// This rank's piece of the ring.
class Ring {
 public:
  explicit Ring(MPI_Comm communicator) : communicator_(communicator), cells_(kCells + 2 * kStride) {
    MPI_Comm_rank(communicator, &rank_);
    MPI_Comm_size(communicator, &size_);
    for (int i = 0; i < kCells; ++i) {
      const double angle = 2 * M_PI * (rank_ * kCells + i) / (double(size_) * kCells);
      cells_[kStride + i] = std::sin(7 * angle) + 0.5 * std::cos(40 * angle) + (i % 97 == rank_ ? 2.0 : 0.0);
    }
  }

  // Makes kStride steps of time, from the neighbours' nearest cells.
  void advance() {
    const int left = (rank_ + size_ - 1) % size_;
    const int right = (rank_ + 1) % size_;
    double* const own = &cells_[kStride];
    MPI_Sendrecv(own, kStride, MPI_DOUBLE, left, 0, own + kCells, kStride, MPI_DOUBLE, right, 0, communicator_,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(own + kCells - kStride, kStride, MPI_DOUBLE, right, 1, cells_.data(), kStride, MPI_DOUBLE, left, 1,
                 communicator_, MPI_STATUS_IGNORE);
    for (std::size_t step = 1; step <= kStride; ++step) {
      std::vector<double> next = cells_;
      for (std::size_t i = step; i + step < cells_.size(); ++i) {
        next[i] += kConduction * (cells_[i - 1] - 2 * cells_[i] + cells_[i + 1]);
      }
      cells_ = std::move(next);
    }
  }

  // Shape [kCells].
  torch::Tensor state() const { return torch::tensor(cells_).slice(0, kStride, kStride + kCells).to(torch::kFloat); }

 private:
  MPI_Comm communicator_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<double> cells_;  // with kStride cells of each neighbour
};

torch::nn::Sequential make_surrogate() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(2 * kReach + 1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
}

// The mean of the trainers' values.
template <typename Value>
void mean_by_hand(Value* values, std::int64_t count, MPI_Datatype type, MPI_Comm trainers) {
  int size = 0;
  MPI_Comm_size(trainers, &size);
  MPI_Allreduce(MPI_IN_PLACE, values, int(count), type, MPI_SUM, trainers);
  for (std::int64_t i = 0; i < count; ++i) values[i] /= Value(size);
}

// Learns the change of each cell from the cells around it.
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
  double step(const torch::Tensor& before, const torch::Tensor& after) {
    const torch::Tensor pieces = before.unfold(0, 2 * kReach + 1, 1);
    const torch::Tensor change = (after - before).slice(0, kReach, kCells - kReach).unsqueeze(1);
    optimizer_.zero_grad();
    const torch::Tensor predicted = by_hand_ ? model_->forward(pieces) : ddp_->forward(pieces);
    const torch::Tensor loss = torch::mse_loss(predicted, change);
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

 private:
  MPI_Comm trainers_;
  bool by_hand_;
  torch::nn::Sequential model_ = make_surrogate();
  std::optional<lockstep::DistributedDataParallel<torch::nn::Sequential>> ddp_;
  torch::optim::Adam optimizer_{model_->parameters(), torch::optim::AdamOptions(0.01)};
};

void simulate(const std::string& way) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm trainers = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2 == 0 ? 0 : MPI_UNDEFINED, rank, &trainers);
  Ring ring(MPI_COMM_WORLD);
  std::unique_ptr<Training> training;  // begins after a third of the simulation
  std::vector<double> seconds;         // of each step of training
  for (int round = 0; round < kRounds; ++round) {
    const torch::Tensor before = ring.state();
    ring.advance();
    if (trainers == MPI_COMM_NULL || round < kRounds / 3) continue;
    if (training == nullptr) training = std::make_unique<Training>(trainers, way);
    const auto start = std::chrono::steady_clock::now();
    const double loss = training->step(before, ring.state());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (rank == 0) std::printf("round %d loss %.9g\n", round, loss);
  }
  std::sort(seconds.begin(), seconds.end());
  if (rank == 0) std::printf("a step of training took %.0f us (median)\n", seconds[seconds.size() / 2] * 1e6);
  training.reset();
  if (trainers != MPI_COMM_NULL) MPI_Comm_free(&trainers);
}

}  // namespace

int main(int argc, char** argv) {
  // Backend mpi calls MPI from backward passes; the others would do with MPI_Init.
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  try {
    torch::set_num_threads(1);
    simulate(argc > 1 ? argv[1] : "lockstep");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulation: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
