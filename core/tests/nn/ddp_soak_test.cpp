// Random training programs under DistributedDataParallel: several wrappers, with and without shared parameters, in
// groups, with branches by rank, collectives of the program's own, no_sync, frozen parts and exceptions. Every rank
// also computes what each of the ranks should have, with LibTorch alone and without communication.
//
// LOCKSTEP_TEST_SOAK says how many programs run, LOCKSTEP_TEST_SOAK_FIRST from which seed on.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "nn/twins.h"
#include "support/effort.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kIn = 24;
constexpr std::int64_t kWide = 200;  // 24 x 200 doubles: more than gradients that have no slot

int number_in(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// In a backward pass, an all-reduce of the program's own.
struct Chatter : torch::autograd::Function<Chatter> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const int world = get_world_size();
    const torch::Tensor mine = torch::full({kWide}, get_rank() + 1, torch::kDouble);
    all_reduce(mine);
    EXPECT_EQ(mine.min().item<double>(), world * (world + 1) / 2.0);
    EXPECT_EQ(mine.max().item<double>(), world * (world + 1) / 2.0);
    return gradients;
  }
};

struct Failing : torch::autograd::Function<Failing> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("the program's own");
  }
};

struct PlainHook final : CommHook {
  std::function<void()> run(GradBucket& bucket) override {
    auto work = all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG, .group = bucket.group()});
    return [work] { work->wait(); };
  }
};

