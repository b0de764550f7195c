// The implementation of SharedStep. core/include/lockstep/nn/shared_step.h explains the idea.
//
// A step has two meetings of the ranks. At the first each rank says what it is about to do, and whether it can; if the
// ranks differ, all throw and nothing has changed. Then each rank steps its tiles: an optimizer of the program's class
// for each tile, whose parameter, gradient and state are flat views of the shared ones. At the second meeting all are
// done. Where a meeting fails, StepRecord says what has happened.
//
// Fused steps of float parameters have kernels of their own (step_kernels.h), which take the mean of the gradients,
// save what they change, and step, all in one pass.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/shared_step.h"
#include "nn/device_backend.h"
#include "own_step.h"
#include "rank_gradients.h"
#include "shared_parameters.h"
#include "step_record.h"

namespace lockstep::nn_detail {

class SharedStepper::Impl {
 public:
  Impl(torch::optim::Optimizer& optimizer, Factory factory, const SharedStepOptions& options);

  void step();
  std::uint64_t steps() const { return steps_; }
  bool is_whole() const { return whole_; }
  double gradient_norm() const { return gradient_norm_; }

 private:
  struct Tile {
    std::size_t parameter = 0;
    std::int64_t begin = 0;
    std::int64_t size = 0;
    int owner = 0;
    bool by_own_kernel = false;
    // For tiles that LibTorch steps.
    torch::Tensor values;                                // of the shared mapping
    std::unique_ptr<torch::optim::Optimizer> optimizer;  // null until this rank steps it
    std::uint64_t state_version = 0;                     // of the parameter, when the optimizer got its state
    std::uint64_t options_version = 0;                   // of the group
  };
  struct Group {
    std::uint64_t hash = 0;
    std::uint64_t version = 0;  // counts changes of the options
  };
  // What this rank brings to the first meeting.
  struct Facts {
    std::string error;            // why it cannot take part
    bool new_parameters = false;  // groups or parameters were added or replaced
    SharedParameters::Written written;
    std::vector<torch::Tensor> gradients;  // by parameter, flat, in the order of its elements; undefined: none
    std::vector<std::int64_t> samples;     // by parameter: a hash of a few elements of its gradient
    std::uint64_t hash = 0;
  };

  // shared_setup.cpp
  // `undo_bytes` becomes how many one place for undoing needs.
  std::vector<Tile> make_tiles(const SharedParameters& parameters, std::size_t& undo_bytes) const;
  void share_parameters();
  Facts look();
  void look_at_gradients(Facts& facts) const;
  std::string lines(const Facts& facts) const;
  void compare(const Facts& facts, const std::vector<std::vector<std::int64_t>>& rows);
  std::vector<std::int64_t> row_of(const Facts& facts) const;

  // shared_stepper.cpp
  std::optional<std::vector<std::vector<std::int64_t>>> meet(const std::vector<std::int64_t>& row);
  void step_own_tiles(std::uint64_t number);
  void step_tiles(const std::vector<std::size_t>& indices, std::uint64_t number, int place_of);
  bool repair(std::uint64_t number);
  void repair_rank(int rank, std::uint64_t number);
  void show_step();
  [[noreturn]] void end_broken(const std::string& state);
  // shared_tiles.cpp
  void measure_squares(const std::vector<torch::Tensor>& gradients);
  void take_norm();
  torch::Tensor gradient_of(const Tile& tile) const;
  void step_tile(std::size_t index, std::uint64_t number, int place_of, int lane);
  void step_by_optimizer(Tile& tile);
  void step_by_kernel(std::size_t index, std::size_t first_unit, std::uint64_t number, int place_of, int lane);
  void prepare(Tile& tile) const;
  std::byte* undo_place(int rank, int lane) const;
  void restore(const Tile& tile, std::size_t part, std::byte* place) const;
  template <typename Copy>
  void for_each_tensor(const Tile& tile, std::byte* place, Copy copy) const;

  torch::optim::Optimizer& optimizer_;
  const Factory factory_;
  const SharedStepOptions options_;
  const ProcessGroup group_;  // of its own
  const DeviceBackend backend_;
  const StepKernel kernel_;  // null: LibTorch steps all tiles

  std::unique_ptr<SharedParameters> parameters_;
  std::vector<Tile> tiles_;
  std::vector<Group> groups_;
  std::unique_ptr<StepRecord> record_;
  std::size_t undo_offset_ = 0;
  std::size_t undo_bytes_ = 0;  // of one place
  int lanes_ = 1;               // of every rank

  // Of the step that is under way, by parameter.
  std::vector<torch::Tensor> gradients_;
  std::vector<StepNumbers> numbers_;
  std::optional<double> scale_;                    // of the mean gradients
  std::unique_ptr<RankGradients> rank_gradients_;  // null: the gradients are the mean
  double* squares_ = nullptr;                      // by tile, of the mean gradients; in the block
  double gradient_norm_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t record_steps_ = 0;  // since the block was made
  bool whole_ = true;
  std::exception_ptr broken_;  // what a meeting threw; after that there are no more steps
};

}  // namespace lockstep::nn_detail
