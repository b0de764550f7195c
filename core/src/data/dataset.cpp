#include "lockstep/data/dataset.h"

#include "data/exception_text.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

template class DatasetOf<Example>;

void throw_sample_error(std::int64_t index) {
  try {
    throw;
  } catch (const SampleError&) {
    throw;
  } catch (...) {
    std::throw_with_nested(SampleError(index, current_exception_text()));
  }
}

void throw_no_get_batch() {
  throw DataError(
      ErrorCode::kUnsupported,
      "this dataset has a batch type of its own: override get_batch, or give the loader a collate function");
}

Example only_sample(const Example& batch) {
  const auto first = [](const torch::Tensor& tensor) { return tensor.defined() ? tensor[0] : tensor; };
  return {first(batch.data), first(batch.target)};
}

Example stack(const std::vector<Example>& examples, const SampleContext& context) {
  return collate(examples, context);
}

}  // namespace lockstep::data