// What one rank computes with one model in one step.
struct Branch {
  enum Kind { kHeads, kEncoder, kTail } kind = kHeads;
  unsigned heads = 1;  // bits
  bool chatters = false;
  bool fails = false;
};

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(torch::nn::Linear shared) {
    encoder = register_module("encoder", shared ? shared : torch::nn::Linear(kIn, kWide));
    middle = register_module("middle", torch::nn::Linear(kWide, 30));
    for (int i = 0; i < 3; ++i) heads.push_back(register_module("head" + std::to_string(i), torch::nn::Linear(30, 5)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, const Branch& branch) {
    if (branch.kind == Branch::kTail) return middle(x.repeat({1, 9}).narrow(1, 0, kWide)).square().mean();
    torch::Tensor y = torch::tanh(encoder(x));
    if (branch.fails) y = Failing::apply(y);
    if (branch.kind == Branch::kEncoder) return y.square().mean();
    if (branch.chatters) y = Chatter::apply(y);
    y = torch::tanh(middle(y));
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (unsigned i = 0; i < heads.size(); ++i) {
      if ((branch.heads >> i) & 1) sum = sum + heads[i](y).square().mean();
    }
    return sum;
  }
  torch::nn::Linear encoder{nullptr}, middle{nullptr};
  std::vector<torch::nn::Linear> heads;
};
TORCH_MODULE(Model);

// A module around another one, which may be wrapped itself.
struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(Model model) {
    inner = register_module("inner", std::move(model));
    scale = register_parameter("scale", torch::full({3}, 1.5, torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& x, const Branch& branch) {
    return inner->forward(x, branch) * scale.square().sum();
  }
  Model inner{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Around);

class ProgramOfSeed {
 public:
  explicit ProgramOfSeed(int seed)
      : seed_(seed), random_(static_cast<unsigned>(seed)), rank_(get_rank()), world_(get_world_size()) {
    build();
  }

  void run() {
    for (int step = 0; step < 6 && !testing::Test::HasFailure(); ++step) {
      if (chance(0.7)) clear();
      if (happens_ == kFreezes && chance(0.3)) freeze_or_unfreeze();
      if (happens_ != kAccumulates && chance(0.15)) fail();
      if (happens_ == kAccumulates && chance(0.4)) accumulate();
      synchronised_step();
      compare(step);
      descend();
    }
  }

 private:
  struct Wrapped {
    std::unique_ptr<DistributedDataParallel<Model>> model;
    std::unique_ptr<DistributedDataParallel<Around>> around;
    std::vector<torch::Tensor> parameters;
    std::vector<int> ranks;
    bool has(int rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
    torch::Tensor forward(const torch::Tensor& x, const Branch& branch) {
      return model ? (*model)->forward(x, branch) : around->forward(x, branch);
    }
    // The same without the wrapper, for the expected gradients.
    torch::Tensor plain(const torch::Tensor& x, const Branch& branch) {
      return model ? model->module()->forward(x, branch) : around->module()->forward(x, branch);
    }
  };

  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }
  int below(int count) { return std::uniform_int_distribution<>(0, count - 1)(random_); }

  DistributedDataParallelOptions options() {
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = chance(0.6);
    options.bucket_cap_mb = chance(0.5) ? 0.001 : 25;
    options.broadcast_buffers = chance(0.5);
    return options;
  }

  void add(Model model, const DistributedDataParallelOptions& options, std::vector<int> ranks) {
    Wrapped& one = wrapped_.emplace_back();
    one.ranks = std::move(ranks);
    one.parameters = model->parameters();
    models_.push_back(model);
    const bool hooked = chance(0.2);
    if (!one.has(rank_)) return;
    one.model = std::make_unique<DistributedDataParallel<Model>>(std::move(model), options);
    if (hooked) one.model->register_comm_hook(std::make_shared<PlainHook>());
  }

  void build() {
    torch::manual_seed(seed_);
    std::vector<int> all(static_cast<std::size_t>(world_));
    std::iota(all.begin(), all.end(), 0);
    const int count = 1 + below(3);
    const bool shares = chance(0.6);
    happens_ = static_cast<Happens>(below(3));
    for (int i = 0; i < count; ++i) {
      const torch::nn::Linear encoder = shares && i > 0 ? models_[0]->encoder : torch::nn::Linear(nullptr);
      add(Model(encoder), options(), all);
    }
    if (chance(0.25)) add(models_[0], options(), all);  // the same once more
    if (chance(0.25)) {
      Around around(models_[static_cast<std::size_t>(below(count))]);
      Wrapped& one = wrapped_.emplace_back();
      one.ranks = all;
      one.parameters = around->parameters();
      one.around = std::make_unique<DistributedDataParallel<Around>>(around, options());
    }
    if (world_ > 2 && chance(0.5)) {  // one in a group
      DistributedDataParallelOptions in_group = options();
      all.erase(all.begin() + below(world_));
      in_group.process_group = new_group(all);
      add(Model(torch::nn::Linear(nullptr)), in_group, all);
    }
    for (const Wrapped& one : wrapped_) {
      for (const torch::Tensor& parameter : one.parameters) {
        if (index_of(parameter) == parameters_.size()) parameters_.push_back(parameter);
      }
    }
    clear();
  }

  std::size_t index_of(const torch::Tensor& parameter) const {
    return static_cast<std::size_t>(std::find_if(parameters_.begin(), parameters_.end(),
                                                 [&](const torch::Tensor& one) { return one.is_same(parameter); }) -
                                    parameters_.begin());
  }

  void clear() {
    for (torch::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    expected_.assign(static_cast<std::size_t>(world_), std::vector<torch::Tensor>(parameters_.size()));
  }

  // Any head, on all ranks.
  void freeze_or_unfreeze() {
    auto& head = models_[static_cast<std::size_t>(below(static_cast<int>(models_.size())))]->heads[below(3)];
    const bool frozen = !head->weight.requires_grad();
    for (torch::Tensor& parameter : head->parameters()) parameter.requires_grad_(frozen);
    clear();
  }

  torch::Tensor input(int rank, int number) const {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed_) * 1000003 + number * 131 + rank);
    return torch::randn({6, kIn}, generator, torch::kDouble);
  }

  // Every rank draws those of all ranks, so that all draw alike.
  std::vector<Branch> branches(bool by_rank) {
    std::vector<Branch> all;
    for (int rank = 0; rank < world_; ++rank) {
      Branch branch;
      if (!by_rank && rank > 0) {
        branch = all[0];
      } else {
        branch.kind = chance(0.6) ? Branch::kHeads : chance(0.5) ? Branch::kEncoder : Branch::kTail;
        branch.heads = static_cast<unsigned>(1 + below(7));
      }
      all.push_back(branch);
    }
    return all;
  }

  void expect_from(Wrapped& one, int rank, int number, Branch branch) {
    branch.chatters = branch.fails = false;
    std::vector<torch::Tensor> trained;
    for (const torch::Tensor& parameter : parameters_) {
      if (parameter.requires_grad()) trained.push_back(parameter);
    }
    torch::Tensor loss = plain_of(one, input(rank, number), branch);
    if (!loss.requires_grad()) return;
    const auto gradients = torch::autograd::grad({loss}, trained, {}, false, false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < trained.size(); ++i) {
      torch::Tensor& sum = expected_[static_cast<std::size_t>(rank)][index_of(trained[i])];
      if (gradients[i].defined()) sum = sum.defined() ? sum + gradients[i] : gradients[i];
    }
  }

  torch::Tensor plain_of(Wrapped& one, const torch::Tensor& x, const Branch& branch) {
    if (one.around || one.model) return one.plain(x, branch);
    return models_.back()->forward(x, branch);  // of the group without this rank
  }

  void expect_mean(const Wrapped& one) {
    for (const torch::Tensor& parameter : one.parameters) {
      if (!parameter.requires_grad()) continue;
      const std::size_t i = index_of(parameter);
      torch::Tensor sum;
      for (const int rank : one.ranks) {
        const torch::Tensor& own = expected_[static_cast<std::size_t>(rank)][i];
        if (own.defined()) sum = sum.defined() ? sum + own : own;
      }
      if (!sum.defined()) continue;
      for (const int rank : one.ranks) {
        expected_[static_cast<std::size_t>(rank)][i] = sum / static_cast<double>(one.ranks.size());
      }
    }
  }

  // As many passes as each rank likes.
  void accumulate() {
    for (Wrapped& one : wrapped_) {
      if (!chance(0.5)) continue;
      for (const int rank : one.ranks) {
        for (int part = below(3); part > 0; --part) {
          const Branch branch = branches(true)[0];
          const int number = next_++;
          expect_from(one, rank, number, branch);
          if (rank != rank_) continue;
          std::vector<NoSyncGuard> guards;  // of all, as some share parameters
          for (Wrapped& each : wrapped_) {
            if (each.model) guards.push_back(each.model->no_sync());
            if (each.around) guards.push_back(each.around->no_sync());
          }
          one.forward(input(rank, number), branch).backward();
        }
      }
    }
  }

  // The same exception on all ranks, after different buckets were sent. Gradients are dropped.
  void fail() {
    Wrapped& one = wrapped_[0];
    Branch branch;
    branch.fails = true;
    branch.heads = static_cast<unsigned>(1 + (below(7) + rank_) % 7);
    const torch::Tensor loss = one.forward(input(rank_, next_++), branch);
    EXPECT_THROW(loss.backward(), std::exception);
    failed_ = true;
    clear();
  }

  void synchronised_step() {
    std::vector<Wrapped*> used;
    for (Wrapped& one : wrapped_) {
      if (chance(0.7)) used.push_back(&one);
    }
    if (used.empty()) used.push_back(&wrapped_[0]);
    const bool by_rank = chance(0.7);
    const bool chatters = chance(0.5);
    const bool together = chance(0.6);
    // Not where the next call of a wrapper compares the models, or ends a pass that an exception has left: that waits
    // for the same call of all ranks.
    const bool reversed = together && happens_ != kFreezes && !failed_ && chance(0.5);
    const bool async = chance(0.3);
    torch::Tensor sent = torch::full({30}, rank_ + 1, torch::kDouble);
    Work work = async ? all_reduce_async(sent) : nullptr;
    std::vector<std::pair<Wrapped*, torch::Tensor>> losses;
    std::vector<std::function<void()>> calls;
    for (Wrapped* one : used) {
      std::vector<Branch> all = branches(by_rank);
      // Every rank of the world, or none: the program's own collectives are of the world.
      const bool all_chatter =
          chatters && static_cast<int>(one->ranks.size()) == world_ &&
          std::all_of(all.begin(), all.end(), [](const Branch& b) { return b.kind == Branch::kHeads; });
      const int number = next_++;
      for (const int rank : one->ranks) expect_from(*one, rank, number, all[static_cast<std::size_t>(rank)]);
      Branch mine = all[static_cast<std::size_t>(rank_)];
      mine.chatters = all_chatter;
      if (one->has(rank_)) {
        calls.push_back([=, this, &losses] { losses.emplace_back(one, one->forward(input(rank_, number), mine)); });
      }
    }
    if (reversed && rank_ % 2 == 1) std::reverse(calls.begin(), calls.end());
    for (const auto& call : calls) call();
    backward(losses, together);
    for (Wrapped* one : with_family(used)) expect_mean(*one);
    if (work) {
      work->wait();
      EXPECT_EQ(sent[0].item<double>(), world_ * (world_ + 1) / 2.0);
    }
  }

  // Wrappers that share parameters take part in one another's passes.
  std::vector<Wrapped*> with_family(std::vector<Wrapped*> members) {
    const auto shares = [](const Wrapped& one, const Wrapped& other) {
      return std::any_of(one.parameters.begin(), one.parameters.end(), [&](const torch::Tensor& a) {
        return std::any_of(other.parameters.begin(), other.parameters.end(),
                           [&](const torch::Tensor& b) { return a.is_same(b); });
      });
    };
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (Wrapped& other : wrapped_) {
        const bool known = std::find(members.begin(), members.end(), &other) != members.end();
        if (!known && shares(*members[i], other)) members.push_back(&other);
      }
    }
    return members;
  }

  static void backward(std::vector<std::pair<Wrapped*, torch::Tensor>>& losses, bool together) {
    std::erase_if(losses, [](const auto& one) { return !one.second.requires_grad(); });
    if (losses.empty()) return;
    if (!together) {
      for (auto& [one, loss] : losses) loss.backward();
      return;
    }
    torch::Tensor sum = losses[0].second;
    for (std::size_t i = 1; i < losses.size(); ++i) sum = sum + losses[i].second;
    sum.backward();
  }

  void compare(int step) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const torch::Tensor& found = parameters_[i].grad();
      const torch::Tensor& expected = expected_[static_cast<std::size_t>(rank_)][i];
      const torch::Tensor zeros = torch::zeros_like(parameters_[i]);
      const torch::Tensor difference =
          ((found.defined() ? found : zeros) - (expected.defined() ? expected : zeros)).abs();
      ASSERT_LT(difference.max().item<double>(), 1e-9)
          << "seed " << seed_ << ", step " << step << ", parameter " << i << " of " << parameters_.size();
    }
  }

  // With the gradients that all ranks have alike; those of ranks alone are kept or dropped.
  void descend() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      bool alike = true;
      for (const auto& of_rank : expected_) {
        alike = alike && of_rank[i].defined() && torch::equal(of_rank[i], expected_[0][i]);
      }
      if (alike) parameters_[i].sub_(expected_[0][i], 0.05);
    }
  }

  const int seed_;
  std::mt19937 random_;
  const int rank_;
  const int world_;
  int next_ = 0;
  bool failed_ = false;  // a pass before
  // Not together: where ranks call a wrapper as often as they like, none of the calls may wait for other ranks, as
  // those after a change or an exception do.
  enum Happens { kNothing, kFreezes, kAccumulates } happens_ = kNothing;
  std::vector<Model> models_;
  std::vector<Wrapped> wrapped_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::vector<torch::Tensor>> expected_;  // by rank
};

class DdpSoakMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpSoakMulti, testing::Values(2, 3, 5));

TEST_P(DdpSoakMulti, RandomProgramsHaveThePlainGradients) {
  const int programs = number_in("LOCKSTEP_TEST_SOAK", repetitions(15));
  const int first = number_in("LOCKSTEP_TEST_SOAK_FIRST", 1);
  run_processes(
      GetParam(),
      [&](int) {
        torch::set_num_threads(1);
        const ProcessGroupGuard group("", {.timeout = std::chrono::seconds(20)});
        for (int seed = first; seed < first + programs && !testing::Test::HasFailure(); ++seed) {
          try {
            ProgramOfSeed(seed).run();
          } catch (const std::exception& error) {
            throw std::runtime_error(fmt::format("seed {}: {}", seed, error.what()));
          }
        }
      },
      std::chrono::seconds(100 + programs));
}

}  // namespace
}  // namespace lockstep::test
