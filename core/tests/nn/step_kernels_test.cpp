// The own kernels of a shared step: what a process leaves that is killed inside of them.
#include "nn/shared_step/step_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <torch/optim.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/instruction_set.h"
#include "nn/shared_step/own_step.h"
#include "nn/shared_step/step_record.h"

namespace lockstep::test {
namespace {

using namespace nn_detail;
namespace optim = torch::optim;

// The third unit is saved where the first was. The last elements fill no unit: 8 fill a vector of LibTorch, 3 do not.
constexpr std::size_t kUnits = 4;
constexpr std::size_t kElements = 3 * kStepUnit + 11;
constexpr std::uint64_t kNumber = 7;  // of the step
constexpr int kLane = 3;
constexpr std::size_t kRanks = 3;

// What the ranks share of a tile.
struct Memory {
  alignas(64) float tensors[4][kElements];  // values, then state
  alignas(64) std::byte record[256];
  StepUndo undo;
};

struct Gradients {
  std::array<std::array<float, kElements>, kRanks> of{};
  std::array<const float*, kRanks> places{};
};

StepRequest request_for(const StepNumbers& numbers, Gradients& gradients, Memory& memory, std::size_t first_unit) {
  const std::size_t first = first_unit * kStepUnit;
  for (std::size_t rank = 0; rank < kRanks; ++rank) gradients.places[rank] = gradients.of[rank].data() + first;
  StepRequest request{.numbers = numbers,
                      .values = memory.tensors[0] + first,
                      .gradients = gradients.places.data(),
                      .num_gradients = kRanks,
                      .scale = 0.75,
                      .count = kElements - first,
                      .undo = &memory.undo,
                      .word = StepRecord(memory.record, 1).word(0),
                      .first_word = StepRecord::begun(kNumber, first_unit, kLane),
                      .first_unit = first_unit};
  for (std::size_t i = 0; i < 3; ++i) request.state[i] = memory.tensors[1 + i] + first;
  return request;
}

void step(StepKernel kernel, const StepNumbers& numbers, Gradients& gradients, Memory& memory) {
  kernel(request_for(numbers, gradients, memory, 0));
  StepRecord(memory.record, 1).end_tile(0, kNumber);
}

// Does what survivors do: puts back the unit that was being changed, and goes on from there. Returns the unit; -1: none
// was being changed.
int finish(StepKernel kernel, const StepNumbers& numbers, Gradients& gradients, Memory& memory) {
  const StepRecord::Tile now = StepRecord(memory.record, 1).tile(0, kNumber);
  if (now.done) return -1;
  if (now.begun) {
    EXPECT_EQ(now.lane, kLane);
    for (std::size_t which = 0; which < numbers.changed; ++which) {
      const std::size_t first = now.part * kStepUnit;
      std::memcpy(memory.tensors[which] + first, memory.undo.saved[now.part % 2][which],
                  std::min(kStepUnit, kElements - first) * sizeof(float));
    }
  }
  kernel(request_for(numbers, gradients, memory, now.part));
  return now.begun ? static_cast<int>(now.part) : -1;
}

std::vector<std::pair<std::string, StepKernel>> kernels() {
  std::vector<std::pair<std::string, StepKernel>> all{{"portable", step_portable}};
#if defined(__x86_64__)
  for (const InstructionSet set : supported_instruction_sets()) {
    if (set == InstructionSet::kAvx2) all.emplace_back("avx2", step_avx2);
    if (set == InstructionSet::kAvx512) all.emplace_back("avx512", step_avx512);
  }
#endif
  return all;
}

std::vector<std::pair<std::string, StepNumbers>> steps() {
  std::vector<std::pair<std::string, StepNumbers>> all;
  const auto sgd = optim::SGDOptions(0.1).weight_decay(0.01);
  const auto momentum = optim::SGDOptions(sgd).momentum(0.9).nesterov(true);
  const auto adam = optim::AdamOptions(0.1).weight_decay(0.01);
  const auto amsgrad = optim::AdamWOptions(0.1).amsgrad(true);
  all.emplace_back("SGD", step_numbers(sgd, false, 2));
  for (const bool first : {true, false}) {
    const char* const which = first ? ", first step" : "";
    all.emplace_back(fmt::format("SGD with momentum{}", which), step_numbers(momentum, first, first ? 1 : 2));
    all.emplace_back(fmt::format("Adam{}", which), step_numbers(adam, first, first ? 1 : 2));
    all.emplace_back(fmt::format("AdamW with amsgrad{}", which), step_numbers(amsgrad, first, first ? 1 : 2));
  }
  all.emplace_back("Adagrad", step_numbers(optim::AdagradOptions(0.1), false, 2));
  return all;
}

void fill(Memory& memory) {
  std::memset(&memory, 0, sizeof(memory));
  for (std::size_t which = 0; which < 4; ++which) {
    for (std::size_t i = 0; i < kElements; ++i)
      memory.tensors[which][i] = 0.5F + static_cast<float>(which * kElements + i) / 256;
  }
}

// A process that takes the step one instruction at a time. After each of them this process looks at the memory that
// both share, as if the other one had been killed there.
TEST(StepKernelsFault, SurvivorsFinishAStepThatIsCutOffAtAnyInstruction) {
  void* const place = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(place, MAP_FAILED);
  Memory& shared = *new (place) Memory;
  Gradients gradients;
  for (std::size_t i = 0; i < kElements; ++i) {
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      gradients.of[rank][i] = static_cast<float>(i % 7) - static_cast<float>(rank);
  }
  const auto whole = std::make_unique<Memory>();
  const auto cut_off = std::make_unique<Memory>();
  for (const auto& [isa, kernel] : kernels()) {
    for (const auto& [name, numbers] : steps()) {
      fill(*whole);
      step(kernel, numbers, gradients, *whole);
      fill(shared);
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
        raise(SIGSTOP);
        step(kernel, numbers, gradients, shared);
        _exit(0);
      }
      std::set<int> cut_units;
      int status = 0;
      for (bool right = true; waitpid(child, &status, 0) == child && WIFSTOPPED(status);) {
        std::memcpy(cut_off.get(), &shared, sizeof(shared));
        cut_units.insert(finish(kernel, numbers, gradients, *cut_off));
        right = right && std::memcmp(cut_off->tensors, whole->tensors, sizeof(whole->tensors)) == 0;
        ptrace(right ? PTRACE_SINGLESTEP : PTRACE_KILL, child, nullptr, nullptr);
        EXPECT_TRUE(right) << isa << ", " << name;
      }
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << isa << ", " << name;
      EXPECT_EQ(cut_units.size(), 1 + kUnits) << isa << ", " << name;
      EXPECT_EQ(std::memcmp(shared.tensors, whole->tensors, sizeof(whole->tensors)), 0) << isa << ", " << name;
    }
  }
  munmap(place, sizeof(Memory));
}

}  // namespace
}  // namespace lockstep::test
