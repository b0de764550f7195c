// Generated pictures (data.format: fake), as torchvision's FakeData: noise, with random classes. They cost a copy each,
// so a training with them shows the speed that no reading and decoding holds up.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::trainer_detail {

// Float [3, side, side] and int64 []. The same samples for the same arguments. A few pictures take turns.
class FakePictures final : public data::Dataset {
 public:
  FakePictures(std::int64_t size, std::int64_t classes, std::int64_t side, std::int64_t seed);

  std::int64_t size() const override { return std::ssize(labels_); }
  data::Example get(std::int64_t index) const override;
  data::Example get_batch(std::span<const std::int64_t> indices,
                          const data::SampleContext& context = {}) const override;
  const std::vector<std::int64_t>& labels() const { return labels_; }

 private:
  torch::Tensor pictures_;
  std::vector<std::int64_t> labels_;
};

}  // namespace lockstep::trainer_detail
