#include "lockstep/data/batch_source.h"

#include <fmt/format.h>

#include "data/exception_text.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

void require_dataset(const void* dataset) {
  if (dataset == nullptr) throw DataError(ErrorCode::kInvalidArgument, "the loader needs a dataset, got null");
}

void throw_needs_collate() {
  throw DataError(ErrorCode::kInvalidArgument,
                  "the loader's batches have another type than the dataset's: give it a collate function");
}

void throw_wrong_source() {
  throw DataError(ErrorCode::kUnsupported,
                  "this is only there for a dataset with indices whose batches have the loader's type");
}

void throw_stream_error(const StreamShare& share, std::int64_t number) {
  const std::string where =
      fmt::format("worker {} of {} on rank {} of {}", share.worker, share.num_workers, share.rank, share.world_size);
  const std::string reason = current_exception_text();
  if (number < 0) {
    std::throw_with_nested(
        DataError(ErrorCode::kCorrupt, fmt::format("{} could not begin to iterate: {}", where, reason)));
  }
  std::throw_with_nested(SampleError(number, fmt::format("in the stream of {}: {}", where, reason)));
}

}  // namespace lockstep::data
