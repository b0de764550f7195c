// SharedParameters: the parameters of an optimizer and their state, in a block that all ranks of the machine share.
//
// Each rank has the block twice. In the shared mapping a rank changes its tiles. The program's parameters and state()
// lie in the view, where a page that the program writes to becomes a copy of its own (shm/shared_block.h). So between
// steps a rank's writes reach nobody, and this class can tell that there were some.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optimizer_kinds.h"
#include "shm/shared_block.h"

namespace lockstep::nn_detail {

// A hash of words, in which no two changes cancel out as easily as in FNV-1a by words (two signs of doubles).
inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  return (std::rotl(hash, 5) ^ word) * 0x9e3779b97f4a7c15;
}

struct SharedParameter {
  torch::Tensor tensor;  // the program's
  std::size_t group = 0;
  std::size_t number = 0;  // in its group
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  torch::Dtype dtype = torch::kFloat;
  std::int64_t elements = 0;
  std::size_t bytes = 0;
  std::array<std::size_t, 1 + kStateTensors> places{};  // in the view: values, then state
  std::array<torch::Tensor, 1 + kStateTensors> flat;    // the same in the shared mapping, as flat tensors
  std::array<bool, kStateTensors> has_state_tensor{};   // that exist now
  bool has_state = false;
  std::int64_t steps = 0;     // of its state
  std::uint64_t version = 0;  // counts how often its state was shared anew

  std::string name() const;
};

class SharedParameters {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  // One line for each parameter: what all ranks must have alike. Throws for a parameter that cannot be shared.
  static std::string lines(const Groups& groups);

  // The parameters of `optimizer`. Nothing is shared before place().
  explicit SharedParameters(torch::optim::Optimizer& optimizer);
  // Bytes that the block must have in front of the view, and altogether.
  static std::size_t view_offset(std::size_t bytes_in_front);
  std::size_t block_bytes(std::size_t bytes_in_front) const { return view_offset(bytes_in_front) + view_bytes_; }
  void place(std::shared_ptr<comm::SharedBlock> block, std::size_t bytes_in_front);

  std::size_t size() const { return all_.size(); }
  SharedParameter& operator[](std::size_t index) { return all_[index]; }
  const SharedParameter& operator[](std::size_t index) const { return all_[index]; }
  comm::SharedBlock& block() const { return *block_; }
  // Values (0) or a state of a parameter in the shared mapping.
  std::byte* place_of(std::size_t index, std::size_t which) const {
    return block_->base() + view_offset_ + all_[index].places[which];
  }
  // Whether these are the optimizer's parameters still.
  bool are_current() const;

  // What the program has written since the last step, on this rank: parameters, by index. Those that have another
  // dtype, device, shape or memory throw.
  struct Written {
    std::vector<std::size_t> values;
    std::vector<std::size_t> state;
    std::map<std::size_t, std::uint64_t> contents;  // of both: a hash by parameter
    std::vector<std::size_t> pages;                 // that are copies, for this rank alone
    bool any() const { return !values.empty() || !state.empty(); }
  };
  Written written();
  // Everything, for parameters that are not in the block yet.
  Written all() const;
  // The number of steps of the parameter's state; -1: it has none.
  std::int64_t steps_now(std::size_t index) const;
  // Throws if the optimizer cannot step this parameter with the state that it has.
  void check_can_step(std::size_t index, const torch::optim::OptimizerOptions& options) const;
  // The first half, on the rank whose values count: they go to the shared mapping.
  void put(const Written& written);
  // The second half, on every rank, after all have met: parameters and state show the shared mapping again.
  void take(const Written& written);

  // The state of parameter `index` after a step: state() of the optimizer gets what is new.
  void show_state(std::size_t index, const torch::optim::OptimizerOptions& options);
  // Tile optimizers take their states anew.
  void renew_state() {
    for (SharedParameter& one : all_) ++one.version;
  }
  // A state for tile optimizers, on elements [begin, begin + size) of the shared mapping; null: there is none.
  std::unique_ptr<torch::optim::OptimizerParamState> tile_state(std::size_t index, std::int64_t begin,
                                                                std::int64_t size) const;

  // Parameters and state become this rank's own: nothing that another rank writes shows any more.
  void detach();

 private:
  torch::optim::OptimizerParamState* state_of(const SharedParameter& parameter) const;
  std::vector<std::size_t> changed_pages();
  bool has_changed(const SharedParameter& parameter, std::size_t which, const std::vector<std::size_t>& pages) const;
  bool has_state_elsewhere(const SharedParameter& parameter) const;
  void check_state(const SharedParameter& parameter) const;
  void move(SharedParameter& parameter);
  torch::Tensor view_of(const SharedParameter& parameter, std::size_t which) const;
  std::byte* shown(const SharedParameter& parameter, std::size_t which) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<SharedParameter> all_;
  std::size_t view_bytes_ = 0;
  std::size_t view_offset_ = 0;
  std::shared_ptr<comm::SharedBlock> block_;
  std::shared_ptr<comm::PrivateView> view_;
};

}  // namespace lockstep::nn_detail
